"""How the compiled kernels take tensors of any layout, and give derivatives."""

from __future__ import annotations

import gc
import math
import weakref
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing import assert_close

import bcrf
from bcrf import LinearChain, Solver
from bcrf.kernels import native
from tests.comparing import any_path, check_answers, check_decoders, needs_native, problem, solvers
from tests.strategies import Pairs
from tests.subjects import (
    KINDS,
    curvature,
    parametrize,
    random_like,
    scores_of,
    slopes,
    with_scores,
)

pytestmark = needs_native

NATIVE, TORCH = solvers("native"), solvers("torch")
each_solver = parametrize(NATIVE)
each_family = pytest.mark.parametrize("family", NATIVE)


# Layouts


def layouts() -> dict[str, Callable[[], LinearChain]]:
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    lengths = [6, 3, 1, 5]
    return {
        "position first": lambda: LinearChain(
            normal(6, 4, 5).transpose(0, 1), normal(5, 5), lengths
        ),
        "tag first": lambda: LinearChain(normal(5, 4, 6).permute(1, 2, 0), normal(5, 5), lengths),
        "expanded": lambda: LinearChain(
            normal(1, 6, 5).expand(4, 6, 5), normal(1, 5, 5, 5).expand(4, 5, 5, 5), lengths
        ),
        "one position": lambda: LinearChain(normal(4, 1, 5).expand(4, 6, 5), normal(5, 5), lengths),
        "cut": lambda: LinearChain(normal(4, 6, 9)[..., 2:7], normal(9, 9)[1:6, 3:8], lengths),
        "every other": lambda: LinearChain(normal(8, 6, 10)[::2, :, ::2], normal(5, 5), lengths),
        "transposed": lambda: LinearChain(normal(4, 6, 5), normal(5, 5).T, lengths),
        "transposed pairs": lambda: LinearChain(normal(4, 6, 5), normal(4, 5, 5, 5).mT, lengths),
        "edge first": lambda: LinearChain(
            normal(4, 6, 5), normal(5, 4, 5, 5).transpose(0, 1), lengths
        ),
        "one matrix": lambda: LinearChain(
            normal(4, 6, 5), normal(5, 5).expand(4, 5, 5, 5), lengths
        ),
        "scalars": lambda: LinearChain(
            torch.ones(1, 1, 1).expand(4, 6, 5), torch.ones(1, 1).expand(5, 5), lengths
        ),
        "half of the batch": lambda: LinearChain(normal(8, 6, 5), normal(5, 5), lengths * 2)[::2],
        "some of the batch": lambda: LinearChain(normal(8, 6, 5), normal(5, 5), lengths * 2)[
            torch.tensor([1, 1, 7, 0])
        ],
        "short lengths": lambda: LinearChain(
            normal(4, 6, 5), normal(5, 5), torch.tensor(lengths, dtype=torch.int32)
        ),
        "lengths in a table": lambda: LinearChain(
            normal(4, 6, 5), normal(5, 5), torch.tensor([lengths, [0] * 4]).T[:, 0]
        ),
        "negated": lambda: LinearChain(
            torch._neg_view(normal(4, 6, 5)), torch._neg_view(normal(5, 5)), lengths
        ),
        "negated and turned": lambda: LinearChain(
            torch._neg_view(normal(6, 4, 5)).transpose(0, 1),
            torch._neg_view(normal(5, 5)).T,
            lengths,
        ),
        "parameters": lambda: LinearChain(
            torch.nn.Parameter(normal(4, 6, 5)), torch.nn.Parameter(normal(5, 5)), lengths
        ),
    }


@pytest.fixture(params=["exchange", "methods"])
def access(request: pytest.FixtureRequest) -> Iterator[None]:
    """Pass tensors through the C functions of DLPack, or through methods as with an older torch."""
    if request.param == "methods":
        names = ("empty", "device", "float32", "float64", "int64", "bool")
        torch_like = SimpleNamespace(Tensor=object, **{x: getattr(torch, x) for x in names})
        native._native.use_torch(torch_like)
    yield
    native._native.use_torch(torch)


@pytest.mark.parametrize("layout", layouts())
def test_layouts(layout: str, access: None) -> None:
    chain = layouts()[layout]()
    check_answers(chain.detach())
    with torch.no_grad():
        check_decoders(chain)


# torch gives this warning once per process, perhaps in an earlier test.
@pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")
def test_tensors_without_memory_are_refused(access: None) -> None:
    with FakeTensorMode():
        fake = torch.empty(2, 3, 4)
    with pytest.raises((ValueError, RuntimeError)):
        native.crf(fake, torch.zeros(4, 4), None)


def test_results_are_in_memory_of_their_own(access: None) -> None:
    chain = problem(0, [6, 3], 5, "shared")
    first = bcrf.viterbi(chain)[1]
    kept = first.clone()
    bcrf.viterbi(problem(1, [6, 3], 5, "shared"))
    assert torch.equal(first, kept)


def test_layouts_of_tags() -> None:
    """Tags may be int32 or strided, and have any value beyond the length."""
    chain = problem(0, [6, 3, 1, 0], 5, "shared")
    gold = any_path(chain)
    anything = torch.where(chain.mask, gold, 10**12)
    short = gold.int()
    strided = torch.stack([gold, gold + 99], -1)[..., 0]
    turned = gold.T.contiguous().T
    for solver in solvers("native").values():
        expected = bcrf.loss(solver, chain, gold)
        for tags in (anything, short, strided, turned):
            assert_close(bcrf.loss(solver, chain, tags), expected)


# Derivatives


def labelled(
    kind: Pairs = "shared", dtype: torch.dtype = torch.float32
) -> tuple[LinearChain, Tensor]:
    chain = problem(1, [6, 3, 1, 5, 0], 4, kind, dtype, removed=0.2)
    return chain, any_path(chain)


def outputs(solver: Solver, chain: LinearChain, gold: Tensor) -> dict[str, Tensor]:
    return {"value": solver(chain).value, "loss": bcrf.loss(solver, chain, gold)}


@each_solver
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_own_their_memory(solver: Solver, kind: Pairs) -> None:
    """Neither a second backward pass nor changing its result affects the first gradients."""
    chain, gold = labelled(kind)
    scores = scores_of(chain)
    for output in outputs(solver, with_scores(chain, scores), gold).values():
        first = slopes(output, scores)
        copies = [x.clone() for x in first]
        second = slopes(output, scores)
        assert_close(second, tuple(copies), rtol=0, atol=0)
        assert_close(first, tuple(copies), rtol=0, atol=0)
        for x in second:
            x.fill_(math.nan)
        assert_close(slopes(output, scores), first, rtol=0, atol=0)


@each_solver
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_waits_for_the_garbage_collector(solver: Solver, kind: Pairs) -> None:
    """A loss holds gradients as large as the scores, so it must be freed without the collector."""
    chain, gold = labelled(kind)
    chain = with_scores(chain, scores_of(chain))
    outputs(solver, chain, gold)
    gc.collect()
    gc.disable()
    try:
        found = weakref.WeakSet(outputs(solver, chain, gold).values())
        assert not found
    finally:
        gc.enable()


@each_solver
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_add_up(solver: Solver, kind: Pairs) -> None:
    """Two backward passes add up in .grad, for parameters of any dtype and layout."""
    chain, gold = labelled(kind)
    scores, again = scores_of(chain), scores_of(chain)
    for _ in range(2):
        bcrf.loss(solver, with_scores(chain, scores), gold).mean().backward()
    (2 * bcrf.loss(solver, with_scores(chain, again), gold).mean()).backward()
    for one, two in zip(scores, again, strict=True):
        assert one.grad is not None
        assert_close(one.grad, two.grad)
    problem = with_scores(chain, again)
    both = bcrf.loss(solver, problem, gold).sum() + solver(problem).value.sum()
    parts = [slopes(f.sum(), again) for f in outputs(solver, problem, gold).values()]
    assert_close(slopes(both, again), tuple(a + b for a, b in zip(*parts, strict=True)))


@each_family
@pytest.mark.parametrize("wanted", [(True, False), (False, True)])
@pytest.mark.parametrize("kind", ["shared", "per_pair"])
def test_one_of_the_two_gradients(family: str, wanted: tuple[bool, bool], kind: Pairs) -> None:
    chain, gold = labelled(kind)
    results = []
    for solver in (NATIVE[family], TORCH[family]):
        scores = [
            x.detach().requires_grad_(w) for x, w in zip(scores_of(chain), wanted, strict=True)
        ]
        total = sum(
            f.square().sum() for f in outputs(solver, with_scores(chain, scores), gold).values()
        )
        total.backward()
        assert [x.grad is not None for x in scores] == list(wanted)
        results.append(scores[0].grad if wanted[0] else scores[1].grad)
    assert_close(*results, rtol=1e-4, atol=1e-4)


@each_family
@pytest.mark.parametrize("upstream", ["sum", "mean", "weights", "zero", "one of them"])
def test_upstream_gradients(family: str, upstream: str) -> None:
    chain, gold = labelled(dtype=torch.float64)
    reduce: dict[str, Callable[[Tensor], Tensor]] = {
        "sum": torch.sum,
        "mean": torch.mean,
        "weights": lambda x: (x * torch.arange(-2, 3)).sum(),
        "zero": lambda x: (x * 0).sum(),
        "one of them": lambda x: x[1],
    }
    for name in ("value", "loss"):
        results = []
        for solver in (NATIVE[family], TORCH[family]):
            scores = scores_of(chain)
            output = outputs(solver, with_scores(chain, scores), gold)[name]
            results.append(slopes(reduce[upstream](output), scores))
        assert_close(*results, rtol=1e-10, atol=1e-10)


@each_family
@pytest.mark.parametrize("kind", KINDS)
def test_second_derivatives(family: str, kind: Pairs) -> None:
    """Second derivatives equal those of torch; create_graph=True does not change first ones."""
    chain, gold = labelled(kind, torch.float64)
    settings: dict[str, Any] = {"iterations": 2000, "tolerance": 1e-12}
    for name in ("value", "loss"):
        results = []
        for backend in ("native", "torch"):
            scores = scores_of(chain)
            solver = solvers(backend, **settings)[family]
            output = outputs(solver, with_scores(chain, scores), gold)[name]
            assert_close(slopes(output, scores, graph=True), slopes(output, scores))
            results.append(curvature(output, scores, random_like(scores)))
        assert_close(*results, rtol=1e-8, atol=1e-8)


@each_family
def test_many_upstream_gradients_at_once(family: str) -> None:
    """With is_grads_batched=True, torch.autograd runs the backward pass under vmap."""
    chain, gold = labelled(dtype=torch.float64)
    results = []
    for solver in (NATIVE[family], TORCH[family]):
        scores = scores_of(chain)
        output = bcrf.loss(solver, with_scores(chain, scores), gold)
        eye = torch.eye(len(chain), dtype=output.dtype)
        results.append(torch.autograd.grad(output, scores, eye, is_grads_batched=True))
    assert_close(*results)


@each_solver
def test_a_graph_is_used_once(solver: Solver) -> None:
    chain, gold = labelled()
    scores = scores_of(chain)
    output = bcrf.loss(solver, with_scores(chain, scores), gold).sum()
    output.backward()
    with pytest.raises(RuntimeError, match="second time"):
        output.backward()


@each_solver
def test_scores_that_changed_in_between(solver: Solver) -> None:
    """If scores change before the backward pass, it uses the old scores or raises an error."""
    chain, gold = labelled()
    scores = scores_of(chain)
    output = bcrf.loss(solver, with_scores(chain, scores), gold)
    first = slopes(output, scores)
    with torch.no_grad():
        scores[0].mul_(3)
    try:
        second = slopes(output, scores)
    except RuntimeError as error:
        assert "modified by an inplace operation" in str(error)  # noqa: PT017
    else:
        assert_close(second, first, rtol=0, atol=0)


@each_solver
def test_forward_mode_is_an_error_or_right(solver: Solver) -> None:
    chain, gold = labelled()
    chain = chain.double()
    (direction,) = random_like([chain.unary])
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(chain.unary, direction)
        try:
            output = bcrf.loss(solver, LinearChain(dual, chain.transitions, chain.lengths), gold)
        except NotImplementedError:
            return
        tangent = torch.autograd.forward_ad.unpack_dual(output).tangent
    scores = scores_of(chain)
    by_unary = slopes(bcrf.loss(solver, with_scores(chain, scores), gold), scores)[0]
    assert tangent is not None
    assert_close(tangent.sum(), (by_unary * direction).nansum())
