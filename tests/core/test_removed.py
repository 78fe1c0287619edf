"""Removing a tag or arc (-inf) equals deleting it from the problem, up to second derivatives."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor

import bcrf
from bcrf import Bregman, LinearChain, MeanField, Solver, Structure
from tests import oracles
from tests.strategies import Pairs, bies_follow
from tests.subjects import (
    CONVERGED,
    CRF,
    FACTORIZED,
    KINDS,
    SOLVERS,
    STRUCTURED,
    allowed_with,
    close,
    curvature,
    everything,
    gold_of,
    padded,
    parametrize,
    ragged_chain,
    random_like,
    scores_of,
    slopes,
    with_scores,
)

ALL = SOLVERS | {"bregman-converged": CONVERGED}
LENGTHS = (0, 1, 3, 5)
every_solver = parametrize(ALL)
every_structured = parametrize(STRUCTURED | {"bregman-converged": CONVERGED})
pairwise_kinds = pytest.mark.parametrize("pairs", ["shared", "per_pair"])


def removed_chain(pairs: Pairs, removed: float = 0.4, seed: int = 0) -> LinearChain:
    return ragged_chain(seed, LENGTHS, 3, n=6, pairs=pairs, removed=removed)


def without(x: Tensor, tag: int, axes: int) -> Tensor:
    """Return `x` without `tag` in its last one or two axes."""
    keep = torch.tensor([t for t in range(x.shape[-1]) if t != tag])
    x = x.index_select(-1, keep)
    return x.index_select(-2, keep) if axes == 2 else x


# (a) A tag removed at all positions


@every_solver
@pytest.mark.parametrize(("pairs", "arcs"), [("shared", "removed"), ("per_pair", "finite")])
def test_a_removed_tag_is_a_deleted_tag(solver: Solver, pairs: Pairs, arcs: str) -> None:
    tag = 1
    full = ragged_chain(2, LENGTHS, 4, n=6, pairs=pairs)
    assert full.transitions is not None
    unary, transitions = full.unary.clone(), full.transitions.clone()
    unary[..., tag] = -math.inf
    if arcs == "removed":
        transitions[..., tag, :] = transitions[..., tag] = -math.inf
    chain = LinearChain(unary, transitions, full.lengths)
    deleted = LinearChain(without(unary, tag, 1), without(transitions, tag, 2), full.lengths)
    gold = gold_of(chain)
    allowed, directions = allowed_with(chain, gold), random_like(scores_of(chain))
    weights = random_like([unary], 1)[0]
    found = everything(solver, chain, gold, allowed, weights, directions)
    expected = everything(
        solver,
        deleted,
        gold.where(gold < tag, gold - 1).where(chain.mask, -100),
        without(allowed, tag, 1),
        without(weights, tag, 1),
        (without(directions[0], tag, 1), without(directions[1], tag, 2)),
    )
    for name, group in found.items():
        if name == "numbers":
            close(group, expected[name])
            continue
        for axes, a, b in zip((1, 2), group, expected[name], strict=True):
            close(without(a, tag, axes), b)
            assert (a[..., tag] == 0).all(), name
            if axes == 2 and solver not in FACTORIZED.values():
                assert (a[..., tag, :] == 0).all(), name


@pytest.mark.parametrize("solver", [Bregman(), Bregman.paper()], ids=["ramp", "paper"])
@pytest.mark.parametrize("backend", ["torch", "naive"])
@pairwise_kinds
def test_removed_is_deleted_after_every_iteration(
    solver: Bregman, backend: str, pairs: Pairs
) -> None:
    chain = ragged_chain(4, LENGTHS, 4, pairs=pairs)
    assert chain.transitions is not None
    unary = chain.unary.clone()
    unary[..., 2] = -math.inf
    removed = LinearChain(unary, chain.transitions, chain.lengths)
    deleted = LinearChain(without(unary, 2, 1), without(chain.transitions, 2, 2), chain.lengths)
    for k in range(10):
        settings = replace(solver, iterations=k, backend=backend)
        a, b = settings(removed), settings(deleted)
        close(a.value, b.value)
        close(without(a.tag_marginals, 2, 1), b.tag_marginals)
        close(without(a.edge_marginals, 2, 2), b.edge_marginals)


# (b) Transitions removed, tags removed at single positions: against the oracles


def directional(
    family: str, parts: list[oracles.Sentence], directions: list[oracles.Sentence]
) -> list[oracles.Array]:
    """Return a directional derivative of the oracle's tag marginals, by central differences."""
    h, found = 1e-5, []
    for (unary, pair), (du, dp) in zip(parts, directions, strict=True):
        ends = []
        for sign in (1, -1):
            moved = unary + sign * h * du, pair + sign * h * dp
            if family == "crf":
                ends.append(oracles.crf_tag_marginals(*moved))
            else:
                ends.append(oracles.dual(*moved).tag_marginals)
        found.append((ends[0] - ends[1]) / (2 * h))
    return found


@parametrize(CRF | {"bregman-converged": CONVERGED})
@pytest.mark.parametrize("pairs", KINDS)
@pytest.mark.parametrize("seed", [0, 1])
def test_derivatives_of_chains_with_removed_arcs(solver: Solver, pairs: Pairs, seed: int) -> None:
    """First derivatives equal the oracle's marginals, second ones the differences of these."""
    chain = removed_chain(pairs, 0.5, seed)
    scores, family = scores_of(chain), "crf" if solver in CRF.values() else "bregman"
    parts = oracles.sentences(chain.unary, chain.transitions, chain.lengths)
    solution = solver(with_scores(chain, scores))
    first = slopes(solution.value, scores)
    if family == "crf":
        tags = [oracles.crf_tag_marginals(*s) for s in parts]
    else:
        tags = [oracles.dual(*s).tag_marginals for s in parts]
    close(first[0], padded(tags, first[0]))
    directions = random_like(scores, seed)
    moves = oracles.sentences(*(*directions, None)[:2], chain.lengths)
    exact = padded(directional(family, parts, moves), first[0])
    second = curvature(solution.value, scores, directions)[0]
    torch.testing.assert_close(second, exact, rtol=1e-6, atol=1e-7)  # what differences reach
    # The derivative of the marginals is the same matrix, transposed.
    weights = random_like([chain.unary], seed + 1)[0]
    by_scores = slopes((solution.tag_marginals * weights), scores)
    along = sum((g * v).sum() for g, v in zip(by_scores, directions, strict=True))
    torch.testing.assert_close(along, (exact * weights).sum(), rtol=1e-6, atol=1e-6)


# (c) Tags without a path


@every_structured
@pytest.mark.parametrize(
    ("side", "pairs"), [("unreachable", "shared"), ("dead end", "shared"), ("dead end", "per_pair")]
)
def test_a_tag_without_a_path_is_removed(solver: Solver, side: str, pairs: Pairs) -> None:
    """A tag without incoming (or outgoing) arcs equals a removed tag, except at a sentence's start
    (or end)."""
    full = ragged_chain(3, LENGTHS, 3, n=6, pairs=pairs)
    assert full.transitions is not None
    transitions = full.transitions.clone()
    last = full.mask & ~torch.nn.functional.pad(full.mask, (0, 1))[:, 1:]
    allowed = torch.ones_like(full.unary, dtype=torch.bool)
    if side == "unreachable":
        transitions[..., 0] = -math.inf
        allowed[:, 1:, 0] = False
    else:
        transitions[..., 0, :] = -math.inf
        allowed[..., 0] = last
    chain = LinearChain(full.unary, transitions, full.lengths)
    explicit = chain.restrict(allowed)
    gold = gold_of(explicit)
    rest = gold, allowed_with(chain, gold), random_like([chain.unary], 1)[0]
    directions = random_like(scores_of(chain))
    found = everything(solver, chain, *rest, directions)
    expected = everything(solver, explicit, *rest, directions)
    close(found, expected)
    assert (found["marginals"][0][~allowed] == 0).all()
    close(bcrf.viterbi(chain)[1], bcrf.viterbi(explicit)[1])
    for function in (bcrf.entropy, lambda c: bcrf.viterbi(c)[0], lambda c: bcrf.k_best(c, 4)[0]):
        close(function(chain), function(explicit))


# (d) Gradients at removed entries


@every_solver
@pairwise_kinds
def test_removed_entries_have_no_gradient(solver: Solver, pairs: Pairs) -> None:
    chain = removed_chain(pairs, 0.6, 1)
    gold = gold_of(chain)
    scores = scores_of(chain)
    rest = gold, allowed_with(chain, gold), random_like([chain.unary], 1)[0]
    found = everything(solver, chain, *rest, random_like(scores))
    dead = [x == -math.inf for x in scores]
    assert all(x.any() for x in dead)
    for name, group in found.items():
        for x in group:
            assert x.isfinite().all(), name
        if name != "numbers":
            assert (group[0][dead[0]] == 0).all(), name
            if name != "marginals":
                assert (group[1][dead[1]] == 0).all(), name
            elif solver not in FACTORIZED.values():
                gone = dead[1].expand_as(group[1])
                assert (group[1][gone] == 0).all(), name


@pairwise_kinds
def test_functions_of_a_chain_have_no_gradient_at_removed_entries(pairs: Pairs) -> None:
    chain = removed_chain(pairs, 0.5, 2)
    scores = scores_of(chain)
    problem = with_scores(chain, scores)
    best = bcrf.k_best(problem, 3)[0]
    outputs = {
        "entropy": bcrf.entropy(problem),
        "kl": bcrf.kl(problem, problem.detach() / 2),
        "reverse kl": bcrf.kl(problem.detach() / 2, problem),
        "viterbi": bcrf.viterbi(problem)[0],
        "certified": bcrf.certified_decode(problem).score,
        "k best": best[best > -math.inf],
        "as_chain": bcrf.entropy(bcrf.ForwardBackward()(problem).as_chain()),
    }
    for name, x in outputs.items():
        first = slopes(x, scores)
        for g, score in zip(first, scores, strict=True):
            assert g.isfinite().all(), name
            assert (g[score == -math.inf] == 0).all(), name
        assert any((g != 0).any() for g in first), name
    for name in ("entropy", "kl", "reverse kl"):
        for g in curvature(outputs[name], scores, random_like(scores)):
            assert g.isfinite().all(), name
    close(slopes(outputs["as_chain"], scores), slopes(outputs["entropy"], scores))


# (e) No path left

CALLS: dict[str, Callable[[LinearChain], object]] = {
    "viterbi": bcrf.viterbi,
    "viterbi-naive": lambda chain: bcrf.viterbi(chain, backend="naive"),
    "k_best": lambda chain: bcrf.k_best(chain, 2),
    "sample": lambda chain: bcrf.sample(chain, 2),
    "entropy": bcrf.entropy,
    "kl": lambda chain: bcrf.kl(chain / 2, chain),
    "certified_decode": bcrf.certified_decode,
} | {f"solve-{name}": solver for name, solver in STRUCTURED.items()}


def lost(how: str) -> LinearChain:
    """Return three sentences; only the second has no path. The others have -inf beyond their
    lengths."""
    unary = torch.zeros(3, 4, 2, dtype=torch.float64)
    transitions = torch.zeros(3, 3, 2, 2, dtype=torch.float64)
    unary[0, 2:] = -math.inf
    transitions[2, 2] = -math.inf
    if how == "position":
        unary[1, 1] = -math.inf
    elif how == "edge":
        transitions[1, 2] = -math.inf
    else:  # every tag and every edge has something left, but they do not meet
        unary[1, 1, 0] = -math.inf
        transitions[1, 0, :, 1] = -math.inf
    return LinearChain(unary, transitions, [2, 4, 3])


@pytest.mark.parametrize("call", CALLS.values(), ids=list(CALLS))
@pytest.mark.parametrize("how", ["position", "edge", "between"])
def test_no_path_left(call: Callable[[LinearChain], object], how: str) -> None:
    with pytest.raises(ValueError, match=r"\bsentence 1\b.*no path"):
        call(lost(how))
    call(lost(how)[[0, 2]])  # the others are fine


@parametrize(SOLVERS)
@pytest.mark.parametrize("how", ["position", "edge", "between"])
def test_no_path_left_for_a_loss(solver: Solver, how: str) -> None:
    if solver not in FACTORIZED.values() or how == "position":
        everything_allowed = torch.ones(3, 4, 2, dtype=torch.bool)
        with pytest.raises(ValueError, match=r"\bsentence 1\b"):
            bcrf.partial_loss(solver, lost(how), everything_allowed)
        with pytest.raises(ValueError, match=r"\bsentence 1\b"):
            bcrf.decode(solver, lost(how))
    with pytest.raises(ValueError, match=r"\bsentence 1\b"):
        bcrf.loss(solver, lost(how), torch.zeros(3, 4, dtype=torch.int64))


@parametrize(FACTORIZED)
def test_no_tag_left_at_a_position(solver: Solver) -> None:
    with pytest.raises(ValueError, match=r"\bsentence 1\b.*\bposition 1\b"):
        solver(lost("position"))
    assert solver(lost("edge")).value.isfinite().all()


@parametrize(STRUCTURED)
def test_no_path_left_among_the_allowed_tags(solver: Solver) -> None:
    transitions = torch.tensor([[0.0, 0.0], [-math.inf, 0.0]], dtype=torch.float64)
    chain = LinearChain(torch.zeros(2, 2, 2, dtype=torch.float64), transitions)
    allowed = torch.ones(2, 2, 2, dtype=torch.bool)
    allowed[1, 0, 0] = allowed[1, 1, 1] = False  # leaves 1 -> 0
    with pytest.raises(ValueError, match=r"\bsentence 1\b"):
        bcrf.partial_loss(solver, chain, allowed)


# (f) Illegal gold tags


@parametrize(SOLVERS)
@pytest.mark.parametrize(
    ("tags", "where"),
    [
        ([[0, 1, 1], [0, 0, 2], [0, 0, -100]], "sentence 1, position 2"),  # the tag is removed
        ([[0, 1, 1], [0, 0, 0], [1, 0, -100]], "sentence 2, position 1"),  # the arc is removed
        ([[0, 1, 3], [0, 0, 0], [0, 0, -100]], "sentence 0, position 2"),  # there is no such tag
        ([[0, -100, 1], [0, 0, 0], [0, 0, -100]], "sentence 0, position 1"),
    ],
)
def test_illegal_gold_tags_are_named(solver: Solver, tags: list[list[int]], where: str) -> None:
    unary = torch.zeros(3, 3, 3)
    unary[1, 2, 2] = -math.inf
    transitions = torch.zeros(3, 3)
    transitions[1, 0] = -math.inf
    chain = LinearChain(unary, transitions, [3, 3, 2])
    assert bcrf.loss(solver, chain, torch.tensor([[0, 1, 1], [0, 0, 0], [0, 0, -100]])).shape == (
        3,
    )
    with pytest.raises(ValueError, match=where):
        bcrf.loss(solver, chain, torch.tensor(tags))


# (g) Structures, mean field


@pytest.mark.parametrize("types", [(), ("X", "Y")])
def test_every_sequence_of_a_constrained_chain_is_allowed(types: tuple[str, ...]) -> None:
    labels, start, end, follow = bies_follow(types)
    free = ragged_chain(7, (0, 1, 2, 3, 6, 9), len(labels), pairs="shared", scale=2.0)
    chain = free.constrain(Structure.from_labels(labels, "BIES"))

    def legal(tags: Sequence[int]) -> bool:
        pairs = pairwise(tags)
        return not tags or bool(
            start[tags[0]] and end[tags[-1]] and all(follow[a, b] for a, b in pairs)
        )

    draws = bcrf.sample(chain, 200, torch.Generator().manual_seed(0))
    several = bcrf.k_best(chain, 20)
    found = {
        "viterbi": bcrf.viterbi(chain)[1].unsqueeze(1),
        "certified": bcrf.certified_decode(chain).tags.unsqueeze(1),
        "sample": draws.transpose(0, 1),
        "k_best": several[1],
    }
    for name, tags in found.items():
        for b, length in enumerate(chain.lengths.tolist()):
            there = several[0][b] > -math.inf if name == "k_best" else slice(None)
            for path in tags[b][there, :length].tolist():
                assert legal(path), (name, path)
    unconstrained = bcrf.viterbi(free)[1]
    assert not all(legal(t[:k].tolist()) for t, k in zip(unconstrained, chain.lengths, strict=True))
    parts = oracles.sentences(free.unary[:5], free.transitions, free.lengths[:5])
    for value, (unary, pair) in zip(bcrf.ForwardBackward()(chain[:5]).value, parts, strict=True):
        if len(unary) * len(types) > 6:
            continue  # 8 tags: 262,144 paths
        sequences, scores = oracles.paths(unary, pair)
        kept = scores[[legal(path) for path in sequences.tolist()]]
        close(value, np.logaddexp.reduce(kept))


@pytest.mark.parametrize("penalty", [0.0, 3.0, 10.0])
@pairwise_kinds
def test_mean_field_pays_the_penalty_for_removed_transitions(penalty: float, pairs: Pairs) -> None:
    chain, solver = removed_chain(pairs), MeanField(4, penalty)
    assert chain.transitions is not None
    paid = chain.transitions.masked_fill(chain.transitions == -math.inf, -penalty)
    explicit = LinearChain(chain.unary, paid, chain.lengths)
    gold = gold_of(chain)
    rest = gold, allowed_with(chain, gold), random_like([chain.unary], 1)[0]
    directions = [
        v.masked_fill(x == -math.inf, 0.0)
        for v, x in zip(random_like(scores_of(chain)), scores_of(chain), strict=True)
    ]
    found = everything(solver, chain, *rest, directions)
    expected = everything(solver, explicit, *rest, directions)
    for name in expected.keys() - {"numbers", "marginals"}:
        unary, transitions = expected[name]
        expected[name] = unary, transitions.where(chain.transitions > -math.inf, 0.0)
    close(found, expected)
