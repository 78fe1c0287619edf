"""Start and end scores that a compiled kernel adds, and masks that it reads, against torch code."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import bcrf
from bcrf.kernels import native
from bcrf.layers import masks
from bcrf.layers.masks import Layout, batch_layout
from tests.comparing import needs_native

pytestmark = needs_native

T = 4
SOLVERS: dict[str, Callable[[str], bcrf.Solver]] = {
    "crf": lambda backend: bcrf.ForwardBackward(backend=backend),
    "bregman": lambda backend: bcrf.Bregman(60, backend=backend),
}


def layers(name: str, dtype: torch.dtype, batch_first: bool = True) -> list[bcrf.ChainLayer]:
    """Return two equal layers: with compiled kernels, and with torch operations only."""
    torch.manual_seed(0)
    found = [
        bcrf.ChainLayer(T, SOLVERS[name](backend), batch_first=batch_first).to(dtype)
        for backend in ("auto", "torch")
    ]
    with torch.no_grad():
        for own, other in zip(found[0].parameters(), found[1].parameters(), strict=True):
            own.normal_()
            other.copy_(own)
    return found


def problem(n: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Return emissions, tags and a mask; one sentence is empty, one has length 1, one is full."""
    generator = torch.Generator().manual_seed(n)
    emissions = torch.randn(5, n, T, generator=generator, dtype=dtype, requires_grad=True)
    tags = torch.randint(T, (5, n), generator=generator)
    lengths = torch.tensor([n, 0, min(n, 1), n // 2, n])
    return emissions, tags, torch.arange(n) < lengths.unsqueeze(1)


@pytest.mark.parametrize("name", SOLVERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("n", [0, 1, 2, 3, 6, 7])
@pytest.mark.parametrize("masked", [False, True])
def test_gradients_of_every_parameter(name: str, dtype: torch.dtype, n: int, masked: bool) -> None:
    emissions, tags, mask = problem(n, dtype)
    weights = torch.arange(1.0, 6.0)  # one factor for each sentence
    found = []
    for layer in layers(name, dtype):
        losses = layer.loss(emissions, tags, mask if masked else None, reduction="none")
        inputs = (emissions, *layer.parameters())
        total = (losses * weights).sum()
        gradients = torch.autograd.grad(total, inputs, allow_unused=True, materialize_grads=True)
        found.append((losses, *gradients))
    assert_close(found[0], found[1], atol=2e-2 if dtype == torch.bfloat16 else 2e-5, rtol=1e-4)
    if n:
        assert bool(found[0][2].abs().sum() > 0)  # the start scores have a gradient


@pytest.mark.parametrize("name", SOLVERS)
def test_start_scores_alone_require_a_gradient(name: str) -> None:
    emissions, tags, mask = problem(5, torch.float64)
    found = []
    for layer in layers(name, torch.float64):
        layer.transitions.requires_grad_(False)
        layer.end_transitions.requires_grad_(False)
        layer.loss(emissions.detach(), tags, mask).backward()
        found.append(layer.start_transitions.grad)
    assert_close(found[0], found[1])


@pytest.mark.parametrize("name", SOLVERS)
def test_second_backward_passes_and_batched_gradients(name: str) -> None:
    emissions, tags, mask = problem(5, torch.float64)
    found = []
    for layer in layers(name, torch.float64):
        losses = layer.loss(emissions, tags, mask, reduction="none")
        inputs = (emissions, layer.start_transitions, layer.end_transitions, layer.transitions)
        once = torch.autograd.grad(losses.sum(), inputs, retain_graph=True)
        again = torch.autograd.grad(losses.sum(), inputs, retain_graph=True)
        assert_close(once, again)
        batched = torch.autograd.grad(
            losses, inputs, torch.eye(5, dtype=torch.float64), True, is_grads_batched=True
        )
        assert_close(tuple(x.sum(0) for x in batched), once)
        found.append((*once, *batched))
    assert_close(found[0], found[1])


@pytest.mark.parametrize("n", [0, 3])
def test_batched_gradients_of_short_batches(n: int) -> None:
    emissions, tags, mask = problem(n, torch.float64)
    layer = layers("crf", torch.float64)[0]
    losses = layer.loss(emissions, tags, mask, reduction="none")
    one_each = torch.eye(5, dtype=torch.float64)
    ends = torch.autograd.grad(
        losses, layer.start_transitions, one_each, True, is_grads_batched=True
    )[0]
    total = torch.autograd.grad(losses.sum(), layer.start_transitions)[0]
    assert_close(ends.sum(0), total)


def test_second_derivatives_by_start_and_end_scores() -> None:
    emissions, tags, mask = problem(4, torch.float64)
    layer = layers("crf", torch.float64)[0]

    def loss(emissions: Tensor, start: Tensor, end: Tensor) -> Tensor:
        ends = {"start_transitions": start, "end_transitions": end}
        return torch.func.functional_call(layer, ends, (emissions, tags, mask))

    inputs = (emissions, layer.start_transitions, layer.end_transitions)
    assert torch.autograd.gradcheck(loss, inputs)
    assert torch.autograd.gradgradcheck(loss, inputs)


@pytest.mark.parametrize("name", SOLVERS)
def test_the_batch_may_be_the_second_axis(name: str) -> None:
    emissions, tags, mask = problem(6, torch.float32)
    mask[1, 0] = True  # no sentence is empty
    first, second = layers(name, torch.float32)[0], layers(name, torch.float32, False)[0]
    turned = emissions.detach().transpose(0, 1).requires_grad_()
    one = first.loss(emissions, tags, mask)
    two = second.loss(turned, tags.T, mask.T)
    assert_close(one, two)
    assert_close(
        torch.autograd.grad(one, emissions)[0],
        torch.autograd.grad(two, turned)[0].transpose(0, 1),
    )


def test_errors_count_start_scores_as_the_solver_does() -> None:
    rules = bcrf.Structure(start=[True, False, True, True], labels=["O", "I", "B", "X"])
    layer = bcrf.ExactCRF(T, constraints=rules)
    with pytest.raises(ValueError, match=r"sentence 1.*position 0.*tag 1 \(I\)"):
        layer.loss(torch.zeros(2, 3, T), torch.tensor([[0, 1, 2], [1, 0, 0]]))


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("n", [0, 1, 2, 3, 8])
@pytest.mark.parametrize("given", ["mask", "tags", "both"])
def test_compiled_scan_of_masks_equals_torch(
    n: int, batch_first: bool, given: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = torch.Generator().manual_seed(n)
    for prefix in (False, True):
        keep = torch.rand(6, n, generator=generator) < 0.7
        tags = torch.randint(5, (6, n), generator=generator)
        labelled = torch.rand(6, n, generator=generator) < 0.8
        if prefix:
            keep, labelled = (x.sort(1, descending=True).values for x in (keep, labelled))
        keep[0], labelled[0] = True, True
        tags = tags.masked_fill(~labelled, -100)
        mask = None if given == "tags" else keep
        arguments = (
            mask if mask is None or batch_first else mask.T,
            None if given == "mask" else tags,
            (6, n) if batch_first else (n, 6),
            keep.device,
            batch_first,
            False,
            True,
        )
        compiled = batch_layout(*arguments)
        with monkeypatch.context() as patch:
            patch.setattr(masks.native, "UNAVAILABLE", "taken away")
            plain = batch_layout(*arguments)
        for name in Layout.__dataclass_fields__:
            one, other = getattr(compiled, name), getattr(plain, name)
            assert (one is None) == (other is None), name
            if one is not None:
                assert_close(one, other, atol=0, rtol=0)


def test_scan_of_an_unmasked_batch() -> None:
    every = torch.ones(2, 3, dtype=torch.bool)
    assert native.scan_mask(every, torch.zeros(2, 3, dtype=torch.int64)).keep is None
    every[1, 0] = False
    assert not native.scan_mask(every, None).mask_keeps_first
