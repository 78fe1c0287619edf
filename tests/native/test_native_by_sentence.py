"""The compiled CRF that solves several sentences together, one in each lane of its vectors."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from bcrf import LinearChain
from bcrf.kernels import native
from tests.comparing import (
    DTYPES,
    SINGLE,
    any_path,
    assert_same,
    check_answers,
    needs_native,
    problem,
)
from tests.strategies import Pairs
from tests.subjects import alone

pytestmark = needs_native

each_kind = pytest.mark.parametrize("kind", ["shared", "per_pair"])
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)
LANES = {torch.float32: 8, torch.float64: 4}


def solve(chain: LinearChain, gold: Tensor | None, wanted: tuple[bool, bool]) -> dict[str, Tensor]:
    """Return the value or loss of each sentence, and the wanted gradients."""
    found = native.crf(chain.unary, chain.pair_scores, chain.lengths, gold, wanted)
    assert found is not None
    return {k: x for k, x in zip(found._fields, found, strict=True) if x is not None}


def expected(chain: LinearChain, gold: Tensor | None) -> dict[str, Tensor]:
    """Return the same results, computed sentence by sentence in float64."""
    wide = chain.double()
    rows = [
        solve(wide[b], None if gold is None else gold[b : b + 1], (True, True))
        for b in range(len(chain))
    ]
    found = {name: torch.cat([row[name] for row in rows]) for name in rows[0]}
    if chain.shared:
        found["by_shared_pair"] = found["by_pair"].sum(0)
    return found


def check(chain: LinearChain, gold: Tensor | None, wanted: tuple[bool, bool]) -> None:
    found = solve(chain, gold, wanted)
    assert found["value"].dtype == torch.float64
    found["value"] = found["value"].to(chain.unary.dtype)
    whole = expected(chain, gold)
    # These outputs are sums over all edges of a sentence, or of all sentences.
    sums = ("by_pair", "by_shared_pair") if chain.shared else ()
    for names, terms in ((found.keys() - sums, 1), (found.keys() & sums, int(chain.lengths.sum()))):
        some = {name: found[name] for name in names}
        assert_same(some, {name: whole[name] for name in names}, chain, terms)


def by_sentence(found: dict[str, Tensor], sentences: list[int] | Tensor) -> dict[str, Tensor]:
    return {name: x[sentences] for name, x in found.items() if name != "by_shared_pair"}


def identical(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@each_dtype
@each_kind
@pytest.mark.parametrize("num_tags", [*range(1, 20), 24])
def test_tags(num_tags: int, kind: Pairs, dtype: torch.dtype) -> None:
    check_answers(problem(num_tags, [7] * 8, num_tags, kind, dtype))


@each_dtype
@each_kind
@pytest.mark.parametrize("batch", range(1, 20))
def test_batches(batch: int, kind: Pairs, dtype: torch.dtype) -> None:
    chain = problem(batch, [6] * batch, 9, kind, dtype)
    check(chain, any_path(chain), (True, True))
    check(chain, None, (True, True))


@each_dtype
@each_kind
@pytest.mark.parametrize("num_tags", [9, 10, 17])
@pytest.mark.parametrize(
    "lengths",
    [
        [2] * 8,
        [3] * 8,
        [9, 9, 8, 8, 7, 7, 6, 6],
        [12, 1, 12, 0, 12, 12, 11, 10],
        [5, 8, 2, 8, 8, 8, 8, 8, 8, 30, 7, 8, 8, 8, 6, 8, 8, 1, 0],
        [40, 40, 39, 38, 37, 30, 29, 28, 27],
    ],
)
def test_lengths(lengths: list[int], num_tags: int, kind: Pairs, dtype: torch.dtype) -> None:
    chain = problem(1, lengths, num_tags, kind, dtype)
    gold = any_path(chain)
    for wanted in ((True, True), (True, False), (False, True), (False, False)):
        check(chain, gold, wanted)
        check(chain, None, wanted)


@each_dtype
@each_kind
@pytest.mark.parametrize("scale", [1e-3, 3.0, 10.0, 100.0])
def test_scales(scale: float, kind: Pairs, dtype: torch.dtype) -> None:
    check_answers(problem(0, [9] * 9, 9, kind, dtype, scale=scale))


@each_dtype
@each_kind
@pytest.mark.parametrize("height", [19.0, -19.0, 21.0, -21.0, 80.0, -80.0, 1e4, -1e4, -math.inf])
@pytest.mark.parametrize("where", ["unary", "pair", "every unary"])
def test_sentences_out_of_bounds(
    where: str, height: float, kind: Pairs, dtype: torch.dtype
) -> None:
    """A sentence that leaves the fast path does not change the results of the others.

    If the score of a shared transition is out of bounds, all sentences leave it.
    """
    plain = problem(3, [8] * 8, 9, kind, dtype)
    unary, pair = plain.unary.clone(), plain.pair_scores.clone()
    if where == "unary":
        unary[2, 3, 4] = height
    elif where == "every unary":
        unary[2, 3] = max(height, -1e4)
    else:
        pair[(4, 5) if kind == "shared" else (2, 3, 4, 5)] = height
    chain = LinearChain(unary, pair, plain.lengths)
    gold = any_path(plain)
    gold[2, 3] = 0
    if where == "pair" and kind == "shared" and height == -math.inf:
        gold[:] = 0
    check(chain, gold, (True, True))
    if where == "pair" and kind == "shared":
        return
    one, other = (solve(c, gold, (True, True)) for c in (chain, plain))
    others = [b for b in range(8) if b != 2]
    assert identical(by_sentence(one, others), by_sentence(other, others))


@each_kind
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_invalid_scores_and_tags_are_reported(bad: float, kind: Pairs) -> None:
    chain = problem(3, [8] * 8, 9, kind)
    gold = any_path(chain)
    for name in ("unary", "pair"):
        unary, pair = chain.unary.clone(), chain.pair_scores.clone()
        (unary if name == "unary" else pair)[5, 2] = bad
        assert native.crf(unary, pair, chain.lengths, gold, (True, True)) is None
        assert native.crf(unary, pair, chain.lengths, None, (False, False)) is None
    for tag in (-1, 9, 2**62):
        wrong = gold.clone()
        wrong[7, 7] = tag
        arrays = (chain.unary, chain.pair_scores, chain.lengths)
        assert native.crf(*arrays, wrong, (True, True)) is None


@each_dtype
@each_kind
def test_what_lies_beyond_a_sentence_is_not_read(kind: Pairs, dtype: torch.dtype) -> None:
    chain = problem(3, [8, 8, 7, 8, 6, 8, 8, 5], 9, kind, dtype)
    unary, pair = chain.unary.clone(), chain.pair_scores.clone()
    unary[~chain.mask] = math.nan
    if kind == "per_pair":
        pair[~chain.mask[:, 1:]] = math.nan
    spoiled = LinearChain._new(unary, pair, chain.lengths, chain.dtype)
    gold = any_path(chain)
    one, other = (solve(c, gold, (True, True)) for c in (spoiled, chain))
    assert identical(one, other)
    assert not one["by_unary"][~chain.mask].any()
    assert kind == "shared" or not one["by_pair"][~chain.mask[:, 1:]].any()


@each_dtype
@each_kind
@pytest.mark.parametrize("num_tags", [9, 12, 17])
@pytest.mark.parametrize("groups", [1, 2, 3, 5])
def test_threads_do_not_matter(
    groups: int, num_tags: int, kind: Pairs, dtype: torch.dtype, threads: Callable[[int], None]
) -> None:
    """The sentences are long enough for several threads; with few groups, two threads share a
    group."""
    chain = problem(4, [101, 97, 90, 88] * (groups * LANES[dtype] // 4), num_tags, kind, dtype)
    gold = any_path(chain)
    for tags, wanted in ((gold, (True, True)), (gold, (False, False)), (None, (False, False))):
        threads(1)
        once = solve(chain, tags, wanted)
        for count in (2, 3, 4, 7):
            threads(count)
            assert identical(solve(chain, tags, wanted), once)


@each_dtype
@each_kind
def test_order_does_not_matter(kind: Pairs, dtype: torch.dtype) -> None:
    chain = problem(5, [12] * 16, 9, kind, dtype)
    gold, order = any_path(chain), torch.randperm(16)
    pairs = chain.pair_scores if kind == "shared" else chain.pair_scores[order]
    moved = LinearChain(chain.unary[order], pairs, chain.lengths[order])
    one, other = solve(chain, gold, (True, True)), solve(moved, gold[order], (True, True))
    assert identical(by_sentence(one, order), other)


@each_kind
def test_groups_are_solved_together(kind: Pairs) -> None:
    """A group adds in another order than a single sentence, so equal bits would mean that no group
    was formed."""
    chain = problem(6, [60] * 8, 9, kind, SINGLE)
    together = solve(chain, None, (True, True))
    single = solve(alone(chain, 0), None, (True, True))
    assert not torch.equal(together["by_pair"][:1], single["by_pair"])
