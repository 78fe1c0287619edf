"""The kernels as torch operators, alone and in compiled graphs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from torch.testing import assert_close

import bcrf
from bcrf import Bregman, LinearChain
from bcrf.kernels import custom_ops
from tests.comparing import DTYPES, any_path, needs_native, problem, solvers
from tests.strategies import Pairs
from tests.subjects import KINDS, scores_of, with_scores

pytestmark = needs_native

CHECKS = (
    "test_schema",
    "test_autograd_registration",
    "test_faketensor",
    "test_aot_dispatch_dynamic",
)
OMEGAS = list(Bregman(4).omegas)
SETTINGS: tuple[Any, ...] = (OMEGAS, 1, None, False)
each_kind = pytest.mark.parametrize("kind", ["shared", "per_pair"])
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def arrays(kind: Pairs = "shared", dtype: torch.dtype = torch.float64) -> tuple[Any, ...]:
    """Return unary scores, pair scores, lengths and gold tags."""
    chain = problem(0, [5, 3, 1, 0], 3, kind, dtype, removed=0.2)
    return chain.unary, chain.pair_scores, chain.lengths, any_path(chain)


# The operators


@each_kind
@each_dtype
@pytest.mark.parametrize("with_tags", [False, True])
@pytest.mark.parametrize("slopes", [False, True])
def test_values(kind: Pairs, dtype: torch.dtype, with_tags: bool, slopes: bool) -> None:
    unary, pair, lengths, gold = arrays(kind, dtype)
    check_values(unary, pair, lengths, gold if with_tags else None, slopes)


def check_values(
    unary: Tensor, pair: Tensor, lengths: Tensor, tags: Tensor | None, slopes: bool
) -> None:
    """Check the operators with and without gradients.

    The last check would also differentiate the gradients, which the operators refuse.
    """
    for differentiable, checks in ((False, CHECKS), (slopes, CHECKS[:-1])):
        scores = [x.detach().requires_grad_(differentiable) for x in (unary, pair)]
        torch.library.opcheck(custom_ops.crf, (*scores, lengths, tags, slopes), test_utils=checks)
        settings = (*scores, lengths, tags, *SETTINGS, slopes)
        torch.library.opcheck(custom_ops.bregman, settings, test_utils=checks)


@each_kind
@each_dtype
def test_all_others(kind: Pairs, dtype: torch.dtype) -> None:
    *scores, _ = arrays(kind, dtype)
    torch.library.opcheck(custom_ops.bregman_result, (*scores, *SETTINGS, True))
    torch.library.opcheck(custom_ops.bregman_result, (*scores, OMEGAS, 2, 1e-3, True, False))
    torch.library.opcheck(custom_ops.most_probable, (*scores, *SETTINGS, False, 0.5))
    torch.library.opcheck(custom_ops.viterbi, tuple(scores))
    torch.library.opcheck(custom_ops.certified, (*scores, OMEGAS, 0.1))


@pytest.mark.parametrize("shape", [(0, 3, 2), (2, 0, 2), (2, 1, 1), (0, 0, 3)])
@each_kind
def test_operators_accept_empty_tensors(shape: tuple[int, int, int], kind: Pairs) -> None:
    batch, n, tags = shape
    unary = torch.zeros(shape)
    edges = (tags, tags) if kind == "shared" else (batch, max(n - 1, 0), tags, tags)
    pair = torch.zeros(edges)
    lengths = torch.full((batch,), n)
    gold = torch.zeros(batch, n, dtype=torch.int64)
    check_values(unary, pair, lengths, gold, slopes=True)
    torch.library.opcheck(custom_ops.viterbi, (unary, pair, lengths))


@each_kind
def test_first_derivatives_are_there_and_second_ones_refused(kind: Pairs) -> None:
    unary, pair, lengths, gold = arrays(kind)
    scores = [x.requires_grad_() for x in (unary, pair)]

    def crf(slopes: bool) -> tuple[Tensor, ...]:
        return custom_ops.crf(*scores, lengths, gold, slopes)

    def bregman(slopes: bool) -> tuple[Tensor, ...]:
        return custom_ops.bregman(*scores, lengths, gold, *SETTINGS, slopes)

    for operator in (crf, bregman):
        value, by_unary, _ = operator(True)
        first = torch.autograd.grad(value.sum(), scores, create_graph=True)
        assert_close(first[0], by_unary)
        with pytest.raises(RuntimeError, match="first derivatives only"):
            torch.autograd.grad(first[0].square().sum(), scores)
        with pytest.raises(RuntimeError, match="gradients=True"):
            operator(False)[0].sum().backward()


def test_invalid_input_is_an_error() -> None:
    unary, pair, lengths, gold = arrays()
    spoiled = unary.clone()
    spoiled[0, 1, 1] = math.nan
    for call in (
        lambda: custom_ops.crf(spoiled, pair, lengths, None, False),
        lambda: custom_ops.crf(unary, pair, lengths, gold + 9, True),
        lambda: custom_ops.crf(unary, pair, lengths - 1, None, False),
        lambda: custom_ops.bregman(unary, pair + math.inf, lengths, gold, *SETTINGS, True),
        lambda: custom_ops.bregman_result(spoiled, pair, lengths, *SETTINGS, True),
        lambda: custom_ops.most_probable(spoiled, pair, lengths, *SETTINGS, True, 1.0),
        lambda: custom_ops.viterbi(unary, pair - math.inf, lengths),
        lambda: custom_ops.certified(unary, pair, lengths + 9, OMEGAS, 0.1),
    ):
        with pytest.raises(ValueError, match="a sentence is invalid"):
            call()


# Compiled graphs


def compiled(function: Callable[..., Any]) -> tuple[Callable[..., Any], CompileCounterWithBackend]:
    counter = CompileCounterWithBackend("aot_eager")
    return torch.compile(function, fullgraph=True, dynamic=True, backend=counter), counter


def operators(counter: CompileCounterWithBackend) -> set[str]:
    """Return the names of the kernels in the compiled graphs."""
    targets = {str(node.target) for graph in counter.graphs for node in graph.graph.nodes}
    return {x.split(".")[1] for x in targets if x.startswith("bcrf.")}


TAGS = 6  # unlike all other sizes: torch uses one symbol for equal sizes


def gradients(output: Tensor, scores: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return the gradients in one call, because a compiled graph allows only one backward pass."""
    weights = torch.linspace(1, 2, len(output))
    return torch.autograd.grad((output * weights).sum(), scores)


def ragged(batch: int, n: int, kind: Pairs = "shared") -> LinearChain:
    lengths = [max(n - 2 * b, 1) for b in range(batch)]
    return problem(n, lengths, TAGS, kind, removed=0.2)


@pytest.mark.parametrize("family", ["crf", "bregman"])
@pytest.mark.parametrize("kind", KINDS)
def test_losses_of_all_sizes_compile_once(family: str, kind: Pairs) -> None:
    solver = solvers("auto")[family]

    def loss(problem: LinearChain, tags: Tensor) -> Tensor:
        return bcrf.loss(solver, problem, tags)

    fast, counter = compiled(loss)
    for batch, n in ((2, 4), (3, 5), (4, 8), (5, 12), (2, 7), (5, 9), (3, 11), (4, 6), (2, 10)):
        chain = ragged(batch, n, kind)
        gold = any_path(chain)
        scores, again = scores_of(chain), scores_of(chain)
        found = fast(with_scores(chain, scores), gold)
        expected = loss(with_scores(chain, again), gold)
        assert_close(found, expected)
        assert_close(gradients(found, scores), gradients(expected, again))
    assert counter.frame_count <= 2
    assert operators(counter) == {family}


def test_a_training_step_compiles() -> None:
    """The compiled function makes the chain from a layer's output and a parameter."""
    layer = torch.nn.Linear(7, TAGS)
    transitions = torch.nn.Parameter(torch.randn(TAGS, TAGS))

    def step(x: Tensor, lengths: Tensor, tags: Tensor) -> Tensor:
        chain = LinearChain(layer(x), transitions, lengths)
        return bcrf.loss(Bregman(), chain, tags).mean() + bcrf.loss(CRF, chain, tags).mean()

    fast, counter = compiled(step)
    for batch, n in ((2, 5), (3, 4), (4, 9)):
        x, tags = torch.randn(batch, n, 7), torch.randint(TAGS, (batch, n))
        lengths = torch.randint(1, n + 1, (batch,))
        results = []
        for run in (fast, step):
            parameters = [*layer.parameters(), transitions]
            value = run(x, lengths, tags)
            results.append((value, *torch.autograd.grad(value, parameters)))
        assert_close(*results)
    assert counter.frame_count <= 2
    assert operators(counter) == {"crf", "bregman"}


CRF = solvers("auto")["crf"]

FUNCTIONS: dict[str, tuple[Callable[[LinearChain], Any], set[str]]] = {
    "viterbi": (lambda chain: bcrf.viterbi(chain), {"viterbi"}),
    "certified": (lambda chain: tuple(bcrf.certified_decode(chain)), {"certified"}),
    "decode": (lambda chain: bcrf.decode(Bregman(), chain, 0.5), {"most_probable"}),
    "value": (lambda chain: CRF(chain).value, {"crf"}),
    "flow": (
        lambda chain: (Bregman()(chain).value, Bregman()(chain).residual, Bregman()(chain).lam),
        {"bregman_result"},
    ),
    "marginals": (lambda chain: Bregman(5)(chain).tag_marginals, {"bregman_result"}),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@torch.no_grad()
def test_other_functions_compile_once(name: str) -> None:
    function, expected = FUNCTIONS[name]
    fast, counter = compiled(function)
    for batch, n in ((2, 4), (3, 6), (5, 5), (4, 11)):
        chain = ragged(batch, n)
        assert_close(fast(chain), function(chain))
    assert counter.frame_count <= 2
    assert operators(counter) == expected


LAYER = bcrf.BregmanCRF(TAGS)
BY_DEFAULT: dict[str, Callable[[LinearChain, Tensor], Tensor]] = {
    "loss": lambda chain, y: bcrf.loss(Bregman(), chain, y),
    "decode": lambda chain, y: bcrf.decode(Bregman(), chain),
    "layer loss": lambda chain, y: LAYER.loss(chain.unary, y),
    "layer decode": lambda chain, y: LAYER.decode_tensor(chain.unary),
}


@pytest.mark.parametrize("name", BY_DEFAULT)
def test_default_temperatures_are_traced_once(name: str) -> None:
    unary, gold = torch.randn(3, 5, TAGS), torch.randint(TAGS, (3, 5))
    fast, counter = compiled(lambda u, y: BY_DEFAULT[name](LinearChain(u), y))
    assert_close(fast(unary, gold), BY_DEFAULT[name](LinearChain(unary), gold))
    assert counter.frame_count == 1


@pytest.mark.parametrize("what", ["nan", "tag", "length", "no path"])
def test_bad_input_of_a_compiled_function_is_an_error(what: str) -> None:
    chain = ragged(3, 5)
    unary, gold, lengths = chain.unary.clone(), any_path(chain), chain.lengths.clone()
    fast, counter = compiled(
        lambda u, w, lengths, y: bcrf.loss(Bregman(), LinearChain(u, w, lengths), y)
    )
    expected = bcrf.loss(Bregman(), chain, gold)
    assert_close(fast(unary, chain.transitions, lengths, gold), expected)
    if what == "nan":
        unary[0, 0, 0] = math.nan
    elif what == "tag":
        gold[0, 0] = TAGS
    elif what == "length":
        lengths[1] = 6
    else:
        unary[0, 1] = -math.inf
    with pytest.raises(ValueError, match="a sentence is invalid"):
        fast(unary, chain.transitions, lengths, gold)
    assert counter.frame_count == 1


@pytest.mark.slow
@pytest.mark.parametrize("family", ["crf", "bregman"])
def test_inductor(family: str) -> None:
    solver = solvers("auto")[family]

    def loss(problem: LinearChain, tags: Tensor) -> Tensor:
        return bcrf.loss(solver, problem, tags) + bcrf.viterbi(problem)[0]

    fast = torch.compile(loss, fullgraph=True, dynamic=True)
    for batch, n in ((2, 4), (3, 7), (5, 12)):
        chain = ragged(batch, n)
        gold = any_path(chain)
        results = []
        for run in (fast, loss):
            scores = scores_of(chain)
            value = run(with_scores(chain, scores), gold)
            results.append((value, *gradients(value, scores)))
        assert_close(*results)
