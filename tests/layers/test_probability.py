"""Probabilities of tags, spans and sequences, against enumeration.

The distribution is written out in full: exp(score) for the CRF, the product of marginals for mean
field and softmax, and for Bregman the Markov chain of the arc marginals that the oracle finds.
"""

import itertools
import math

import numpy as np
import pytest
import torch
from torch import Tensor

import bcrf
from bcrf import ChainLayer, Structure
from bcrf.layers.probabilities import span_probabilities
from tests import oracles
from tests.layer_cases import (
    HOLES,
    LAYERS,
    T,
    bio,
    close,
    make,
    random_emissions,
    random_tags,
    sentences,
)
from tests.layers.test_constraints import constrained

KEEP = HOLES[:, :6]
B, N = KEEP.shape
each_layer = pytest.mark.parametrize("name", LAYERS)
each_rule = pytest.mark.parametrize("rules", [None, bio()[1]], ids=["free", "bio"])
Joint = dict[tuple[int, ...], float]


def joint(name: str, unary: np.ndarray, pair: np.ndarray, solver: bcrf.Solver) -> Joint:
    """Return the probability of every tag sequence of one sentence."""
    n, num_tags = unary.shape
    every = list(itertools.product(range(num_tags), repeat=n))
    if name == "exact":
        weights = [math.exp(oracles.path_scores(unary, pair, np.array([y]))[0]) for y in every]
        total = sum(weights)
        return {y: w / total for y, w in zip(every, weights, strict=True)}
    if name == "bregman":
        solution = oracles.dual(unary, pair)
        p, q = solution.tag_marginals, solution.edge_marginals
    else:
        if name == "mean field":
            finite = np.where(np.isfinite(pair), pair, -2.0)  # what mean field makes of it
            p = oracles.mean_field(unary, finite, solver.iterations)  # type: ignore[attr-defined]
        else:
            p = np.exp(unary) / np.exp(unary).sum(1, keepdims=True)
        q = p[:-1, :, None] * p[1:, None, :]
    found = {}
    for y in every:
        value = float(p[0, y[0]]) if n else 1.0
        for e in range(n - 1):
            value *= float(q[e, y[e], y[e + 1]] / p[e, y[e]]) if p[e, y[e]] else 0.0
        found[y] = value
    return found


class LayerCase:
    """A layer, a batch, and the distribution of each of its sentences."""

    def __init__(self, name: str, rules: Structure | None) -> None:
        self.layer: ChainLayer = make(name, constraints=rules)
        self.emissions = random_emissions(B, N)
        self.index: list[list[int]] = []
        self.joint: list[Joint] = []
        for one in sentences(self.layer, self.emissions, KEEP):
            chain = one.chain if rules is None else constrained(self.layer, one.chain, None)
            arrays = oracles.sentence(chain.unary[0], chain.pair_scores)
            self.index.append(one.index)
            self.joint.append(joint(name, *arrays, self.layer.solver))
        for one in self.joint:
            assert sum(one.values()) == pytest.approx(1, abs=1e-9)


@pytest.fixture(scope="module")
def cases() -> dict[tuple[str, bool], LayerCase]:
    return {
        (name, rules is not None): LayerCase(name, rules)
        for name in LAYERS
        for rules in (None, bio()[1])
    }


Cases = dict[tuple[str, bool], LayerCase]


@each_layer
@each_rule
def test_marginals(cases: Cases, name: str, rules: Structure | None) -> None:
    case = cases[name, rules is not None]
    found = case.layer.marginals(case.emissions, KEEP)
    expected = torch.zeros(B, N, T, dtype=torch.float64)
    for row, (index, sequences) in enumerate(zip(case.index, case.joint, strict=True)):
        for y, p in sequences.items():
            for i, tag in zip(index, y, strict=True):
                expected[row, i, tag] += p
    close(found, expected, 1e-7)
    probabilities, tags = case.layer.top_tags(case.emissions, 2, KEEP)
    order = expected.sort(-1, descending=True)
    close(probabilities, order.values[..., :2], 1e-7)
    assert torch.equal(tags, torch.where(order.values > 1e-12, order.indices, -100)[..., :2])


@each_layer
@each_rule
def test_sequences(cases: Cases, name: str, rules: Structure | None) -> None:
    case = cases[name, rules is not None]
    for seed in range(4):
        tags = random_tags(B, N, seed=seed)
        found = case.layer.sequence_probability(case.emissions, tags, KEEP)
        logs = case.layer.sequence_probability(case.emissions, tags, KEEP, log=True)
        for row, (index, sequences) in enumerate(zip(case.index, case.joint, strict=True)):
            expected = sequences[tuple(tags[row, index].tolist())]
            assert float(found[row].detach()) == pytest.approx(expected, abs=1e-7)
            if expected > 1e-12:
                assert float(logs[row].detach()) == pytest.approx(math.log(expected), abs=1e-5)
            else:
                assert logs[row] < -20
    if name == "exact":  # it is the likelihood
        tags = case.layer.decode_tensor(case.emissions, KEEP)
        losses = case.layer.nll(case.emissions, tags, KEEP, "none")
        logs = case.layer.sequence_probability(case.emissions, tags, KEEP, log=True)
        close(logs, -losses)


def span_probability(case: LayerCase, row: int, position: int, sets: list[set[int]]) -> float:
    first = case.index[row].index(position)
    total = 0.0
    for y, p in case.joint[row].items():
        if all(y[first + k] in chosen for k, chosen in enumerate(sets)):
            total += p
    return total


@each_layer
@each_rule
def test_spans(cases: Cases, name: str, rules: Structure | None) -> None:
    """All spans of all sentences; each position has a tag or a set of tags."""
    case = cases[name, rules is not None]
    generator = np.random.default_rng(0)
    spans, expected = [], []
    for row, index in enumerate(case.index):
        for first in range(len(index)):
            for length in range(1, len(index) - first + 1):
                tags: list[object] = [int(t) for t in generator.integers(T, size=length)]
                if length > 1:
                    tags[-1] = {0, 2}
                spans.append((row, index[first], tags))
                sets = [{t} if isinstance(t, int) else set(t) for t in tags]  # type: ignore[call-overload]
                expected.append(span_probability(case, row, index[first], sets))
    found = case.layer.span_probability(case.emissions, spans, KEEP)  # type: ignore[arg-type]
    close(found, torch.tensor(expected, dtype=torch.float64), 1e-7)


def test_a_mention_is_a_span_that_ends() -> None:
    layer = make("exact", constraints=bio()[1])
    emissions = random_emissions(1, 5)
    mention, goes_on = (
        layer.span_probability(emissions, [(0, 1, [1, 2, last])]) for last in ({0, 1}, 2)
    )
    close(mention + goes_on, layer.span_probability(emissions, [(0, 1, [1, 2])]))
    assert layer.span_probability(emissions, []).shape == (0,)


def test_a_mention_of_a_sentence_of_one_word() -> None:
    """The sets of a mention go on to the next word, which no sentence of the batch has."""
    chain = bcrf.LinearChain(torch.randn(2, 1, 3, generator=torch.Generator().manual_seed(0)))
    sets = torch.tensor([[[False, True, False], [True, True, False]]])
    found = span_probabilities(chain, sets, torch.tensor([1]), torch.tensor([0]))
    torch.testing.assert_close(found, chain.unary[1, 0].softmax(-1)[1:2])


@each_layer
@each_rule
def test_k_best(cases: Cases, name: str, rules: Structure | None) -> None:
    case = cases[name, rules is not None]
    k = 5
    scores, tags = case.layer.k_best(case.emissions, k, KEEP)
    assert scores.shape == (B, k)
    assert tags.shape == (B, k, N)
    for row, (index, sequences) in enumerate(zip(case.index, case.joint, strict=True)):
        best = sorted((p for p in sequences.values() if p > 1e-12), reverse=True)[:k]
        for rank in range(k):
            y = tags[row, rank]
            if rank < len(best):
                p = math.exp(float(scores[row, rank].detach()))
                assert p == pytest.approx(best[rank], abs=1e-7)
                assert p == pytest.approx(sequences[tuple(y[index].tolist())], abs=1e-7)
                assert (y[~KEEP[row]] == -100).all()
            elif name != "softmax" or rules is None:
                assert scores[row, rank] < -20
        assert len({tuple(y.tolist()) for y in tags[row, : len(best)]}) == len(best)


@each_layer
@each_rule
def test_samples(cases: Cases, name: str, rules: Structure | None) -> None:
    case = cases[name, rules is not None]
    draws = 4000
    found = case.layer.sample(
        case.emissions, draws, KEEP, generator=torch.Generator().manual_seed(0)
    )
    assert found.shape == (draws, B, N)
    assert (found[:, ~KEEP] == -100).all()
    for row, (index, sequences) in enumerate(zip(case.index, case.joint, strict=True)):
        counts: dict[tuple[int, ...], int] = {}
        for y in found[:, row, index].tolist():
            counts[tuple(y)] = counts.get(tuple(y), 0) + 1
        for y, p in sequences.items():
            difference = abs(counts.get(y, 0) - draws * p)
            assert difference <= 5 * math.sqrt(draws * p * (1 - p)) + 3
            assert p > 1e-12 or y not in counts


@each_layer
def test_all_numbers_belong_to_one_distribution(name: str) -> None:
    """Probabilities of tags, spans and sequences agree with the default number of iterations."""
    layer, emissions = make(name), 2 * random_emissions(2, 4, seed=5)
    every = list(itertools.product(range(T), repeat=4))
    tags = torch.tensor(every)
    rows = [layer.sequence_probability(e.expand(len(every), 4, T), tags) for e in emissions]
    marginals = layer.marginals(emissions)
    logs, best = layer.k_best(emissions, len(every))
    for row, p in enumerate(rows):
        close(p.sum(), torch.ones((), dtype=torch.float64), 1e-7)
        close(p.sort(descending=True).values, torch.exp(logs[row]), 1e-7)
        for i in range(4):
            sums = torch.stack([p[tags[:, i] == tag].sum() for tag in range(T)])
            close(sums, marginals[row, i], 1e-7)
            spans = layer.span_probability(emissions, [(row, i, [tag]) for tag in range(T)])
            close(spans, marginals[row, i], 1e-7)
    assert best.shape == (2, len(every), 4)


def test_a_few_projections_are_approximate() -> None:
    layer, emissions = bcrf.BregmanCRF(T, 2).double(), 3 * random_emissions(4, 9)
    with torch.no_grad():
        assert layer.transitions is not None
        layer.transitions.normal_(std=2, generator=torch.Generator().manual_seed(0))
    quick = layer.marginals(emissions, converge=False)
    close(quick, layer.solver(layer.chain(emissions)).tag_marginals)
    true = layer.marginals(emissions)
    assert (quick - true).abs().max() > 1e-4
    close(
        true,
        layer.span_probability(
            emissions, [(b, i, [t]) for b in range(4) for i in range(9) for t in range(T)]
        ).view(4, 9, T),
        1e-7,
    )


def test_marginals_that_do_not_converge_are_reported() -> None:
    """Transitions strongly prefer equal tags, but the two ends of a long sentence prefer different
    tags."""
    emissions = torch.zeros(1, 600, 2, dtype=torch.float64)
    emissions[0, 0, 0] = emissions[0, -1, 1] = 300.0
    layer = bcrf.BregmanCRF(2, start_end=False).double()
    with torch.no_grad():
        assert layer.transitions is not None
        layer.transitions.copy_(torch.tensor([[40.0, 0.0], [0.0, 40.0]]))
    with pytest.warns(RuntimeWarning, match="sentence 0: marginals are inexact"):
        layer.marginals(emissions)


@each_layer
def test_probabilities_have_gradients(name: str) -> None:
    layer = make(name)
    emissions = random_emissions(2, 3).requires_grad_()
    tags = random_tags(2, 3)
    inputs = [emissions, *layer.parameters()]

    def functions(*given: Tensor) -> tuple[Tensor, ...]:
        assert given
        return (
            layer.marginals(given[0]),
            layer.sequence_probability(given[0], tags),
            layer.span_probability(given[0], [(0, 1, [0, 1])]),
        )

    assert torch.autograd.gradcheck(functions, inputs, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize(
    ("spans", "words"),
    [
        ([(0, 0, [0]), (3, 0, [0])], r"spans\[1\]: sentence 3 is not in 0\.\.1"),
        ([(1, 0, [0])], r"spans\[0\]: sentence 1 keeps no position 0"),
        ([(0, 3, [0])], r"spans\[0\]: sentence 0 keeps no position 3"),
        ([(0, -1, [0])], r"spans\[0\]: sentence 0 keeps no position -1"),
        ([(1, 2, [0, 0])], r"spans\[0\]: 2 tags; sentence 1 has 1 positions from position 2 on"),
        ([(0, 0, [])], r"spans\[0\]: 0 tags; sentence 0 has 3 positions from position 0 on"),
        ([(0, 0, [3])], r"spans\[0\]: tag 3 is not in 0\.\.2"),
        ([(0, 0, [{0, -1}])], r"spans\[0\]: tag -1 is not in 0\.\.2"),
        ([(0, 0, [torch.tensor(7)])], r"spans\[0\]: tag 7 is not in 0\.\.2"),
        ([(0, 0, [np.int64(7)])], r"spans\[0\]: tag 7 is not in 0\.\.2"),
    ],
)
@pytest.mark.parametrize("masked", [True, False])
def test_spans_that_make_no_sense(spans: list[object], words: str, masked: bool) -> None:
    mask = torch.tensor([[1, 1, 1], [0, 1, 1]])
    if not masked:
        if "sentence 1 keeps" in words:
            return
        mask = torch.ones(2, 3)
    with pytest.raises(ValueError, match=words):
        make("exact").span_probability(random_emissions(2, 3), spans, mask)  # type: ignore[arg-type]


def test_other_arguments_that_make_no_sense() -> None:
    layer, emissions = make("exact"), random_emissions(2, 3)
    with pytest.raises(ValueError, match="k must be at most the number of tags, 3, got 4"):
        layer.top_tags(emissions, 4)
    with pytest.raises(ValueError, match="k must be at least 1"):
        layer.k_best(emissions, 0)
    with pytest.raises(ValueError, match="num_samples must be at least 0"):
        layer.sample(emissions, -1)
