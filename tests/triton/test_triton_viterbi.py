"""Viterbi decoding by the Triton kernel, and reachable tags, in the interpreter."""

from __future__ import annotations

import math

import pytest
import torch
from torch.testing import assert_close

import bcrf
from bcrf import LinearChain
from bcrf.kernels.folded_chain import fold
from tests import oracles
from tests.strategies import Pairs
from tests.subjects import ragged_chain, scores_of, slopes, with_scores
from tests.triton.support import bies_chain, kernels, needs_triton, strided, with_garbage

pytestmark = needs_triton


@pytest.mark.parametrize(
    ("kind", "num_tags", "removed", "dtype"),
    [
        ("none", 3, 0.0, torch.float64),
        ("shared", 1, 0.0, torch.float64),
        ("shared", 5, 0.4, torch.float32),
        ("shared", 17, 0.0, torch.float32),
        ("per_pair", 1, 0.0, torch.float32),
        ("per_pair", 3, 0.4, torch.float64),
        ("per_pair", 17, 0.3, torch.float64),
    ],
)
def test_best_paths(kind: Pairs, num_tags: int, removed: float, dtype: torch.dtype) -> None:
    chain = ragged_chain(0, [0, 1, 2, 3, 6], num_tags, n=7, pairs=kind, removed=removed).to(dtype)
    tags, score = kernels().viterbi(chain)
    expected_score, expected_tags = bcrf.viterbi(chain.double(), "naive")
    assert score.dtype == torch.float64
    assert_close(score, expected_score, rtol=0, atol=1e-12)
    assert torch.equal(tags, expected_tags)


@pytest.mark.parametrize("kind", ["shared", "per_pair"])
def test_against_enumeration(kind: Pairs) -> None:
    chain = ragged_chain(1, [4, 3], 3, pairs=kind, removed=0.2)
    tags, score = kernels().viterbi(chain)
    for i, sentence in enumerate(oracles.sentences(chain.unary, chain.transitions, chain.lengths)):
        scores, paths = oracles.best_paths(*sentence, 1)
        assert_close(float(score[i]), float(scores[0]))
        assert tags[i, : len(sentence[0])].tolist() == paths[0].tolist()


@pytest.mark.parametrize("kind", ["shared", "per_pair"])
def test_rules(kind: Pairs) -> None:
    chain = bies_chain(kind, [7, 1, 0, 3], torch.float32)
    score, tags = bcrf.viterbi(chain, "triton")
    expected = bcrf.viterbi(chain, "naive")
    assert_close(score, expected[0])
    assert torch.equal(tags, expected[1])


@pytest.mark.parametrize("garbage", [math.nan, math.inf])
@pytest.mark.parametrize("kind", ["shared", "per_pair"])
def test_nothing_beyond_the_length_is_read(kind: Pairs, garbage: float) -> None:
    chain = ragged_chain(1, [0, 1, 2, 4], 3, n=5, pairs=kind)
    found, expected = kernels().viterbi(with_garbage(chain, garbage)), kernels().viterbi(chain)
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)


def test_scores_are_added_in_float64() -> None:
    """In float32, 1 would vanish beside 1e9."""
    unary = torch.tensor([[[1e9, 1e9], [1.0, 0.0], [0.0, 1.0], [-1e9, -1e9]]])
    tags, score = kernels().viterbi(LinearChain(unary))
    assert tags[0, 1:3].tolist() == [0, 1]
    assert score.tolist() == [2.0]


def test_layouts_of_memory() -> None:
    chain = ragged_chain(4, [4, 3], 3, pairs="per_pair")
    other = LinearChain(strided(chain.unary), strided(chain.pair_scores), chain.lengths)
    for one, two in zip(kernels().viterbi(chain), kernels().viterbi(other), strict=True):
        assert torch.equal(one, two)


def test_the_score_is_differentiable() -> None:
    chain = ragged_chain(4, [4, 3], 3, pairs="shared")
    scores = scores_of(chain)
    score, tags = bcrf.viterbi(with_scores(chain, scores), "triton")
    by_unary, _ = slopes(score, scores)
    assert_close(by_unary.argmax(-1).where(chain.mask, -100), tags)


@pytest.mark.parametrize("shape", [(0, 3, 2), (2, 0, 3), (0, 0, 1)])
def test_no_sentences_and_no_positions(shape: tuple[int, int, int]) -> None:
    chain = LinearChain(torch.zeros(shape))
    tags, score = kernels().viterbi(chain)
    assert tags.shape == shape[:2]
    assert score.tolist() == [0.0] * shape[0]


@pytest.mark.parametrize("kind", ["none", "shared", "per_pair"])
@pytest.mark.parametrize("num_tags", [3, 17])
def test_reachable_tags(kind: Pairs, num_tags: int) -> None:
    from bcrf.kernels.triton.arguments import chain_arguments
    from bcrf.kernels.triton.reachability import reachable_tags

    chain = ragged_chain(2, [0, 1, 2, 5], num_tags, n=6, pairs=kind, removed=0.5)
    start, end = reachable_tags(chain_arguments(chain)).bool()
    assert torch.equal(start & end & chain.mask.unsqueeze(-1), fold(chain).live)


@pytest.mark.parametrize("kind", ["shared", "per_pair"])
def test_reachable_tags_of_rules(kind: Pairs) -> None:
    from bcrf.kernels.triton.arguments import chain_arguments
    from bcrf.kernels.triton.reachability import reachable_tags

    chain = bies_chain(kind, [6, 2, 1])
    start, end = reachable_tags(chain_arguments(chain)).bool()
    live = start & end & chain.mask.unsqueeze(-1)
    assert torch.equal(live, fold(chain).live)
    assert not live.all()
