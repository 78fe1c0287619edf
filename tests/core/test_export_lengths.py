"""One compiled graph serves all lengths, on torch operations; the compiled kernels: `test_ops`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from torch.testing import assert_close

import bcrf
from bcrf import Bregman, ForwardBackward, LinearChain, MeanField, Solver, Unstructured
from bcrf.compat import control_flow
from bcrf.numerics.trimming import live_tags
from tests.comparing import any_path, problem
from tests.strategies import Pairs, random_chain_arrays
from tests.subjects import allowed_with, scores_of, with_scores

TAGS = 6
# The sizes of the first graph are all different, also from the number of edges, because torch uses
# one symbol for sizes that are equal.
SIZES = ((2, 8), (3, 4), (4, 5), (5, 12), (2, 9), (4, 33), (3, 6))

slow = pytest.mark.slow

SOLVERS: dict[str, Solver] = {
    "crf": ForwardBackward(backend="torch"),
    "scan": ForwardBackward(parallel=True),
    "bregman": Bregman(4, backend="torch"),
    "tolerance": Bregman(3, tolerance=1e-3, backend="torch"),
    "paper": Bregman(2, gauge="right", first=2, marginals="outgoing", backend="torch"),
    "mean field": MeanField(2),
    "unstructured": Unstructured(),
}


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def ragged(batch: int, n: int, kind: Pairs = "shared", removed: float = 0.2) -> LinearChain:
    lengths = [n, 0, 1, *(max(n - 2 * b, 1) for b in range(3, batch))][:batch]
    return problem(n, lengths, TAGS, kind, torch.float64, removed)


def compiled(
    function: Callable[..., Any], backend: str, **settings: Any
) -> tuple[Callable[..., Any], CompileCounterWithBackend]:
    counter = CompileCounterWithBackend(backend)
    return torch.compile(function, fullgraph=True, backend=counter, **settings), counter


def step(run: Callable[..., Tensor], chain: LinearChain, *rest: Any) -> tuple[Tensor, ...]:
    """Return a loss and the gradients of its weighted sum; each sentence has another weight."""
    scores = scores_of(chain)
    value = run(with_scores(chain, scores), *rest)
    weights = torch.linspace(1, 2, len(value), dtype=value.dtype)
    grads = torch.autograd.grad((value * weights).sum(), scores, allow_unused=True)
    return value, *(g for g in grads if g is not None)


def loss_of(name: str) -> Callable[..., Tensor]:
    return lambda chain, tags: bcrf.loss(SOLVERS[name], chain, tags)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("unstructured", "shared"),
        pytest.param("crf", "shared", marks=slow),
        pytest.param("crf", "per_pair", marks=slow),
        pytest.param("scan", "shared", marks=slow),
        pytest.param("bregman", "none", marks=slow),
        pytest.param("bregman", "shared", marks=slow),
        pytest.param("bregman", "per_pair", marks=slow),
        pytest.param("tolerance", "shared", marks=slow),
        pytest.param("paper", "shared", marks=slow),
        pytest.param("mean field", "shared", marks=slow),
        pytest.param("mean field", "per_pair", marks=slow),
    ],
)
def test_losses_of_all_sizes_compile_once(name: str, kind: Pairs) -> None:
    loss = loss_of(name)
    compiled_loss, counter = compiled(loss, "aot_eager", dynamic=True)
    graphs = []
    for batch, n in SIZES:
        chain = ragged(batch, n, kind)
        gold = any_path(chain)
        assert_close(step(compiled_loss, chain, gold), step(loss, chain, gold))
        graphs.append(counter.frame_count)
    assert graphs[-1] == graphs[0]


@pytest.mark.parametrize("name", ["crf", pytest.param("bregman", marks=slow)])
def test_one_graph_if_only_the_length_is_marked(name: str) -> None:
    """This graph compiles fastest: batch and tags are constants. Scores are large, some arcs
    removed."""
    loss = loss_of(name)
    compiled_loss, counter = compiled(loss, "aot_eager")
    for n in (6, 4, 13):
        chain = problem(n, [n, n - 2, 1], TAGS, "shared", torch.float64, removed=0.3, scale=100.0)
        gold = any_path(chain)
        for marked in (chain.unary, gold):
            torch._dynamo.mark_dynamic(marked, 1)

        def marked_loss(
            run: Callable[..., Tensor], chain: LinearChain = chain, gold: Tensor = gold
        ) -> tuple[Tensor, ...]:
            scores = scores_of(chain)
            torch._dynamo.mark_dynamic(scores[0], 1)
            value = run(with_scores(chain, scores), gold)
            return value, *torch.autograd.grad(value.sum(), scores)

        assert_close(marked_loss(compiled_loss), marked_loss(loss))
    assert counter.frame_count == 1


@slow
@pytest.mark.parametrize("name", ["crf", "bregman"])
def test_one_more_graph_if_torch_has_to_find_out(name: str) -> None:
    """Without marks, the first graph serves only its own length, and the second one all lengths."""
    loss = loss_of(name)
    compiled_loss, counter = compiled(loss, "aot_eager")
    for n in (7, 4, 5, 12, 33):
        chain = ragged(4, n)
        gold = any_path(chain)
        assert_close(step(compiled_loss, chain, gold), step(loss, chain, gold))
    assert counter.frame_count == 2


@slow
@pytest.mark.parametrize(
    ("name", "kind"), [("crf", "shared"), ("crf", "per_pair"), ("bregman", "per_pair")]
)
def test_inductor(name: str, kind: Pairs) -> None:
    loss = loss_of(name)
    compiled_loss, counter = compiled(loss, "inductor", dynamic=True)
    for batch, n in SIZES[:4]:
        chain = ragged(batch, n, kind)
        gold = any_path(chain)
        assert_close(step(compiled_loss, chain, gold), step(loss, chain, gold))
    assert counter.frame_count == 1


def everything(chain: LinearChain, allowed: Tensor) -> dict[str, Any]:
    """Return all other results for a chain, computed with torch operations."""
    crf, bregman = SOLVERS["crf"](chain), SOLVERS["bregman"](chain)
    certified = bcrf.certified_decode(chain, iterations=2, backend="torch")
    other = LinearChain(chain.unary * 0.5, chain.transitions, chain.lengths)
    return {
        "crf": (crf.value, crf.tag_marginals, crf.edge_marginals, crf.best_tags()),
        "bregman": (bregman.value, bregman.tag_marginals, bregman.edge_marginals),
        "dual": (bregman.lam, bregman.residual, bregman.best_tags()),
        "viterbi": bcrf.viterbi(chain, backend="torch"),
        "certified": tuple(certified),
        "partial": [bcrf.partial_loss(SOLVERS[name], chain, allowed) for name in SOLVERS],
        "entropy": bcrf.entropy(chain),
        "kl": bcrf.kl(chain, other),
    }


@slow
@pytest.mark.parametrize("kind", ["shared", "per_pair"])
@torch.no_grad()
def test_everything_else_compiles_once(kind: Pairs, monkeypatch: pytest.MonkeyPatch) -> None:
    # `entropy` and `kl` would use the compiled kernels.
    monkeypatch.setattr(bcrf.kernels.native, "UNAVAILABLE", "not here")
    compiled_loss, counter = compiled(everything, "eager", dynamic=True)
    for batch, n in SIZES:
        chain = ragged(batch, n, kind)
        allowed = allowed_with(chain, any_path(chain))
        assert_close(compiled_loss(chain, allowed), everything(chain, allowed))
    assert counter.frame_count == 1


@pytest.mark.parametrize(
    ("n", "kind"),
    [
        (1, "shared"),
        pytest.param(0, "shared", marks=slow),
        pytest.param(0, "per_pair", marks=slow),
        pytest.param(1, "per_pair", marks=slow),
        pytest.param(2, "per_pair", marks=slow),
        pytest.param(3, "shared", marks=slow),
    ],
)
@torch.no_grad()
def test_short_sentences_compile(n: int, kind: Pairs) -> None:
    def answers(chain: LinearChain) -> tuple[Any, ...]:
        best = bcrf.viterbi(chain, backend="torch")
        return *best, SOLVERS["crf"](chain).tag_marginals, SOLVERS["bregman"](chain).edge_marginals

    chain = problem(n, [n, n // 2], TAGS, kind, torch.float64)
    compiled_loss, _ = compiled(answers, "eager", dynamic=False)
    assert_close(compiled_loss(chain), answers(chain))


@torch.no_grad()
def test_loops_are_unrolled_where_torch_is_older(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_flow, "HAS_LOOPS", False)
    compiled_loss, counter = compiled(loss_of("crf"), "eager", dynamic=False)
    chain = problem(0, [4, 2], TAGS, "shared", torch.float64, removed=0.3)
    gold = any_path(chain)
    assert_close(compiled_loss(chain, gold), loss_of("crf")(chain, gold))
    (graph,) = counter.graphs
    assert not any("scan" in str(node.target) for node in graph.graph.nodes)


# The trim


def check_live_tags_in_graph(problems: Sequence[tuple[Tensor, Tensor, Tensor]]) -> None:
    """Live tags in a graph are those that eager mode finds."""
    compiled_loss, counter = compiled(live_tags, "eager", dynamic=True)
    for nodes, pairs, lengths in problems:
        assert torch.equal(compiled_loss(nodes, pairs, lengths), live_tags(nodes, pairs, lengths))
    assert counter.frame_count == 1


@pytest.mark.parametrize("kind", ["shared", "per_pair"])
def test_live_tags_in_a_graph(kind: Pairs) -> None:
    problems = []
    for seed in range(40):
        generator = torch.Generator().manual_seed(seed)
        arrays = random_chain_arrays(generator, 3 + seed % 4, 12 - seed % 9, TAGS, pairs=kind)
        assert arrays.transitions is not None
        nodes = torch.rand(arrays.unary.shape, generator=generator) < 0.7
        pairs = torch.rand(arrays.transitions.shape, generator=generator) < 0.3
        assert arrays.lengths is not None
        problems.append((nodes, pairs, arrays.lengths))
    check_live_tags_in_graph(problems)
    lost = [bool(((n > 0) & ~live_tags(*p, n).any(-1).any(-1)).any()) for *p, n in problems]
    assert {*lost} == {True, False}  # some sentences have no path left


def test_dead_tags_are_found_at_any_distance() -> None:
    """Tags follow each other in a circle, so a tag that is missing at one position kills one tag
    at every position."""
    circle = torch.eye(TAGS, dtype=torch.bool).roll(1, 1)
    problems = []
    for n in (5, 40, 23):
        nodes = torch.ones(3, n, TAGS, dtype=torch.bool)
        nodes[0, -1, 0] = False
        nodes[1, -1, 0] = nodes[1, 0, (2 - n) % TAGS] = False  # on different paths
        problems.append((nodes, circle, torch.tensor([n, n, n - 1])))
        assert live_tags(*problems[-1]).sum(-1)[:, 1].tolist() == [TAGS - 1, TAGS - 2, TAGS]
    check_live_tags_in_graph(problems)
