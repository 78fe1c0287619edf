"""The CRF of the Triton kernels in the interpreter, against the naive backend and enumeration."""

from __future__ import annotations

import importlib
import math

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import bcrf
from bcrf import ForwardBackward, LinearChain
from measurement.launches import LaunchCounter
from tests import oracles
from tests.comparing import SINGLE, answers, any_path, assert_same
from tests.strategies import Pairs
from tests.subjects import (
    alone,
    curvature,
    gold_of,
    ragged_chain,
    random_like,
    scores_of,
    with_scores,
)
from tests.triton.support import bies_chain, kernels, needs_triton, strided, with_garbage

pytestmark = needs_triton

TRITON = ForwardBackward(backend="triton")
NAIVE = ForwardBackward(backend="naive")
each_kind = pytest.mark.parametrize("kind", ["shared", "per_pair"])


@pytest.mark.parametrize(
    ("kind", "num_tags", "removed", "dtype"),
    [
        ("none", 3, 0.0, torch.float64),
        ("shared", 1, 0.0, torch.float64),
        ("shared", 5, 0.4, torch.float64),
        ("shared", 17, 0.0, torch.float32),
        ("per_pair", 3, 0.4, torch.float32),
        ("per_pair", 17, 0.3, torch.float64),
    ],
)
def test_every_output(kind: Pairs, num_tags: int, removed: float, dtype: torch.dtype) -> None:
    """Values, losses, partial losses, marginals and gradients, with and without padding."""
    lengths = [0, 1, 2, 4] if num_tags < 17 else [3, 1]
    chain = ragged_chain(0, lengths, num_tags, n=5, pairs=kind, removed=removed).to(dtype)
    gold = any_path(chain)
    found = answers(chain, gold, {"crf": TRITON})
    assert_same(found, answers(chain.double(), gold, {"crf": NAIVE}), chain)


@each_kind
def test_against_enumeration(kind: Pairs) -> None:
    chain = ragged_chain(1, [4, 3], 3, pairs=kind, removed=0.2)
    found = kernels().crf(chain, None, (True, True), every_edge=True)
    for i, sentence in enumerate(oracles.sentences(chain.unary, chain.transitions, chain.lengths)):
        length = len(sentence[0])
        expected = (
            np.asarray(oracles.log_partition(*sentence)),
            oracles.crf_tag_marginals(*sentence),
            oracles.crf_edge_marginals(*sentence),
        )
        actual = (found.value[i], found.by_unary[i, :length], found.by_pair[i, : length - 1])
        for one, other in zip(actual, expected, strict=True):
            assert_close(one, torch.from_numpy(other), rtol=0, atol=1e-12)


@each_kind
def test_rules_and_start_end_scores(kind: Pairs) -> None:
    """The kernels add the start and end scores, and apply the rules to one matrix per edge."""
    chain = bies_chain(kind, [5, 1, 0, 2])
    start_end = torch.randn(8, dtype=torch.float64)
    whole = chain._add_start_end(start_end)
    gold = gold_of(whole)
    scores = scores_of(whole)
    expected = NAIVE.loss(with_scores(whole, scores), gold)
    by_unary, by_pair = torch.autograd.grad(expected.sum(), scores)
    found = kernels().crf(chain, gold, (True, True), start_end=start_end)
    assert_close(found.value, expected.detach())
    assert_close(found.by_unary, by_unary)
    total = found.by_pair.sum(0) if kind == "shared" else found.by_pair
    assert_close(total, by_pair)
    value = kernels().crf(chain, start_end=start_end)
    assert_close(value.value, NAIVE(whole).value)
    assert value[1:] == (None, None, None)


@pytest.mark.parametrize("tau", [0.1, 0.01])
@each_kind
def test_low_temperatures(kind: Pairs, tau: float) -> None:
    """Scores whose exponentials overflow and underflow."""
    chain = ragged_chain(2, [6, 3], 5, pairs=kind, scale=4.0, removed=0.2).to(SINGLE) / tau
    gold = any_path(chain)
    exact = chain.double()
    found = kernels().crf(chain, gold, (True, True), every_edge=True)
    marginals = kernels().crf(chain, None, (True, True), every_edge=True)
    expected = NAIVE(exact)
    assert_close(found.value, NAIVE.loss(exact, gold), rtol=1e-5, atol=1e-2)
    assert_close(marginals.value, expected.value, rtol=1e-6, atol=0)
    error = 1e-6 * float(chain.unary[chain.unary > -math.inf].abs().max()) * 10
    assert_close(marginals.by_unary.double(), expected.tag_marginals, rtol=0, atol=error)
    assert_close(marginals.by_pair.double(), expected.edge_marginals, rtol=0, atol=error)
    assert_close(found.by_unary.sum(-1), torch.zeros(2, 6), rtol=0, atol=1e-5)


@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_losses_are_never_negative(scale: float) -> None:
    chain = ragged_chain(5, [9, 8, 7, 6], 3, pairs="shared", scale=scale).to(SINGLE)
    for gold in (bcrf.viterbi(chain, "naive")[1], gold_of(chain)):
        loss = kernels().crf(chain, gold).value
        assert (loss >= 0).all()
        assert_close(loss, NAIVE.loss(chain.double(), gold), rtol=1e-5, atol=scale * 1e-5)


@pytest.mark.parametrize("garbage", [math.nan, math.inf])
@each_kind
def test_nothing_beyond_the_length_is_read(kind: Pairs, garbage: float) -> None:
    chain = ragged_chain(1, [0, 1, 2, 4], 3, n=5, pairs=kind)
    gold = gold_of(chain)
    found = kernels().crf(with_garbage(chain, garbage), gold.clamp(min=0) + 99 * (gold < 0), (1, 1))
    expected = kernels().crf(chain, gold, (True, True))
    for one, other in zip(found[:3], expected[:3], strict=True):
        assert torch.equal(one, other)
    assert (found.by_unary[~chain.mask] == 0).all()
    if kind == "per_pair":
        assert (found.by_pair[~chain.mask[:, 1:]] == 0).all()


def test_layouts_of_memory() -> None:
    chain = ragged_chain(4, [4, 3], 3, pairs="per_pair")
    shared = ragged_chain(4, [4, 3], 3, pairs="shared")
    repeated = shared.pair_scores.expand(2, 3, 3, 3)
    for one, other in (
        (chain, LinearChain(strided(chain.unary), strided(chain.pair_scores), chain.lengths)),
        (shared, LinearChain(strided(shared.unary), strided(shared.pair_scores), shared.lengths)),
        (shared, LinearChain(shared.unary, repeated, shared.lengths)),
        (shared, LinearChain(shared.unary[:, :3].repeat(1, 2, 1)[:, :4], repeated, [3, 3])[:0]),
    ):
        count = len(other)
        found = kernels().crf(other, None, (True, True), every_edge=True)
        expected = kernels().crf(one, None, (True, True), every_edge=True)
        for x, y in zip(found[:3], expected[:3], strict=True):
            assert torch.equal(x, y[:count])


def test_sums_of_many_chunks_and_single_sentences() -> None:
    """A batch equals its sentences to the last bit, and every run equals the first."""
    chain = ragged_chain(6, [19, 17], 3, pairs="shared")
    gold = gold_of(chain)
    found, again = (kernels().crf(chain, gold, (True, True)) for _ in range(2))
    scores = scores_of(chain)
    expected = NAIVE.loss(with_scores(chain, scores), gold)
    by_unary, by_pair = torch.autograd.grad(expected.sum(), scores)
    assert_close(found.by_unary, by_unary)
    assert_close(found.by_pair.sum(0), by_pair)
    for one, other in zip(found[:3], again[:3], strict=True):
        assert torch.equal(one, other)
    single = kernels().crf(alone(chain, 1), gold[1:, :17], (True, True))
    assert torch.equal(single.value[0], found.value[1])
    assert torch.equal(single.by_unary[0], found.by_unary[1, :17])
    assert torch.equal(single.by_pair[0], found.by_pair[1])


@each_kind
def test_second_derivatives(kind: Pairs) -> None:
    chain = ragged_chain(7, [4, 2, 1], 3, pairs=kind, removed=0.2)
    gold = gold_of(chain)
    found, expected = [], []
    for solver, results in ((TRITON, found), (NAIVE, expected)):
        scores = scores_of(chain)
        loss = bcrf.loss(solver, with_scores(chain, scores), gold)
        results += curvature(loss, scores, random_like(scores))
    for one, other in zip(found, expected, strict=True):
        assert_close(one, other)


def test_a_second_backward_pass() -> None:
    chain = ragged_chain(7, [3, 2], 3, pairs="shared")
    gold = gold_of(chain)
    scores = scores_of(chain)
    loss = bcrf.loss(TRITON, with_scores(chain, scores), gold).sum()
    first = torch.autograd.grad(loss, scores, retain_graph=True)
    second = torch.autograd.grad(loss, scores)
    for one, other in zip(first, second, strict=True):
        assert torch.equal(one, other)


def test_a_layer() -> None:
    torch.manual_seed(0)
    emissions, tags = torch.randn(2, 4, 3), torch.randint(3, (2, 4))
    mask = torch.tensor([[True] * 4, [True, True, False, False]])
    results = []
    for backend in ("triton", "naive"):
        torch.manual_seed(1)
        layer = bcrf.ChainLayer(3, ForwardBackward(backend=backend))
        emissions.requires_grad_()
        loss = layer.loss(emissions, tags, mask)
        results.append((loss, *torch.autograd.grad(loss.sum(), [emissions, *layer.parameters()])))
    assert_close(*results)


def test_sentences_without_a_path() -> None:
    """The kernels check nothing: the value is -inf, a loss is inf, and there is no NaN."""
    unary = torch.zeros(2, 3, 2)
    unary[0, 1] = -math.inf
    chain = LinearChain(unary, torch.zeros(2, 2))
    found = kernels().crf(chain, None, (True, True), every_edge=True)
    assert found.value[0] == -math.inf
    assert_close(found.value[1], torch.tensor(3 * math.log(2), dtype=torch.float64))
    assert not found.by_unary.isnan().any()
    assert (found.by_pair[0] == 0).all()
    gold = torch.tensor([[0, 0, 0], [0, 5, 0]])  # no tag 5: no path either
    assert kernels().crf(chain, gold).value.tolist() == [math.inf, math.inf]


def test_checks_name_the_sentence() -> None:
    chain = ragged_chain(7, [3, 2], 3, pairs="shared")
    unary = chain.unary.clone()
    unary[1, 1, 1] = math.nan
    with pytest.raises(ValueError, match="sentence 1"):
        TRITON(LinearChain(unary, chain.transitions, chain.lengths))


@pytest.mark.parametrize(
    ("kind", "with_tags", "wanted", "kernels_launched"),
    [
        ("shared", True, (False, False), 1),
        ("per_pair", False, (False, False), 1),
        ("shared", True, (True, True), 2),  # and one torch operation adds the chunks
        ("per_pair", True, (True, True), 2),
    ],
)
def test_launches(
    kind: Pairs,
    with_tags: bool,
    wanted: tuple[bool, bool],
    kernels_launched: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = importlib.import_module("bcrf.kernels.triton.crf")
    launched: list[object] = []
    monkeypatch.setattr(module, "launch", lambda kernel, *rest, **options: launched.append(kernel))
    chain = ragged_chain(6, [19, 17], 3, pairs=kind).to(SINGLE)
    gold = torch.zeros(2, 19, dtype=torch.int64) if with_tags else None
    with LaunchCounter() as counter:
        module.crf(chain, gold, wanted)
    assert len(launched) == kernels_launched
    assert counter.launches == (kind == "shared" and wanted[1])
