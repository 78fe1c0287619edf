"""Viterbi in windows, and reachable tags, against the whole sentence."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import bcrf
from bcrf.inference import windowed_viterbi
from bcrf.numerics.trimming import live_tags
from bcrf.tagger.prediction.reachable import ReachableTagSets
from tests.strategies import random_chain_arrays


def in_windows(chain: bcrf.LinearChain, cuts: list[int]) -> list[bcrf.LinearChain]:
    """Cut a chain of one sentence into windows; adjacent windows share one position."""
    ends = [0, *cuts, chain.max_length - 1]
    return [
        bcrf.LinearChain(
            chain.unary[:, a : b + 1],
            chain.transitions if chain.shared else chain.transitions[:, a:b],
        )
        for a, b in pairwise(ends)
    ]


@given(
    seed=st.integers(0, 10_000),
    n=st.integers(1, 40),
    tags=st.integers(1, 9),
    kind=st.sampled_from(["none", "shared", "per_pair"]),
    removed=st.sampled_from([0.0, 0.3, 0.6]),
    scale=st.sampled_from([0.0, 1.0, 1e4, 1e30]),
    cuts=st.lists(st.integers(0, 39), max_size=5),
)
def test_windowed_viterbi_is_viterbi(seed, n, tags, kind, removed, scale, cuts):
    arrays = random_chain_arrays(
        seed, 1, n, tags, pairs=kind, removed=removed, scale=scale, ragged=False
    )
    chain = bcrf.LinearChain(arrays.unary.float(), *arrays[1:]).to(torch.float32)
    cuts = sorted(cut for cut in cuts if cut < n)
    expected = bcrf.viterbi(chain, "native")[1] if native() else None
    found = windowed_viterbi(in_windows(chain, cuts), n)
    # In float64: the sum of scores of both signs may be near 0, where float32 has few digits left.
    wide = chain.double()
    best, rounding = float(bcrf.viterbi(wide)[0]), 1e-12 * n * max(scale, 1.0)
    assert float(wide.score(found[None])[0]) == pytest.approx(best, rel=1e-12, abs=rounding)
    if expected is not None:  # the same sums in the same order: ties are broken alike
        assert found.tolist() == expected[0].tolist()


def native() -> bool:
    return bcrf.kernels.backends()["native"] is None


def test_a_long_sentence_keeps_its_digits():
    """In float32, the error of a sum of so many scores around 1000 is 1."""
    torch.manual_seed(0)
    unary = 1000 + torch.randn(1, 20_000, 3)
    windows = [bcrf.LinearChain(unary[:, start : start + 501]) for start in range(0, 19_999, 500)]
    assert torch.equal(windowed_viterbi(windows, 20_000), unary[0].argmax(-1))


def test_many_tags_and_no_path():
    torch.manual_seed(0)
    chain = bcrf.LinearChain(torch.randn(1, 7, 300), torch.randn(300, 300))
    assert torch.equal(windowed_viterbi(in_windows(chain, [3]), 7), bcrf.viterbi(chain)[1][0])
    nothing = bcrf.LinearChain(torch.full((1, 4, 3), -torch.inf))
    with pytest.raises(ValueError, match="the sentence has no path left"):
        windowed_viterbi(in_windows(nothing, [2]), 4)
    with pytest.raises(ValueError, match="nan"):
        windowed_viterbi([bcrf.LinearChain(torch.full((1, 4, 3), torch.nan))], 4)
    with pytest.raises(ValueError, match="the windows have 7 positions, expected length = 8"):
        windowed_viterbi(in_windows(chain, [3]), 8)


@given(seed=st.integers(0, 10_000), n=st.integers(1, 30), tags=st.integers(1, 6))
def test_reachable_tags_are_those_of_the_trim(seed, n, tags):
    generator = torch.Generator().manual_seed(seed)
    nodes = torch.rand(1, n, tags, generator=generator) < 0.7
    follow = torch.rand(tags, tags, generator=generator) < 0.5
    start, end = torch.rand(2, tags, generator=generator) < 0.7
    from_start = ReachableTagSets(start, follow, nodes[0].split(4))
    from_end = ReachableTagSets(end, follow.T, nodes[0].flip(0).split(4))
    nodes[:, 0] &= start
    nodes[:, -1] &= end
    live = live_tags(nodes, follow, torch.tensor([n]))[0]
    for i in range(n):
        assert torch.equal(from_start[i] & from_end[n - 1 - i], live[i])
