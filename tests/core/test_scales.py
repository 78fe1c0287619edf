"""All outputs of all kernels for scores of 1 to 1e30, checked by `scale_checks`."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import bcrf
from bcrf import Bregman, LinearChain, MeanField
from tests.comparing import needs_native, problem
from tests.scale_checks import (
    FAMILIES,
    Case,
    answers,
    backends_of,
    decoder_problems,
    expected,
    is_well_conditioned,
    label,
    problems,
    solver_of,
)
from tests.strategies import Pairs

SCALES = (1.0, 1e2, 1e4, 1e6, 1e8, 1e15, 1e30)
SINGLE, DOUBLE = torch.float32, torch.float64
each_scale = pytest.mark.parametrize("scale", SCALES, ids="{:g}".format)
each_dtype = pytest.mark.parametrize("dtype", [SINGLE, DOUBLE], ids=["float32", "float64"])
each_family = pytest.mark.parametrize("family", FAMILIES)

PATH = [0, 1, 2, 1, 0, 0, 1, 0]
TWIN = 3
"""A tag with the transitions of tag 2; not on the path."""
LENGTHS = [8, 7, 8, 6, 8, 7, 2, 1]
"""Enough similar sentences for the kernel that solves several at a time."""


def planted(
    scale: float, dtype: torch.dtype, shared: bool, removed: bool, lengths: list[int] = LENGTHS
) -> LinearChain:
    """Return a chain without near-ties: the noise cannot outweigh the lead of the tags of `PATH`.

    If the precision permits, `TWIN` is nearly as good as tag 2 at position 2, so that their
    marginals are not 0 or 1.
    """
    batch, n = len(lengths), max(lengths)
    path = torch.tensor(PATH[:n])
    generator = torch.Generator().manual_seed(0)

    def noise(*shape: int) -> Tensor:
        return (torch.rand(*shape, generator=generator, dtype=DOUBLE) * 2 - 1) * scale

    unary = noise(batch, n, 4)
    unary[:, range(n), path] += 8 * scale
    transitions = noise(4, 4) if shared else noise(batch, n - 1, 4, 4)
    if removed:
        for before, after in ((0, 2), (1, 1), (2, 0)):
            transitions[..., before, after] = -math.inf
        unary[:, 1, 0] = -math.inf
    transitions[..., TWIN, :] = transitions[..., 2, :]
    transitions[..., :, TWIN] = transitions[..., :, 2]
    if n > 2 and scale * torch.finfo(dtype).eps < 2e-3:
        unary[:, 2, TWIN] = unary[:, 2, 2] - 1
    return LinearChain(unary.to(dtype), transitions.to(dtype), lengths)


def tried(scale: float, dtype: torch.dtype) -> dict[str, tuple[Case, bool]]:
    """Return cases of every kind; the bool is whether results must be near those in float64."""
    cases = {}
    for shared, removed in ((True, False), (False, True)):
        name = f"planted, {'shared' if shared else 'per pair'}"
        cases[name] = (label(planted(scale, dtype, shared, removed)), True)
    # The two kinds alternate with the scale, which halves the time of the tests.
    removed = 0.4 if SCALES.index(scale) % 2 else 0.0
    kind: Pairs = "shared" if removed else "per_pair"
    cases[f"random, {kind}"] = (label(problem(1, LENGTHS, 4, kind, dtype, removed, scale)), False)
    return cases


def wide(case: Case) -> Case:
    return case._replace(chain=case.chain.double())


@each_scale
@each_dtype
@each_family
def test_answers_at_any_size_of_the_scores(family: str, dtype: torch.dtype, scale: float) -> None:
    for name, (case, near) in tried(scale, dtype).items():
        exact = expected(solver_of(family, "torch"), wide(case))
        for backend in backends_of(family, small=False):
            same = backend == "torch" and dtype == DOUBLE
            found = exact if same else answers(solver_of(family, backend), case)
            wrong = problems(family, found, exact, case, near)
            assert not wrong, f"{backend}, {name}: {wrong}"


@each_scale
@each_dtype
@pytest.mark.parametrize("family", ["crf", "bregman", "paper", "tolerance"])
def test_the_naive_kernels_agree(family: str, dtype: torch.dtype, scale: float) -> None:
    shared = family in ("crf", "paper")
    case = label(planted(scale, dtype, shared, not shared, [4, 1]))
    exact = expected(solver_of(family, "naive"), wide(case))
    for backend in backends_of(family, small=True):
        found = answers(solver_of(family, backend), case)
        assert not problems(family, found, exact, case, near=True), backend


@each_scale
@each_dtype
def test_best_sequences_at_any_size_of_the_scores(dtype: torch.dtype, scale: float) -> None:
    for name, (case, _) in tried(scale, dtype).items():
        assert not decoder_problems(case, small=True), name


@pytest.mark.parametrize("family", ["crf", "bregman", "paper"])
def test_planted_chains_are_well_conditioned_and_not_all_certain(family: str) -> None:
    solver = solver_of(family, "torch")
    case = label(planted(1e2, SINGLE, False, True))
    exact = expected(solver, wide(case))
    assert is_well_conditioned(solver, case, exact)
    p = exact["tag marginals"][0, 2]
    assert 0.2 < p[2] < 0.8
    assert 0.2 < p[TWIN] < 0.8
    # Rounding removes a difference of 1 between scores of 1e8, so the two tags tie.
    tied = label(planted(1e8, SINGLE, False, True))
    tied.chain.unary[:, 2, TWIN] = tied.chain.unary[:, 2, 2]
    assert not is_well_conditioned(solver, tied, expected(solver, wide(tied)))


@needs_native
@pytest.mark.parametrize("scale", [1e4, 1e6, 1e7, 2e8, 1e30])
@pytest.mark.parametrize("shared", [False, True])
def test_edge_marginals_in_long_sentences(scale: float, shared: bool) -> None:
    """The sum of the marginals of an edge is 1.

    A normaliser that is computed from rounded messages gives sums of 1.01 at scores of 1e4.
    """
    chain = problem(0, [35] * 3, 9, "shared" if shared else "per_pair", scale=scale)
    case = Case(chain, torch.zeros(3, 35, dtype=torch.int64), torch.ones(3, 35, 9).bool())
    exact = expected(solver_of("bregman", "torch"), wide(case))
    found = answers(solver_of("bregman", "native"), case)
    assert not problems("bregman", found, exact, case, near=False)


# Sums that overflow


def huge(dtype: torch.dtype, shared: bool = True) -> tuple[LinearChain, Tensor]:
    """Return finite scores whose sums along most paths overflow, and the path with the lowest
    score."""
    largest = torch.finfo(dtype).max * 0.4
    chain = problem(2, [20, 20], 4, "shared" if shared else "per_pair", dtype)
    chain = chain._map(lambda w: w.clamp(-1, 1) * largest, dtype)
    return chain, bcrf.viterbi((chain / largest)._map(torch.neg, dtype))[1]


@each_dtype
@each_family
@pytest.mark.parametrize("shared", [True, False])
def test_sums_that_overflow_are_errors(family: str, dtype: torch.dtype, shared: bool) -> None:
    chain, gold = huge(dtype, shared)
    for backend in backends_of(family, small=False):
        solver = solver_of(family, backend)
        with pytest.raises(ValueError, match=r"sentence 0: the loss is (inf|nan), .* overflows"):
            bcrf.loss(solver, chain, gold)
        with pytest.raises(ValueError, match=r"sentence 0: the value is (-?inf|nan), .* overflows"):
            solver(chain).value  # noqa: B018


@each_dtype
def test_scores_of_best_sequences_that_overflow_are_errors(dtype: torch.dtype) -> None:
    chain, _ = huge(dtype)
    for backend in backends_of("crf", small=True):
        with pytest.raises(ValueError, match=r"score of the best sequence is (-?inf|nan)"):
            bcrf.viterbi(chain, backend)
    for backend in backends_of("crf", small=False):
        with pytest.raises(ValueError, match=r"score of the best sequence is (-?inf|nan)"):
            bcrf.certified_decode(chain, backend=backend)


@each_dtype
def test_the_lowest_number_removes_a_tag(dtype: torch.dtype) -> None:
    """The lowest finite number acts like -inf, unless it is added to a number of its size."""
    chain = problem(3, [9, 6], 4, "shared", dtype)
    unary, removed = chain.unary.clone(), chain.unary.clone()
    unary[..., 3], removed[..., 3] = torch.finfo(dtype).min, -math.inf
    gold = torch.zeros(2, 9, dtype=torch.int64)
    for family in ("crf", "bregman", "paper", "unstructured"):
        for backend in backends_of(family, small=True):
            solver = solver_of(family, backend)
            found = bcrf.loss(solver, LinearChain(unary, chain.transitions, [9, 6]), gold)
            expected = bcrf.loss(solver, LinearChain(removed, chain.transitions, [9, 6]), gold)
            torch.testing.assert_close(found, expected, msg=f"{family}, {backend}")


def test_gradients_of_mean_field_that_overflow_are_errors() -> None:
    unary = torch.zeros(1, 6, 2, requires_grad=True)
    transitions = (1e20 * torch.eye(2)).requires_grad_()
    with pytest.raises(ValueError, match="gradient of mean field overflows float32"):
        bcrf.loss(
            MeanField(5), LinearChain(unary, transitions), torch.zeros(1, 6).long()
        ).backward()


def test_a_bregman_value_that_is_not_a_number_is_an_error() -> None:
    """The lowest finite unary and transition scores add up to -inf, although no tag is removed."""
    chain = problem(3, [9], 4, "shared")
    lowest = torch.finfo(SINGLE).min
    chain.unary[..., 3] = lowest
    assert chain.transitions is not None
    chain.transitions[3], chain.transitions[:, 3] = lowest, lowest
    with pytest.raises(ValueError, match="sentence 0: the loss is nan"):
        bcrf.loss(Bregman(backend="torch"), chain, torch.zeros(1, 9, dtype=torch.int64))
