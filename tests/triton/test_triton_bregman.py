"""The Bregman kernels of the backend "triton" in the interpreter, against the naive backend."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any, Literal

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import bcrf
from bcrf import Bregman, LinearChain, Structure, certified_decode, viterbi
from bcrf.inference.certified import _certify
from bcrf.kernels.folded_chain import fold
from bcrf.kernels.results import ProjectionSettings
from bcrf.numerics import static_trimming
from measurement.launches import LaunchCounter
from tests.comparing import any_path
from tests.strategies import Pairs
from tests.subjects import ragged_chain
from tests.triton.support import bies_chain, kernels, needs_triton, strided, with_garbage

pytestmark = needs_triton

STEPS = 3
TRITON = Bregman(STEPS, backend="triton")
NAIVE = Bregman(STEPS, backend="naive")
each_kind = pytest.mark.parametrize("kind", ["shared", "per_pair"])

Results = dict[str, Tensor]


def results(
    solver: Bregman, chain: LinearChain, tags: Tensor, allowed: Tensor | None = None
) -> Results:
    """Everything that the solver computes without an implicit derivative, in float64."""
    scores = (
        [chain.unary] if chain.raw_transitions is None else [chain.unary, chain.raw_transitions]
    )
    leaves = [score.detach().requires_grad_() for score in scores]
    problem = chain._with_scores(leaves[0], leaves[1] if len(leaves) > 1 else None)
    with torch.no_grad():
        solution = solver(chain)
        found = {
            "value": solution.value,
            "residual": solution.residual,
            "marginals": solution.tag_probabilities(),
            "best tags": solution.best_tags(),
        }
    values = {"value": solver(problem).value, "loss": bcrf.loss(solver, problem, tags)}
    if allowed is not None:
        values["partial loss"] = bcrf.partial_loss(solver, problem, allowed)
    for name, value in values.items():
        found[name] = value.detach()
        for leaf, gradient in zip("up", torch.autograd.grad(value.sum(), leaves), strict=False):
            found[f"{name} by {leaf}"] = gradient
    return {name: x.double() if x.is_floating_point() else x for name, x in found.items()}


def compare(
    chain: LinearChain,
    settings: dict[str, Any] | None = None,
    partial: bool = True,
    tolerance: float | None = None,
) -> Results:
    """Assert that the kernels agree with the naive backend in float64; return their results."""
    settings = {"iterations": STEPS} | (settings or {})
    tags = any_path(chain)
    generator = torch.Generator().manual_seed(5)
    allowed = torch.rand(chain.unary.shape, generator=generator) < 0.4
    allowed.scatter_(2, tags.clamp(min=0).unsqueeze(-1), True)
    labels = (tags, allowed if partial else None)
    found = results(Bregman(**settings, backend="triton"), chain, *labels)
    expected = results(Bregman(**settings, backend="naive"), chain.double(), *labels)
    if tolerance is None:
        tolerance = 1e-11 if chain.unary.dtype == torch.float64 else 5e-5
    for name, one in found.items():
        assert one.isfinite().all() if one.is_floating_point() else True, name
        assert_close(one, expected[name], rtol=tolerance, atol=tolerance, msg=f"{name}: {one}")
    return found


@pytest.mark.parametrize(
    ("kind", "num_tags", "removed", "dtype"),
    [
        ("none", 3, 0.0, torch.float64),
        ("shared", 1, 0.0, torch.float64),
        ("shared", 5, 0.4, torch.float64),
        ("per_pair", 3, 0.4, torch.float32),
        ("per_pair", 5, 0.0, torch.float64),
        ("shared", 17, 0.0, torch.float32),
        ("per_pair", 17, 0.3, torch.float64),
    ],
)
def test_every_output(kind: Pairs, num_tags: int, removed: float, dtype: torch.dtype) -> None:
    lengths = [4, 0, 1, 2] if num_tags < 17 else [3, 4]
    compare(ragged_chain(0, lengths, num_tags, n=5, pairs=kind, removed=removed).to(dtype))


@pytest.mark.parametrize(
    "settings",
    [
        {"iterations": 5, "relaxation": 1.0, "gauge": "right", "first": 2, "marginals": "outgoing"},
        {"relaxation": 1.4, "marginals": "outgoing"},
        {"gauge": "right"},
        {"first": 2},
        {"iterations": 0},
        {"iterations": 1},
    ],
    ids=str,
)
def test_settings(settings: dict[str, Any]) -> None:
    compare(ragged_chain(1, [5, 3], 3, removed=0.2), settings, partial=False)


def test_gauge_of_restricted_problem() -> None:
    """The restricted projections begin at lam of the whole problem, in every gauge."""
    compare(ragged_chain(1, [5, 3], 3, removed=0.2), {"gauge": "right", "first": 2})


@each_kind
@pytest.mark.parametrize("finite", [False, True])
def test_rules(kind: Pairs, finite: bool) -> None:
    """Dead tags have no mass; a chain that is declared finite is trimmed by its rules alone."""
    chain = bies_chain(kind, [5, 1, 2, 0])
    rest = (chain.lengths, chain.dtype, chain.structure, finite)
    chain = LinearChain._new(chain.unary, chain.raw_transitions, *rest)
    found = compare(chain, partial=finite)
    dead = ~fold(chain).live
    assert dead[0].any()
    assert (found["marginals"][dead] == 0).all()
    lam = kernels().bregman_result(chain, TRITON._settings).lam
    assert (lam[dead] == 0).all()


def test_finite_without_rules() -> None:
    chain = ragged_chain(2, [5, 2, 1], 3, pairs="shared")
    finite = LinearChain(chain.unary, chain.transitions, chain.lengths, finite=True)
    for one, other in zip(
        kernels().bregman_result(chain, TRITON._settings),
        kernels().bregman_result(finite, TRITON._settings),
        strict=True,
    ):
        assert torch.equal(one, other)


@pytest.mark.parametrize(("kind", "temperature"), [("shared", 0.1), ("per_pair", 0.01)])
def test_low_temperatures(kind: Pairs, temperature: float) -> None:
    """Scores that differ by thousands do not underflow in float32."""
    chain = ragged_chain(3, [6, 3], 5, pairs=kind, scale=4.0).to(torch.float32)
    cold = chain / temperature
    found = compare(cold, {"iterations": 4}, tolerance=2e-3)
    assert (found["loss"] >= 0).all()
    # most_probable divides the scores itself
    decoded = Bregman(4, backend="triton").decode(chain, temperature)
    assert torch.equal(decoded, found["best tags"])


@pytest.mark.parametrize("garbage", [math.nan, math.inf])
@each_kind
def test_nothing_beyond_the_length_is_read(kind: Pairs, garbage: float) -> None:
    chain = ragged_chain(4, [4, 1, 0, 3], 3, n=5, pairs=kind)
    tags = any_path(chain)
    for problem in (chain, with_garbage(chain, garbage)):
        found = kernels().bregman(problem, TRITON._settings, tags, (True, True))
        result = kernels().bregman_result(problem, TRITON._settings)
        if problem is chain:
            expected, expected_result = found, result
    for one, other in zip((*found[:3], *result), (*expected[:3], *expected_result), strict=True):
        assert torch.equal(one, other)


@each_kind
def test_strides(kind: Pairs) -> None:
    chain = ragged_chain(4, [4, 3], 3, pairs=kind)
    other = LinearChain(strided(chain.unary), strided(chain.transitions), chain.lengths)
    tags = any_path(chain)
    found = kernels().bregman(other, TRITON._settings, tags.mT.contiguous().mT, (True, True))
    expected = kernels().bregman(chain, TRITON._settings, tags, (True, True))
    for one, same in zip(found[:3], expected[:3], strict=True):
        assert torch.equal(one, same)


@each_kind
def test_start_end_scores(kind: Pairs) -> None:
    chain = bies_chain(kind, [5, 1, 0, 2])
    start_end = torch.randn(8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    added = chain._add_start_end(start_end)
    tags = any_path(chain)
    for labels in (tags, None):
        found = kernels().bregman(
            chain, TRITON._settings, labels, (True, True), start_end=start_end
        )
        expected = kernels().bregman(added, TRITON._settings, labels, (True, True))
        for one, other in zip(found[:3], expected[:3], strict=True):
            assert_close(one, other)


@pytest.mark.parametrize("limit", [7, 8])
def test_offsets_of_32_bits(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Offsets inside a sentence and inside a matrix have 32 bits."""
    from bcrf.kernels.triton import arguments

    monkeypatch.setattr(arguments, "_MOST_OFFSET", limit)
    chain = ragged_chain(4, [4, 4], 2, pairs="per_pair")  # 8 unary scores each
    if limit < 8:
        with pytest.raises(ValueError, match="at most 3 positions with 2 tags, got 4"):
            kernels().viterbi(chain)
        return
    other = LinearChain(chain.unary, strided(chain.transitions), chain.lengths)
    assert arguments.chain_arguments(other).pair_to == 1  # a copy; its stride was 12
    assert_close(kernels().viterbi(other), kernels().viterbi(chain))


def test_every_edge() -> None:
    """The arc marginals of a chain with shared transitions; 0 beyond the length."""
    chain = ragged_chain(5, [4, 2, 1], 3, n=6, pairs="shared", removed=0.2)
    found = kernels().bregman(chain, TRITON._settings, None, (False, True), every_edge=True)
    assert found.by_unary is None
    assert_close(found.by_pair, NAIVE(chain).edge_probabilities())
    summed = kernels().bregman(chain, TRITON._settings, None, (False, True)).by_pair
    assert_close(found.by_pair.sum(1), summed)


def test_a_wrong_tag_has_no_path() -> None:
    chain = ragged_chain(5, [3, 1], 3)
    tags = torch.tensor([[0, 3, 0], [-1, 0, 0]])
    assert (kernels().bregman(chain, TRITON._settings, tags).value == math.inf).all()


def test_no_allowed_path() -> None:
    """The partial loss is inf with gradient 0; other sentences are not affected."""
    chain = ragged_chain(6, [4, 4, 1, 1], 3, pairs="shared")
    allowed = torch.ones_like(chain.unary, dtype=torch.bool)
    allowed[0, 2] = False
    allowed[2, 0] = False
    allowed[:, :, 0] = False
    found = kernels().bregman_partial(chain, allowed, TRITON._settings, (True, True))
    assert torch.equal(found.value == math.inf, torch.tensor([True, False, True, False]))
    assert not found.value.isnan().any()
    for gradient in (found.by_unary, found.by_pair):
        assert (gradient[::2] == 0).all()
        assert gradient.isfinite().all()
    assert (found.by_unary[1] != 0).any()


@pytest.mark.parametrize("shape", [(0, 3, 2), (2, 0, 2), (2, 1, 2)])
@each_kind
def test_empty_shapes(kind: Pairs, shape: tuple[int, int, int]) -> None:
    batch, n, num_tags = shape
    chain = ragged_chain(0, [n] * batch, num_tags, n=n, pairs=kind)
    tags = torch.zeros(batch, n, dtype=torch.int64)
    found = kernels().bregman(chain, TRITON._settings, tags, (True, True))
    pairs = (
        (batch, num_tags, num_tags) if chain.shared else (batch, max(n - 1, 0), num_tags, num_tags)
    )
    assert found.value.shape == (batch,)
    assert found.by_unary.shape == shape
    assert found.by_pair.shape == pairs
    assert (found.by_pair == 0).all()
    result = kernels().bregman_result(chain, TRITON._settings)
    assert result.value.shape == result.residual.shape == (batch,)
    tags, proved = kernels().certified(chain, (1.0,), 0.1)
    assert tags.shape == (batch, n)
    assert proved.all()


@each_kind
def test_results_are_the_same_in_every_run(kind: Pairs) -> None:
    chain = ragged_chain(7, [12, 7], 3, pairs=kind).to(torch.float32)
    tags = any_path(chain)
    runs = [kernels().bregman(chain, TRITON._settings, tags, (True, True)) for _ in range(2)]
    for one, other in zip(runs[0][:3], runs[1][:3], strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(("kind", "first"), [("shared", 1), ("per_pair", 2)])
def test_tiles_change_nothing(kind: Pairs, first: Literal[1, 2]) -> None:
    """A hard chain in tiles of any size, with their halos: the same numbers, bit for bit."""
    from bcrf.kernels.triton.arguments import chain_arguments
    from bcrf.kernels.triton.projections import find_live_tags, run_projections

    chain = bies_chain(kind, [40]) / 0.1
    arguments = chain_arguments(chain)
    live = find_live_tags(chain, arguments)
    solver = Bregman(5, gauge="right", first=first, backend="torch")
    whole = run_projections(arguments, live, solver._settings, tile=40)
    expected = solver(chain)
    assert_close(whole.lam, expected.lam, rtol=1e-11, atol=1e-11)
    for tile in (7, 39):
        found = run_projections(arguments, live, solver._settings, tile=tile)
        assert torch.equal(found.half, whole.half)
        assert torch.equal(found.lam, whole.lam)
    # From the point that it reached, as in partial losses.
    further = run_projections(arguments, live, solver._settings, whole.lam, tile=8).lam
    assert_close(further, solver.dual(fold(chain), "torch", whole.lam), rtol=1e-11, atol=1e-11)


def test_several_tiles_and_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short tiles of the projections, and several programs for the values of a sentence."""
    from bcrf.kernels.triton import projections

    monkeypatch.setattr(projections, "_TILE", 5)
    monkeypatch.setattr(sys.modules["bcrf.kernels.triton.bregman"], "_ROUNDS", 1)
    monkeypatch.setattr(sys.modules["bcrf.kernels.triton.bregman"], "_EDGES_SUMMED", 3)
    assert projections.tile_size(2, 12, 4) == 5
    compare(ragged_chain(8, [11, 10], 3, pairs="shared", removed=0.1), {"iterations": 2})


@pytest.mark.parametrize("finite", [True, False])
@pytest.mark.parametrize(
    ("n", "kind", "sums"),
    [(12, "shared", 0), (32, "shared", 1), (64, "shared", 2), (64, "per_pair", 1)],
)
def test_launches(
    n: int, kind: Pairs, sums: int, finite: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is computed here: `launch` is replaced."""
    kernels()
    launched: list[object] = []
    for name in ("arguments", "reachability", "projections", "bregman", "certificate", "viterbi"):
        module = sys.modules[f"bcrf.kernels.triton.{name}"]
        monkeypatch.setattr(module, "launch", lambda kernel, *_, **__: launched.append(kernel))
    chain = ragged_chain(0, [n] * 4, 17, pairs=kind)
    chain = LinearChain(chain.unary, chain.raw_transitions, finite=finite)
    tags = torch.zeros(4, n, dtype=torch.int64)
    settings = Bregman(10)._settings

    def count(call: Callable[[], object]) -> tuple[int, int]:
        call()  # copies the relaxations to the device
        launched.clear()
        with LaunchCounter() as counter:
            call()
        return len(launched), counter.launches

    search = int(not finite)
    loss = count(lambda: kernels().bregman(chain, settings, tags, (True, True)))
    assert loss == (3 + search, sums)
    several = 2 * (n > 16)  # the value and the residual of a sentence
    assert count(lambda: kernels().bregman_result(chain, settings)) == (2 + search, several)
    assert count(lambda: kernels().most_probable(chain, settings, 1.0)) == (2 + search, 0)
    assert count(lambda: kernels().certified(chain, settings.omegas, 0.1))[0] == 3 + search
    assert count(lambda: kernels().viterbi(chain)) == (1, 0)


def test_very_long_sentences_fit_into_a_grid() -> None:
    """CUDA refuses a launch with more than 65535 programs on the second axis of its grid."""
    from bcrf.kernels.triton.arguments import chunk_size

    assert [chunk_size(n, 16) for n in (0, 1, 17, 65535 * 16)] == [16] * 4
    assert [chunk_size(n, 16) for n in (65535 * 16 + 1, 65535 * 32 + 1)] == [32, 64]


@each_kind
def test_larger_chunks_change_nothing(kind: Pairs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of a larger size, as the limit of a grid demands for very long sentences."""
    from bcrf.kernels.triton import arguments

    chain = ragged_chain(2, [18], 3, pairs=kind)
    tags = any_path(chain)

    def found() -> list[Any]:
        numbers = (
            kernels().bregman(chain, TRITON._settings, tags, (True, True)),
            kernels().crf(chain, tags, (True, True)),
            kernels().certified(chain, (1.0,), 0.5),
        )
        return [x for result in numbers for x in result if x is not None]

    expected = found()
    monkeypatch.setattr(arguments, "_MOST_CHUNKS", 1)
    assert arguments.chunk_size(18, 4) == 32
    assert_close(found(), expected, rtol=0, atol=1e-12)


@each_kind
@pytest.mark.parametrize("temperature", [0.1, 1.0, torch.tensor(0.3, dtype=torch.float64)])
def test_certificate(kind: Pairs, temperature: float | Tensor) -> None:
    """The same certificates as in torch; certified tags are a best path."""
    chain = ragged_chain(9, [6, 4, 1, 2, 0], 4, n=7, pairs=kind, removed=0.2, scale=3.0)
    omegas = Bregman(6).omegas
    tags, proved = kernels().certified(chain, omegas, temperature)
    folded = fold(chain)
    lam = Bregman(6, backend="torch").dual(folded / temperature, "torch") * temperature
    expected, certificate = _certify(folded, lam)
    assert torch.equal(proved, certificate)
    assert proved.any()
    assert torch.equal(tags, chain.pad(expected))
    best = viterbi(chain, "naive")[0]
    assert_close(chain.score(tags)[proved], best[proved])


def test_certificate_is_refused() -> None:
    """Without projections, the best arcs of hard chains form no path."""
    chain = bies_chain("per_pair", [9, 9, 9])
    _, proved = kernels().certified(chain, (), 1.0)
    best, _ = viterbi(chain, "naive")
    assert not proved.all()
    found = certified_decode(chain, 0, backend="triton")
    assert_close(found.score, best)


def test_hard_chains_in_float32() -> None:
    """Rules of BIES at a low temperature: the tags of the same algorithm in float64."""
    chain = bies_chain("shared", [9, 8], torch.float32)
    settings = {"iterations": 4}
    cold = chain / 0.1
    compare(cold, settings, partial=False, tolerance=1e-3)


@each_kind
def test_structures_without_tables(kind: Pairs, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel that searches for live tags runs, also for chains that are declared finite."""
    from bcrf.kernels.triton.arguments import chain_arguments
    from bcrf.kernels.triton.projections import find_live_tags

    monkeypatch.setattr(static_trimming, "_MAX_ROWS", 1)
    rules = Structure.from_labels(["B", "I", "E", "S"], "BIES")
    free = ragged_chain(3, [5, 1, 4], 4, pairs=kind)
    scores = (free.unary, free.raw_transitions, free.lengths)
    declared = LinearChain(*scores, structure=rules, finite=True)
    assert find_live_tags(declared, chain_arguments(declared)).live_batch == 3
    tags = any_path(declared)
    found = kernels().bregman(declared, TRITON._settings, tags, (True, True))
    expected = kernels().bregman(free.constrain(rules), TRITON._settings, tags, (True, True))
    for one, other in zip(found[:3], expected[:3], strict=True):
        assert torch.equal(one, other)


def test_omegas_of_several_calls() -> None:
    """The relaxations of a call do not depend on calls before it."""
    chain = ragged_chain(10, [5], 3)
    for omegas in ((1.0, 1.2, 1.0), (1.0, 1.0, 1.0)):
        settings = ProjectionSettings(omegas, 1, None, False, False)
        solver = Bregman(3, relaxation=1.0, backend="torch")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Bregman, "omegas", property(lambda _, omegas=omegas: omegas))
            expected = solver(chain).lam
        assert_close(kernels().bregman_result(chain, settings).lam, expected)
