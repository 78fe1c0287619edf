"""torch.compile(fullgraph=True) of layers, for batches of any size and masks of any pattern."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.testing import assert_close

import bcrf
from bcrf import Bregman, ChainLayer, ForwardBackward
from tests.layer_cases import LAYERS, make

T, STATES = 3, 7
SIZES = ((2, 4), (3, 5), (4, 8), (5, 12), (2, 7), (5, 9), (3, 11), (4, 6), (2, 10))


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def compiled(function: Callable[..., Any]) -> tuple[Callable[..., Any], CompileCounterWithBackend]:
    counter = CompileCounterWithBackend("aot_eager")
    return torch.compile(function, fullgraph=True, dynamic=True, backend=counter), counter


class EncoderWithLayer(nn.Module):
    """A linear layer, followed by a layer of this library."""

    def __init__(self, layer: bcrf.ChainLayer) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(STATES, T).double()
        self.layer = layer

    def forward(self, x: Tensor, tags: Tensor, mask: Tensor) -> Tensor:
        return self.layer.loss(self.linear(x), tags, mask, "token_mean")


def batch(size: int, n: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return states, tags of which some are -100, and a mask with holes."""
    generator = torch.Generator().manual_seed(100 * size + n)
    x = torch.randn(size, n, STATES, dtype=torch.float64, generator=generator)
    tags = torch.randint(2, (size, n), generator=generator)
    tags[0, 1] = -100
    mask = torch.rand(size, n, generator=generator) < 0.7
    mask[-1] = False
    return x, tags, mask.long()


def layers() -> dict[str, Callable[[], bcrf.ChainLayer]]:
    structure = bcrf.Structure.from_labels(["O", "B-X", "I-X"], "IOB2")
    few = {"mean field": {"iterations": 2}}  # they are unrolled
    found: dict[str, Callable[[], bcrf.ChainLayer]] = {
        name: lambda name=name: make(name, **few.get(name, {})) for name in LAYERS
    }
    found["compatible"] = lambda: bcrf.CRF(T, batch_first=True).double()
    found["constrained"] = lambda: make("bregman", constraints=structure)
    found["penalty"] = lambda: make("exact", constraints=structure, penalty=3.0)
    found["exact, torch"] = lambda: ChainLayer(T, ForwardBackward(backend="torch")).double()
    found["bregman, torch"] = lambda: ChainLayer(T, Bregman(3, backend="torch")).double()
    return found


CASES = layers()


slow = pytest.mark.slow
UNROLLED = ("mean field", "exact, torch", "bregman, torch")  # they take long to compile


@pytest.mark.parametrize(
    "name", [pytest.param(x, marks=slow) if x in UNROLLED else x for x in CASES]
)
def test_training_compiles_once(name: str) -> None:
    model = EncoderWithLayer(CASES[name]())
    fast, counter = compiled(model)
    for size, n in SIZES:
        x, tags, mask = batch(size, n)
        if name == "compatible":
            mask[:, 0] = 1
        results = []
        for run in (fast, model):
            value = run(x, tags, mask)
            results.append((value, *torch.autograd.grad(value, list(model.parameters()))))
        assert_close(*results)
    assert counter.frame_count <= 2


@pytest.mark.parametrize(
    "name",
    ["bregman", *(pytest.param(x, marks=slow) for x in (*LAYERS, "constrained") if x != "bregman")],
)
@torch.no_grad()
def test_decoding_and_marginals_compile_once(name: str) -> None:
    model = EncoderWithLayer(CASES[name]())

    def outputs(x: Tensor, mask: Tensor, converge: bool | None) -> tuple[Tensor, Tensor]:
        emissions = model.linear(x)
        marginals = model.layer.marginals(emissions, mask, converge=converge)
        return model.layer.decode_tensor(emissions, mask), marginals

    fast, counter = compiled(outputs)
    for size, n in SIZES[:5]:
        x, _, mask = batch(size, n)
        assert_close(fast(x, mask, None), outputs(x, mask, False))
    assert counter.frame_count <= 2


@pytest.mark.parametrize("name", ["exact", "softmax"])
def test_partial_labels_and_pairs_compile(name: str) -> None:
    layer = make(name)

    def loss(emissions: Tensor, allowed: Tensor, mask: Tensor, pairs: Tensor) -> Tensor:
        return layer.loss(emissions, None, mask, allowed=allowed, transitions=pairs)

    x, _, _ = batch(4, 6)
    emissions = x[..., :T].contiguous()
    allowed = torch.rand(4, 6, T, generator=torch.Generator().manual_seed(0)) < 0.5
    allowed[..., 0] = True
    pairs = torch.randn(4, 5, T, T, dtype=torch.float64)
    mask = torch.ones(4, 6)
    mask[1, :2] = mask[2, 4:] = 0
    fast = torch.compile(loss, fullgraph=True, backend="aot_eager", dynamic=False)
    assert_close(fast(emissions, allowed, mask, pairs), loss(emissions, allowed, mask, pairs))


def test_without_a_mask() -> None:
    layer = make("exact")
    fast, counter = compiled(lambda e, y: layer.nll(e, y))
    for size, n in SIZES[:4]:
        x, tags, _ = batch(size, n)
        emissions = x[..., :T].contiguous()
        assert_close(fast(emissions, tags), layer.nll(emissions, tags))
    assert counter.frame_count <= 2


@pytest.mark.slow
@pytest.mark.parametrize("name", ["exact", "bregman"])
def test_inductor(name: str) -> None:
    model = EncoderWithLayer(CASES[name]())
    fast = torch.compile(model, fullgraph=True, dynamic=True)
    for size, n in SIZES[:3]:
        arguments = batch(size, n)
        results = []
        for run in (fast, model):
            value = run(*arguments)
            results.append((value, *torch.autograd.grad(value, list(model.parameters()))))
        assert_close(*results)


@torch.no_grad()
def test_converged_marginals_compile() -> None:
    """A graph cannot test for convergence, so it runs fifty projections."""
    model = EncoderWithLayer(CASES["bregman"]())
    x, _, mask = batch(4, 9)
    emissions = model.linear(x)
    fast = torch.compile(
        lambda e, m: model.layer.marginals(e, m, converge=True),
        fullgraph=True,
        backend="aot_eager",
    )
    assert_close(fast(emissions, mask), model.layer.marginals(emissions, mask))
