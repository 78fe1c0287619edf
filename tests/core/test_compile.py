"""torch.compile(fullgraph=True) and torch.export give the results of eager mode.

By default with the compiled kernels as operators in the graph, if there are any; see `test_ops`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import bcrf
from bcrf import LinearChain, Solver, Structure
from tests.strategies import Pairs, bies_follow, random_chain_arrays

B, N, T = 4, 4, 4
LENGTHS = [4, 3, 1, 0]

SOLVERS: dict[str, Solver] = {
    "bregman": bcrf.Bregman(5),
    "few": bcrf.Bregman(2),
    "tolerance": bcrf.Bregman(2, tolerance=1e-3),
    "crf": bcrf.ForwardBackward(),
    "bregman torch": bcrf.Bregman(5, backend="torch"),
    "few torch": bcrf.Bregman(2, backend="torch"),
    "tolerance torch": bcrf.Bregman(2, tolerance=1e-3, backend="torch"),
    "crf torch": bcrf.ForwardBackward(backend="torch"),
    "scan": bcrf.ForwardBackward(parallel=True),
    "mean field": bcrf.MeanField(2),
    "unstructured": bcrf.Unstructured(),
}


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def compiled(function: Callable[..., Any], backend: str = "aot_eager") -> Callable[..., Any]:
    # dynamic=False: every graph is for one shape.
    found: Callable[..., Any] = torch.compile(
        function, fullgraph=True, backend=backend, dynamic=False
    )
    return found


def make(kind: Pairs = "shared", removed: float = 0.0, scale: float = 1.0) -> LinearChain:
    arrays = random_chain_arrays(
        2, B, N, T, pairs=kind, removed=removed, scale=scale, dtype=torch.float32, ragged=False
    )
    return LinearChain(arrays.unary, arrays.transitions, LENGTHS)


def bies() -> Structure:
    _, start, end, follow = bies_follow()
    return Structure(start, end, follow)


def leaves_of(chain: LinearChain) -> list[Tensor]:
    assert chain.transitions is not None
    return [chain.unary.detach().requires_grad_(), chain.transitions.detach().requires_grad_()]


def assert_same_step(function: Callable[..., Tensor], chain: LinearChain, *rest: Any) -> None:
    """Assert that the compiled loss has the value and gradients of the eager one."""
    results = []
    for run in (function, compiled(function)):
        leaves = leaves_of(chain)
        value = run(LinearChain(*leaves, chain.lengths), *rest)
        grads = torch.autograd.grad(value.sum(), leaves, allow_unused=True)
        results.append((value, *grads))
    for actual, expected in zip(*results, strict=True):
        assert_close(actual, expected, rtol=1e-5, atol=1e-5)
    assert bool(results[1][0].isfinite().all())


@pytest.mark.parametrize(
    "name",
    [
        "bregman",
        "tolerance",
        "crf",
        pytest.param("bregman torch", marks=pytest.mark.slow),
        pytest.param("tolerance torch", marks=pytest.mark.slow),
        "crf torch",
        "scan",
        "mean field",
        "unstructured",
    ],
)
def test_losses_compile(name: str) -> None:
    chain = make("per_pair" if name.startswith(("bregman", "scan")) else "shared")
    tags = chain.pad(torch.randint(T, (B, N)))
    assert_same_step(lambda c, y: bcrf.loss(SOLVERS[name], c, y), chain, tags)


@pytest.mark.parametrize(
    "name", ["few", "crf", "few torch", pytest.param("crf torch", marks=pytest.mark.slow)]
)
def test_losses_compile_with_removed_arcs(name: str) -> None:
    """Chain and structure are both arguments of the compiled function.

    The scores are large. Compiled code cannot test whether sums of scaled products have lost
    terms to underflow, so it must be right without this test.
    """
    chain, structure = make(scale=100.0), bies()
    tags = bcrf.viterbi(make(scale=3.0).constrain(structure))[1]

    def loss(problem: LinearChain, rules: Structure, y: Tensor) -> Tensor:
        return bcrf.loss(SOLVERS[name], problem.constrain(rules), y)

    assert_same_step(loss, chain, structure, tags)


@pytest.mark.parametrize("name", [pytest.param("few", marks=pytest.mark.slow), "mean field"])
def test_partial_losses_compile(name: str) -> None:
    allowed = torch.rand(B, N, T, generator=torch.Generator().manual_seed(0)) < 0.5
    allowed[..., 0] = True
    assert_same_step(lambda c, a: bcrf.partial_loss(SOLVERS[name], c, a), make(), allowed)


def test_the_chain_can_be_built_inside() -> None:
    """The compiled function makes the chain from plain tensors in bfloat16, and divides it by a
    temperature."""

    def marginals(unary: Tensor, transitions: Tensor, lengths: Tensor) -> Tensor:
        problem = LinearChain(unary, transitions, lengths) / 0.5
        return bcrf.MeanField(2)(problem).tag_marginals

    arguments = (torch.randn(B, N, T).bfloat16(), torch.randn(T, T).bfloat16(), make().lengths)
    found = compiled(marginals)(*arguments)
    assert found.dtype == torch.bfloat16
    assert_close(found, marginals(*arguments))


@pytest.mark.parametrize("name", ["few", "few torch", pytest.param("crf", marks=pytest.mark.slow)])
def test_marginals_compile(name: str) -> None:
    chain = make(removed=0.3)
    parameters = LinearChain(*leaves_of(chain), LENGTHS)  # a model in evaluation

    def marginals(problem: LinearChain) -> tuple[Tensor, ...]:
        solution = SOLVERS[name](problem)
        return solution.tag_marginals, solution.edge_marginals, solution.best_tags()

    with torch.no_grad():
        expected = marginals(chain)
        assert_close(compiled(marginals)(parameters), expected, rtol=1e-5, atol=1e-5)


def test_compiled_bregman_marginals_have_no_wrong_gradient() -> None:
    """The compiler refuses the function, or its gradient is right.

    The derivative of Bregman marginals solves a linear system in a loop that reads values.
    """
    chain = make()
    results = []
    weight = torch.randn(B, N, T, generator=torch.Generator().manual_seed(0))

    def marginals(problem: LinearChain) -> Tensor:
        return bcrf.Bregman(2)(problem).tag_marginals

    for run in (marginals, compiled(marginals)):
        leaves = leaves_of(chain)
        try:
            output = run(LinearChain(*leaves, LENGTHS))
        except torch._dynamo.exc.Unsupported:
            assert run is not marginals
            return
        results.append(torch.autograd.grad((output * weight).sum(), leaves))
    assert_close(*results, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("backend", ["auto", pytest.param("torch", marks=pytest.mark.slow)])
def test_decoders_compile(backend: str) -> None:
    """In a graph, certified_decode computes projections and Viterbi for all sentences, and selects.

    The batch has sentences with and without a certificate.
    """
    chain, structure = make("per_pair", scale=2.0), bies()

    def both(problem: LinearChain, rules: Structure) -> tuple[Any, ...]:
        problem = problem.constrain(rules)
        certified = bcrf.certified_decode(problem, iterations=1, backend=backend)
        return bcrf.viterbi(problem, backend), tuple(certified)

    expected = both(chain, structure)
    assert set(expected[1][2].tolist()) == {True, False}
    assert_close(compiled(both)(chain, structure), expected)


@pytest.mark.slow
def test_inductor() -> None:
    chain = make()
    tags = torch.randint(T, (B, N))

    def loss(problem: LinearChain, y: Tensor) -> Tensor:
        return bcrf.loss(bcrf.Bregman(1, backend="torch"), problem, y)

    leaves, again = leaves_of(chain), leaves_of(chain)
    value = compiled(loss, "inductor")(LinearChain(*leaves, chain.lengths), tags)
    expected = loss(LinearChain(*again, chain.lengths), tags)
    assert_close(value, expected)
    grads = torch.autograd.grad(value.sum(), leaves)
    assert_close(grads, torch.autograd.grad(expected.sum(), again))


class ModelWithHead(torch.nn.Module):
    """A model that ends in a chain."""

    def __init__(self, head: Callable[[LinearChain], Any]) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.encoder = torch.nn.Linear(3, T)
        self.transitions = torch.nn.Parameter(torch.randn(T, T, generator=generator))
        self.head = head

    def forward(self, x: Tensor, lengths: Tensor) -> Any:
        return self.head(LinearChain(self.encoder(x), self.transitions, lengths).constrain(bies()))


HEADS: dict[str, Callable[[LinearChain], Any]] = {
    "marginals": lambda chain: bcrf.Bregman(3)(chain).tag_marginals,
    "viterbi": lambda chain: bcrf.viterbi(chain)[1],
}


@pytest.mark.parametrize("head", HEADS)
def test_a_model_exports(head: str) -> None:
    model = ModelWithHead(HEADS[head]).eval()
    lengths = torch.tensor(LENGTHS)
    first, second = (torch.randn(B, N, 3) for _ in range(2))
    with torch.no_grad():
        program = torch.export.export(model, (first, lengths), strict=False)
        for x, sizes in ((first, lengths), (second, lengths.flip(0))):
            assert_close(program.module()(x, sizes), model(x, sizes))


def test_a_chain_can_be_an_input_of_an_exported_program() -> None:
    class MarginalsOfChain(torch.nn.Module):
        def forward(self, chain: LinearChain) -> Tensor:
            return bcrf.Bregman(2)(chain).tag_marginals

    chain = make(removed=0.3)
    program = torch.export.export(MarginalsOfChain(), (chain,), strict=False)
    for problem in (chain, make()):
        assert_close(program.module()(problem), MarginalsOfChain()(problem))
