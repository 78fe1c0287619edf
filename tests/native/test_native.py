"""The compiled kernels: the numbers of torch in float64, of the oracles, and always the same ones.

The common battery (`subjects`) runs them too, on small problems in float64; here are the sizes,
scales, layouts and settings at which compiled code takes other turns.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import bcrf
from bcrf import Bregman, ForwardBackward, LinearChain, Structure
from bcrf.kernels import native
from bcrf.kernels.results import ProjectionSettings
from tests import oracles
from tests.comparing import (
    DOUBLE,
    DTYPES,
    SINGLE,
    allowance,
    answers,
    any_path,
    assert_same,
    check_answers,
    check_decoders,
    check_dual,
    needs_native,
    problem,
    solvers,
)
from tests.strategies import Pairs, bies_follow
from tests.subjects import KINDS, allowed_with, alone, row

pytestmark = needs_native

RAGGED = [16, 15, 9, 8, 3, 2, 1, 0]
SIZES = [1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 24, 25, 32, 33, 40, 41, 63, 64, 65, 70]
"""Whole and broken vectors, with and without unrolled loops, one and two words of bits."""

each_kind = pytest.mark.parametrize("kind", KINDS)
given_kind = pytest.mark.parametrize("kind", ["shared", "per_pair"])
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def instruction_sets() -> list[str]:
    return native._native.instruction_sets() if native.UNAVAILABLE is None else []


@pytest.fixture
def use_instruction_set() -> Iterator[Callable[[str], None]]:
    before = native._native.instruction_set()
    yield native._native.use_instruction_set
    native._native.use_instruction_set(before)


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


# Against torch, in float64


@each_dtype
@given_kind
@pytest.mark.parametrize("num_tags", SIZES)
def test_sizes(num_tags: int, kind: Pairs, dtype: torch.dtype) -> None:
    removed = 0.5 if num_tags % 2 else 0.0
    chain = problem(num_tags, RAGGED, num_tags, kind, dtype, removed)
    check_answers(chain)
    check_dual(chain, Bregman(backend="native"))
    check_decoders(chain)


@each_kind
@pytest.mark.parametrize("n", [0, 1, 2, 3, 4, 5, 31, 32, 33, 64, 65])
def test_lengths(n: int, kind: Pairs) -> None:
    for lengths in ([n, n], [n, n // 2, n - n // 3, min(n, 1), 0]):
        chain = problem(n, lengths, 4, kind, removed=0.3)
        check_answers(chain, slack=4)
        check_decoders(chain)


@each_dtype
@given_kind
@pytest.mark.parametrize("removed", [0.0, 0.5])
@pytest.mark.parametrize("scale", [10.0, 100.0, 1e4])
def test_scales(scale: float, removed: float, kind: Pairs, dtype: torch.dtype) -> None:
    """Scores out of range in float32 are solved in double, and the rest in log space."""
    for seed, num_tags in enumerate((3, 5, 9)):
        chain = problem(seed, RAGGED, num_tags, kind, dtype, removed, scale)
        check_answers(chain)
        check_dual(chain, Bregman(backend="native"))
        check_decoders(chain)


@each_dtype
@given_kind
@pytest.mark.parametrize("height", [60.0, -60.0, 600.0, -600.0, 1e5, -1e5])
def test_outliers(height: float, kind: Pairs, dtype: torch.dtype) -> None:
    """One unary and one transition score are far larger, or smaller, than all others."""
    chain = problem(0, RAGGED, 5, kind, dtype)
    chain.unary[0, 7, 2] = chain.unary[1, 0, 4] = chain.unary[2, 8, 0] = height
    assert chain.transitions is not None
    chain.transitions[(1, 3) if chain.shared else (slice(None), 3, 1, 3)] = height
    check_answers(chain)
    check_decoders(chain)


@each_dtype
@pytest.mark.parametrize("gap", [20.0, 55.0, 100.0, 550.0])
@pytest.mark.parametrize("edges", [(0, 2), (0, 1), (1,), (0, 1, 2)])
def test_an_unused_arc_sets_the_scale(edges: Sequence[int], gap: float, dtype: torch.dtype) -> None:
    """The best arc of an edge joins removed tags, and is far above all other arcs."""
    unary = torch.zeros(1, 4, 3, dtype=dtype)
    unary[..., 2] = -math.inf
    transitions = torch.zeros(1, 3, 3, 3, dtype=dtype)
    transitions[0, list(edges), 2, 2] = gap
    chain = LinearChain(unary, transitions)
    check_answers(chain)
    half = torch.tensor([0.5, 0.5, 0.0], dtype=dtype).expand(1, 4, 3)
    for solver in solvers("native").values():
        assert_close(solver(chain).tag_marginals, half)


@each_dtype
@given_kind
@pytest.mark.parametrize("iterations", [0, 1, 2])
def test_sides_that_hardly_overlap(iterations: int, kind: Pairs, dtype: torch.dtype) -> None:
    """After few projections, hardly a tag of a position has incoming and outgoing mass."""
    chain = problem(0, [6] * 300, 3, kind, dtype, scale=50 if dtype == SINGLE else 300)
    found = Bregman(iterations, backend="native")(chain).tag_marginals
    expected = Bregman(iterations, backend="torch")(chain.double()).tag_marginals
    assert_close(found.double(), expected, rtol=0, atol=allowance(chain))


@each_dtype
@each_kind
@pytest.mark.parametrize("value", [0.0, 7.3, -900.0])
def test_ties(value: float, kind: Pairs, dtype: torch.dtype) -> None:
    """If all paths have the same score, each is a best path, and every sentence is certified."""
    chain = problem(0, RAGGED, 6, kind, dtype)
    chain = chain._map(lambda w: torch.full_like(w, value), dtype)
    check_answers(chain)
    assert check_decoders(chain).all()


@each_dtype
@given_kind
@pytest.mark.parametrize("num_tags", [5, 9, 17])
def test_kernel_certifies_whatever_torch_certifies(
    num_tags: int, kind: Pairs, dtype: torch.dtype
) -> None:
    """The kernel skips tests that would fail; it still certifies every sentence that torch
    certifies."""
    both = torch.zeros(2, dtype=torch.bool)
    for seed, scale in enumerate([0.3, 1.0, 4.0, 20.0]):
        chain = problem(seed, [23, 22, 15, 8, 3, 2, 1, 0] * 6, num_tags, kind, dtype, scale=scale)
        found = bcrf.certified_decode(chain, backend="native").certified
        expected = bcrf.certified_decode(chain, backend="torch").certified
        assert bool((found | ~expected).all())
        both |= torch.stack([found.any(), ~found.all()])
    assert both.all()  # the test has seen both cases


def bies(seed: int, scale: float, dtype: torch.dtype) -> LinearChain:
    labels, start, end, follow = bies_follow("ab", outside=True)
    chain = problem(seed, RAGGED, len(labels), "shared", dtype, scale=scale)
    return chain.constrain(Structure(start, end, follow))


@each_dtype
@pytest.mark.parametrize("scale", [1.0, 30.0])
@pytest.mark.parametrize("seed", range(2))
def test_trimming(seed: int, scale: float, dtype: torch.dtype) -> None:
    """Structures and partial labels leave dead tags: tags that are not removed but on no path."""
    structured = bies(seed, scale, dtype)
    labelled = structured.restrict(allowed_with(structured, any_path(structured, seed), seed))
    sparse = problem(seed, RAGGED, 11, "per_pair", dtype, removed=0.85, scale=scale)
    for chain in (structured, labelled, sparse):
        check_answers(chain)
        check_dual(chain, Bregman(backend="native"))
        check_decoders(chain)


@each_dtype
def test_tags_without_transitions(dtype: torch.dtype) -> None:
    """No tag follows tag 2, tag 4 follows no tag, and scores beyond the length are NaN."""
    chain = problem(3, RAGGED, 5, "shared", dtype)
    transitions = chain.pair_scores.clone()
    transitions[2] = transitions[:, 4] = -math.inf
    unary = chain.unary.clone()
    unary[~chain.mask] = -math.inf
    check_answers(LinearChain(unary, transitions, chain.lengths))
    check_decoders(LinearChain(unary, transitions, chain.lengths))
    unary[~chain.mask] = math.nan
    garbage = LinearChain(unary, transitions, chain.lengths)
    assert garbage.unary.isnan().any()
    assert bcrf.viterbi(garbage, "native")[0].isfinite().all()


# Every setting of the projections

SETTINGS = [
    {"first": first, "gauge": gauge, "marginals": marginals}
    for first, gauge, marginals in itertools.product(
        (1, 2), ("half", "right"), ("mean", "outgoing")
    )
]


@given_kind
@pytest.mark.parametrize("iterations", [0, 1, 2, 3, 10, 50])
def test_settings(iterations: int, kind: Pairs) -> None:
    """Float32 and float64 alternate; with a tolerance, both backends must stop at the same step."""
    relaxations = itertools.cycle(["ramp", 1.0, 1.4, 0.7, 1.9])
    for k, rest in enumerate(SETTINGS):
        settings = {"iterations": iterations, "relaxation": next(relaxations), **rest}
        chain = problem(k, RAGGED, 7, kind, DTYPES[k % 2], removed=0.3 * (k % 3 == 0), scale=2)
        gold = any_path(chain)
        subject = Bregman(**settings, backend="native")
        expected = Bregman(**settings, backend="torch")
        # Rounding errors may grow with every overrelaxed step.
        assert_same(
            answers(chain, gold, {"": subject}),
            answers(chain.double(), gold, {"": expected}),
            chain,
            slack=1e3 if settings["relaxation"] == 1.9 else 4,
        )
        check_dual(chain, subject)


@given_kind
@pytest.mark.parametrize("tolerance", [0.0, 1e-12, 1e-3, 0.3])
def test_tolerance(tolerance: float, kind: Pairs) -> None:
    for k, rest in enumerate(SETTINGS[::3]):
        settings = {"iterations": (3, 40)[k % 2], "tolerance": tolerance, **rest}
        check_answers(problem(k, RAGGED, 5, kind, DOUBLE, removed=0.3), slack=8, **settings)
        single = problem(k, RAGGED, 5, kind, SINGLE)
        stopped = Bregman(**{**settings, "iterations": 500}, backend="native")(single)
        assert (stopped.residual <= max(tolerance, 1e-5)).all()


# Against the oracles


@each_dtype
@each_kind
@pytest.mark.parametrize("removed", [0.0, 0.5])
def test_oracles(removed: float, kind: Pairs, dtype: torch.dtype) -> None:
    chain = problem(1, [6, 5, 4, 3, 2, 1], 3, kind, dtype, removed, scale=2)
    parts = oracles.sentences(chain.unary, chain.transitions, chain.lengths)
    atol = 1e-10 if dtype == DOUBLE else 2e-5
    crf = ForwardBackward(backend="native")(chain)
    settings = {"relaxation": 1.0, "gauge": "right", "first": 2}
    bregman = Bregman(3, **settings, backend="native")(chain)
    scores, tags = bcrf.viterbi(chain, "native")
    proved = bcrf.certified_decode(chain, backend="native")
    for b, part in enumerate(parts):
        length = len(part[0])

        def near(found: Tensor, expected: oracles.Array | float) -> None:
            assert_close(found.double(), torch.as_tensor(np.asarray(expected)), rtol=0, atol=atol)

        near(crf.value[b], oracles.log_partition(*part))
        near(crf.tag_marginals[b, :length], oracles.crf_tag_marginals(*part))
        near(crf.edge_marginals[b, : length - 1], oracles.crf_edge_marginals(*part))
        if length > 1:
            q = oracles.projections(*part, 3, fold="right", first=2)
            near(bregman.edge_marginals[b, : length - 1], q)
        best = oracles.best_paths(*part, 1)[0][0]
        for sequence in (tags[b, :length], proved.tags[b, :length]):
            found = oracles.path_scores(*part, sequence[None].numpy())[0]
            assert found == pytest.approx(best, rel=1e-14, abs=1e-14)
        near(scores[b], best)


# Reproducible results


@pytest.mark.parametrize("name", instruction_sets())
def test_instruction_sets(name: str, use_instruction_set: Callable[[str], None]) -> None:
    use_instruction_set(name)
    assert native._native.instruction_set() == name
    for seed, (num_tags, dtype) in enumerate(itertools.product((1, 4, 9, 17, 65), DTYPES)):
        kind, removed, scale = (("shared", 0.0, 1.0), ("per_pair", 0.4, 80.0))[seed % 3 % 2]
        chain = problem(seed, RAGGED, num_tags, kind, dtype, removed, scale)
        check_answers(chain)
        check_decoders(chain)


def test_unknown_instruction_sets() -> None:
    with pytest.raises(ValueError, match="has no sse9"):
        native._native.use_instruction_set("sse9")


def everything(chain: LinearChain, gold: Tensor) -> dict[str, Tensor]:
    """Return all outputs of all kernels."""
    settings = ProjectionSettings(Bregman().omegas, 1, None, False, False)
    stop = ProjectionSettings(Bregman().omegas, 2, 1e-3, True, True)
    arrays = (chain.unary, chain.pair_scores, chain.lengths)
    results = {
        "crf": native.crf(*arrays, None, (True, True)),
        "nll": native.crf(*arrays, gold, (True, True)),
        "edges": native.crf(*arrays, None, (False, True), every_edge=True),
        "bregman": native.bregman(*arrays, settings, gold, (True, True)),
        "stopped": native.bregman(*arrays, stop, None, (True, True)),
        "flow": native.bregman_result(*arrays, settings),
        "likely": (native.most_probable(*arrays, settings, 0.5),),
        "viterbi": native.viterbi(*arrays),
        "certified": native.certified(*arrays, Bregman().omegas, 0.1),
    }
    flat: dict[str, Tensor] = {}
    for name, found in results.items():
        assert found is not None
        fields = getattr(found, "_fields", range(len(found)))
        flat |= {f"{name} {k}": x for k, x in zip(fields, found, strict=True) if x is not None}
    return flat


def by_sentence(found: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the outputs that have one row per sentence, without sums over the batch."""
    return {name: x for name, x in found.items() if not name.endswith("by_shared_pair")}


def assert_identical(one: dict[str, Tensor], two: dict[str, Tensor]) -> None:
    assert [name for name in one if not torch.equal(one[name], two[name])] == []


@each_dtype
@given_kind
@pytest.mark.parametrize("scale", [1.0, 100.0])
@pytest.mark.usefixtures("threads")
def test_threads_do_not_matter(scale: float, kind: Pairs, dtype: torch.dtype) -> None:
    """The batch is large enough for several threads, and some of its sentences need a second
    solver."""
    chain = problem(2, [70, 61, 50, 13, 1, 0, 70, 33, 2], 20, kind, dtype, 0.2, scale)
    gold = any_path(chain)
    torch.set_num_threads(1)
    expected = everything(chain, gold)
    for count in (2, 3, 8):
        torch.set_num_threads(count)
        assert_identical(everything(chain, gold), expected)


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("kind", ["shared", "per_pair"])
@pytest.mark.usefixtures("threads")
def test_subnormal_numbers_survive_a_call(kind: Pairs, count: int) -> None:
    """The kernels treat subnormal numbers as zero in torch's threads, and restore the mode.

    The batch is large enough for both threads.
    """
    tiny = torch.full((1 << 17,), 1e-40)
    chain = problem(2, [70] * 9, 17, kind, torch.float32)
    torch.set_num_threads(count)
    everything(chain, any_path(chain))
    assert bool((tiny * 0.5 > 0).all())


@each_dtype
@given_kind
@pytest.mark.parametrize("scale", [1.0, 100.0])
def test_a_sentence_does_not_depend_on_its_batch(
    scale: float, kind: Pairs, dtype: torch.dtype
) -> None:
    """A sentence has bitwise the same result in every batch, except in batches that contain
    sentences of similar length (`test_native_by_sentence`)."""
    chain = problem(4, [33, 32, 17, 16, 9, 3, 2, 1, 0], 6, kind, dtype, 0.2, scale)
    gold = any_path(chain)
    together = by_sentence(everything(chain, gold))
    different = []
    for b, length in enumerate(chain.lengths.tolist()):
        kept = by_sentence(everything(chain[b], gold[b : b + 1]))
        assert_identical(kept, row(together, b))
        cut = by_sentence(everything(alone(chain, b), gold[b : b + 1, :length]))
        for name, x in cut.items():
            other = together[name][b : b + 1]
            if x.dim() > 1 and other.shape[1] != x.shape[1]:
                other = other[:, : x.shape[1]]
            if not torch.equal(x, other):
                different.append((length, name))
    assert different == []
