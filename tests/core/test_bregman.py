"""Properties of the projections at every iteration, on thousands of random chains."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import bcrf
from bcrf.kernels import BACKEND_MODULES
from bcrf.kernels.dual import edge_log_sums
from bcrf.kernels.folded_chain import fold
from tests import oracles
from tests.strategies import random_chain_arrays
from tests.subjects import arrays_of

KINDS = ["none", "shared", "per_pair"]
CONVERGED = bcrf.Bregman(20_000, tolerance=1e-12, relaxation=1.3)
RAMP = bcrf.Bregman(30).omegas[:-1]  # without the last step at 1: one run, step by step


def chain_of(seed: int, batch: int, n: int, tags: int, **options: object) -> bcrf.LinearChain:
    return bcrf.LinearChain(*random_chain_arrays(seed, batch, n, tags, **options))  # type: ignore[arg-type]


def many(scale: float, removed: float, batch: int = 300) -> list[bcrf.LinearChain]:
    """Return random chains with sentences of 0..n positions, for odd and even n and every kind of
    transitions."""
    return [
        chain_of(seed, batch, n, tags, pairs=kind, removed=removed, scale=scale)
        for seed, (n, tags, kind) in enumerate(
            (n, tags, kind) for n, tags in ((3, 4), (4, 2), (7, 3), (8, 5)) for kind in KINDS
        )
    ]


def dual_value(chain: bcrf.LinearChain, omegas: tuple[float, ...]) -> Tensor:
    arcs = fold(chain)
    lam = BACKEND_MODULES["torch"].project(
        arcs, torch.zeros_like(arcs.single_scores), omegas, 1, None
    )
    return edge_log_sums(arcs, lam).sum(1)


@pytest.mark.parametrize("removed", [0.0, 0.4])
@pytest.mark.parametrize("scale", [1.0, 10.0])
@pytest.mark.parametrize("omegas", [(1.0,) * 12, (0.5,) * 12, (1.3,) * 12, (1.9,) * 12, RAMP[:12]])
def test_dual_decreases_and_bounds_the_optimum(
    omegas: tuple[float, ...], scale: float, removed: float
) -> None:
    for chain in many(scale, removed, batch=60):
        values = torch.stack([dual_value(chain, omegas[:k]) for k in range(len(omegas) + 1)])
        slack = 1e-11 * scale
        assert bool((values[1:] <= values[:-1] + slack).all())
        long = torch.where(chain.lengths > 1, CONVERGED(chain).value, 0.0)
        assert bool((values[-1] >= long - slack).all())


def test_relaxed_steps_of_two_do_not_descend() -> None:
    """A step with omega = 2 leaves the dual unchanged, and a larger omega increases it: 2 is a
    sharp bound."""
    chain = chain_of(0, 50, 3, 3, pairs="per_pair", ragged=False)
    start, at_two, beyond = (dual_value(chain, w) for w in ((), (2.0,), (2.3,)))
    assert_close(at_two, start, rtol=0, atol=1e-12)
    assert bool((beyond > start).all())


@pytest.mark.parametrize("scale", [1.0, 5.0])
@pytest.mark.parametrize("removed", [0.0, 0.3])
def test_value_lies_between_the_log_partition_and_its_bound(scale: float, removed: float) -> None:
    for chain in many(scale, removed, batch=100):
        a, b = bcrf.ForwardBackward()(chain).value, CONVERGED(chain).value
        arcs = fold(chain)
        choices = torch.where(
            arcs.interior_live.any(-1), arcs.live.sum(-1).clamp(min=1).log(), 0.0
        ).sum(1)
        assert bool((b >= a - 1e-9).all())
        assert bool((b <= a + choices + 1e-9).all())
        short = chain.lengths <= 2
        assert_close(b[short], a[short], rtol=0, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [1.0, 30.0])
@pytest.mark.parametrize("removed", [0.0, 0.4])
def test_losses_are_never_negative(dtype: torch.dtype, scale: float, removed: float) -> None:
    for chain in many(scale, removed, batch=80):
        chain = chain.to(dtype)
        _, best = bcrf.viterbi(chain)
        other = bcrf.sample(chain / scale, 1, torch.Generator().manual_seed(0))[0]
        allowed = one_hot(chain, best) | one_hot(chain, other)
        for k in (0, 1, 2, 3, 10):
            for solver in (bcrf.Bregman(k), bcrf.Bregman.paper(k)):
                for tags in (best, other):
                    full = bcrf.loss(solver, chain, tags)
                    assert bool((full >= 0).all())
                    assert bool(full.isfinite().all())
                partial = bcrf.partial_loss(solver, chain, allowed)
                assert bool((partial >= 0).all())
                assert bool(partial.isfinite().all())


def one_hot(chain: bcrf.LinearChain, tags: Tensor) -> Tensor:
    return torch.nn.functional.one_hot(tags.clamp(min=0), chain.num_tags).bool()


@pytest.mark.parametrize("removed", [0.0, 0.3])
@pytest.mark.parametrize("k", [0, 1, 2, 5, 10])
def test_partial_loss_of_one_sequence_is_the_loss(k: int, removed: float) -> None:
    for chain in many(2.0, removed, batch=50):
        tags = bcrf.sample(chain, 1, torch.Generator().manual_seed(1))[0]
        for solver in (bcrf.Bregman(k), bcrf.Bregman.paper(k)):
            partial = bcrf.partial_loss(solver, chain, one_hot(chain, tags))
            assert_close(partial, bcrf.loss(solver, chain, tags), rtol=1e-9, atol=1e-9)


def test_smaller_sets_have_larger_losses() -> None:
    for chain in many(1.0, 0.0, batch=50):
        generator = torch.Generator().manual_seed(2)
        large = torch.rand(chain.unary.shape, generator=generator) < 0.7
        small = large & (torch.rand(chain.unary.shape, generator=generator) < 0.6)
        kept = one_hot(chain, bcrf.sample(chain, 1, generator)[0])
        more = bcrf.partial_loss(CONVERGED, chain, small | kept)
        less = bcrf.partial_loss(CONVERGED, chain, large | kept)
        assert bool((more >= less - 1e-9).all())
        assert bool((more > less + 1e-3).any())


@pytest.mark.parametrize("removed", [0.0, 0.3])
def test_reparametrisation_changes_nothing_at_convergence(removed: float) -> None:
    chain = chain_of(3, 40, 7, 4, pairs="per_pair", removed=removed)
    # Add `shift` to the unary scores of a position, and subtract it from the arcs that leave the
    # position. No arc leaves the last one, so its scores stay.
    last = torch.arange(7) == chain.lengths[:, None] - 1
    shift = torch.randn(40, 7, 4, dtype=torch.float64).masked_fill(last[..., None], 0)
    pairs = chain.transitions - shift[:, :-1, :, None]
    moved = bcrf.LinearChain(chain.unary + shift, pairs, chain.lengths)
    before, after = CONVERGED(chain), CONVERGED(moved)
    assert_close(after.value, before.value, rtol=1e-9, atol=1e-9)
    assert_close(after.edge_marginals, before.edge_marginals, rtol=0, atol=1e-9)
    assert_close(after.tag_marginals, before.tag_marginals, rtol=0, atol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("k", range(8))
def test_padding_changes_nothing_at_any_iteration(k: int, kind: str) -> None:
    chain = chain_of(4, 6, 7, 3, pairs=kind, removed=0.3, ragged=False)
    n = chain.max_length
    unary = torch.cat([chain.unary, torch.full((6, 4, 3), 7.0)], 1)
    transitions = chain.transitions
    if kind == "per_pair":
        transitions = torch.cat([transitions, torch.full((6, 4, 3, 3), -9.0)], 1)
    padded = bcrf.LinearChain(unary, transitions, [n] * 6)
    for solver in (bcrf.Bregman(k), bcrf.Bregman.paper(k)):
        one, other = solver(chain), solver(padded)
        assert_close(other.value, one.value, rtol=1e-12, atol=1e-12)
        assert_close(other.tag_marginals[:, :n], one.tag_marginals, rtol=0, atol=1e-12)
        assert_close(other.residual, one.residual, rtol=0, atol=1e-12)
        assert not other.tag_marginals[:, n:].any()


@pytest.mark.parametrize("kind", KINDS)
def test_three_words_take_one_projection(kind: str) -> None:
    chain = chain_of(5, 50, 3, 4, pairs=kind, ragged=False)
    solution = bcrf.Bregman(1)(chain)
    assert_close(solution.value, CONVERGED(chain).value, rtol=0, atol=1e-9)
    assert float(solution.residual.max()) < 1e-12


@pytest.mark.parametrize("removed", [0.0, 0.4])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("k", [0, 1, 2, 3, 6])
def test_algorithm_1_of_the_paper(k: int, kind: str, removed: float) -> None:
    """Compare with an oracle of plain exponentials and loops, for the paper's settings and for
    ours."""
    chain = chain_of(6, 5, 6, 3, pairs=kind, removed=removed)
    ours = bcrf.Bregman(k)
    for solver, options in (
        (bcrf.Bregman.paper(k), {"fold": "right", "first": 2}),
        (ours, {"fold": "half", "first": 1, "omega": list(ours.omegas)}),
    ):
        found = solver(chain).edge_marginals
        for b, (unary, pair) in enumerate(oracles.sentences(*arrays_of(chain))):
            q = oracles.projections(unary, pair, k, **options)
            assert_close(found[b, : len(q)], torch.from_numpy(q), rtol=0, atol=1e-10)


def test_tag_marginals_of_the_paper_are_the_outgoing_mass() -> None:
    chain = chain_of(7, 5, 6, 3, pairs="per_pair", ragged=False)
    solution = bcrf.Bregman.paper(3)(chain)
    q, p = solution.edge_marginals, solution.tag_marginals
    assert_close(p[:, :-1], q.sum(-1), rtol=0, atol=1e-12)
    assert_close(p[:, -1], q[:, -1].sum(-2), rtol=0, atol=1e-12)


@pytest.mark.parametrize("relaxation", [1.0, 1.3, "ramp"])
@pytest.mark.parametrize("tolerance", [1e-3, 1e-8])
def test_tolerance_is_kept_and_ends_with_a_plain_step(
    relaxation: float | str, tolerance: float
) -> None:
    chain = chain_of(8, 60, 9, 4, pairs="per_pair", removed=0.2, scale=3.0)
    solution = bcrf.Bregman(5000, tolerance, relaxation)(chain)  # type: ignore[arg-type]
    assert float(solution.residual.max()) <= tolerance
    # The last step is plain, so flow is conserved exactly at the positions of its parity.
    q = solution.edge_marginals
    gap = (q[:, :-1].sum(-2) - q[:, 1:].sum(-1)).abs() * chain.mask[:, 2:, None]
    odd, even = gap[:, ::2].amax((1, 2)), gap[:, 1::2].amax((1, 2))
    assert float(torch.minimum(odd, even).max()) < 1e-12


def test_iterations_bound_a_run_with_a_tolerance() -> None:
    chain = chain_of(9, 20, 12, 4, pairs="per_pair", scale=5.0, ragged=False)
    short = bcrf.Bregman(5, tolerance=1e-12, relaxation=1.0)(chain)
    assert_close(short.value, bcrf.Bregman(5, relaxation=1.0)(chain).value, rtol=0, atol=1e-12)
    assert float(short.residual.min()) > 1e-12


def test_half_split_starts_closer() -> None:
    """With the half-split gauge, the value is closer to its limit B after three projections."""
    chain = chain_of(10, 200, 20, 8, pairs="per_pair", ragged=False)
    exact = CONVERGED(chain).value
    half, right = (
        (bcrf.Bregman(3, relaxation=1.0, gauge=gauge)(chain).value - exact).mean()
        for gauge in ("half", "right")
    )
    assert float(right / half) > 1.5


def test_schedules() -> None:
    assert_close(torch.tensor(bcrf.Bregman(4).omegas), torch.tensor([1.0, 1.05, 1.1, 1.0]))
    assert max(bcrf.Bregman(20).omegas) == pytest.approx(1.3)
    assert bcrf.Bregman(20).omegas[-1] == 1.0
    assert bcrf.Bregman(3, relaxation=1.3).omegas == (1.3, 1.3, 1.3)
    assert bcrf.Bregman(0).omegas == ()
    assert bcrf.Bregman.paper(7).omegas == (1.0,) * 7


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"iterations": -1}, ValueError, "iterations"),
        ({"iterations": 2.0}, TypeError, "iterations"),
        ({"iterations": True}, TypeError, "iterations"),
        ({"tolerance": -1e-3}, ValueError, "tolerance"),
        ({"tolerance": math.nan}, ValueError, "tolerance"),
        ({"tolerance": "small"}, TypeError, "tolerance"),
        ({"relaxation": None}, TypeError, "relaxation"),
        ({"relaxation": True}, TypeError, "relaxation"),
        ({"relaxation": 2.0}, ValueError, "relaxation"),
        ({"relaxation": 0.0}, ValueError, "relaxation"),
        ({"relaxation": "fast"}, ValueError, "relaxation"),
        ({"gauge": "left"}, ValueError, "gauge"),
        ({"first": 0}, ValueError, "first"),
        ({"marginals": "max"}, ValueError, "marginals"),
        ({"backend": "fortran"}, ValueError, "backend"),
    ],
)
def test_bad_settings(arguments: dict[str, object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        bcrf.Bregman(**arguments)  # type: ignore[arg-type]
