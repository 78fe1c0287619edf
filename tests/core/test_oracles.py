"""The oracles agree with each other where their methods differ, and with closed forms."""

from collections.abc import Callable
from typing import Literal

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from tests import oracles
from tests.strategies import ChainArrays, Pairs, bies_follow, chains, random_chain_arrays

quick = settings(
    max_examples=30,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)


def one(
    seed: int, n: int, num_tags: int = 3, removed: float = 0.0, scale: float = 1.0
) -> oracles.Sentence:
    """Return a random sentence with one transition matrix per edge."""
    arrays = random_chain_arrays(
        seed, 1, n, num_tags, pairs="per_pair", removed=removed, scale=scale, ragged=False
    )
    return oracles.sentences(*arrays)[0]


def perturbed(array: oracles.Array, index: tuple[int, ...], by: float) -> oracles.Array:
    copy = array.copy()
    copy[index] += by
    return copy


def slope(
    function: Callable[[oracles.Array], float], array: oracles.Array, index: tuple[int, ...]
) -> float:
    """Return the derivative of function(array) by one finite entry, as a central difference."""
    h = 1e-5
    return (function(perturbed(array, index, h)) - function(perturbed(array, index, -h))) / (2 * h)


@quick
@given(chains())
def test_dual_and_primal_meet(chain: ChainArrays) -> None:
    for unary, pair in oracles.sentences(*chain):
        d, p = oracles.dual(unary, pair), oracles.primal(unary, pair)
        assert_allclose(d.value, p.value, rtol=1e-11, atol=1e-11)
        assert_allclose(d.edge_marginals, p.edge_marginals, rtol=0, atol=1e-9)
        assert_allclose(d.tag_marginals, p.tag_marginals, rtol=0, atol=1e-9)


@quick
@given(chains())
def test_dual_solution_is_in_the_polytope_and_attains_its_value(chain: ChainArrays) -> None:
    for unary, pair in oracles.sentences(*chain):
        d = oracles.dual(unary, pair)
        q, tags = d.edge_marginals, oracles.live(unary, pair)
        assert ((d.tag_marginals > 0) == tags).all()
        assert (d.lam[~tags] == 0).all()
        assert_allclose(d.tag_marginals.sum(axis=1), 1, rtol=1e-12)
        if len(unary) < 2:
            continue
        assert_allclose(q[:-1].sum(axis=1), q[1:].sum(axis=2), rtol=0, atol=1e-12)
        assert ((q > 0) == oracles.live_arcs(unary, pair)).all()
        w = oracles.fold_scores(unary, pair)
        primal_value = (q[q > 0] * (w[q > 0] - np.log(q[q > 0]))).sum()
        assert_allclose(primal_value, d.value, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("scale", [10.0, 30.0])
@pytest.mark.parametrize("removed", [0.0, 0.4])
def test_dual_and_primal_meet_on_sharp_chains(scale: float, removed: float) -> None:
    unary, pair = one(5, 6, 4, removed=removed, scale=scale)
    d, p = oracles.dual(unary, pair), oracles.primal(unary, pair)
    assert_allclose(d.value, p.value, rtol=1e-10)
    assert_allclose(d.edge_marginals, p.edge_marginals, rtol=0, atol=1e-8)


@pytest.mark.parametrize("fold", ["right", "half"])
def test_dual_does_not_depend_on_the_fold_and_lam_attains_it(fold: oracles.Fold) -> None:
    unary, pair = one(3, 6, 4, removed=0.3)
    reference, d = oracles.dual(unary, pair), oracles.dual(unary, pair, fold)
    assert_allclose(d.value, reference.value, rtol=1e-12)
    assert_allclose(d.edge_marginals, reference.edge_marginals, rtol=0, atol=1e-10)
    w = oracles.trimmed(unary, pair, fold)
    value, q = oracles.dual_objective(w, d.lam)
    assert_allclose(value, d.value, rtol=1e-12)
    assert_allclose(q, d.edge_marginals, rtol=0, atol=1e-12)
    rng = np.random.default_rng(0)
    for _ in range(10):
        other = d.lam + rng.normal(size=d.lam.shape) * oracles.live(unary, pair)
        other[[0, -1]] = 0
        assert oracles.dual_objective(w, other)[0] > d.value


@quick
@given(chains())
def test_bregman_value_bounds(chain: ChainArrays) -> None:
    """A <= B <= A + sum over interior positions of log(live tags); equality up to n = 2."""
    for unary, pair in oracles.sentences(*chain):
        a, d = oracles.log_partition(unary, pair), oracles.dual(unary, pair)
        interior = oracles.live(unary, pair)[1:-1].sum(axis=1)
        assert a - 1e-11 <= d.value <= a + np.log(interior).sum() + 1e-11
        if len(unary) <= 2:
            assert_allclose(d.value, a, rtol=1e-12, atol=1e-12)
            crf = oracles.crf_edge_marginals(unary, pair)
            assert_allclose(d.edge_marginals, crf, rtol=0, atol=1e-12)
            crf = oracles.crf_tag_marginals(unary, pair)
            assert_allclose(d.tag_marginals, crf, rtol=0, atol=1e-12)


def test_bregman_value_exceeds_the_log_partition_from_three_positions_on() -> None:
    unary, pair = one(0, 3)
    assert oracles.dual(unary, pair).value > oracles.log_partition(unary, pair) + 0.1


@quick
@given(chains(min_n=1), st.sampled_from([0.1, 0.5, 2.0]))
def test_low_temperature_limit(chain: ChainArrays, tau: float) -> None:
    """max <= tau B(w / tau) <= max + tau H_max."""
    for unary, pair in oracles.sentences(*chain):
        best = oracles.map_lp(unary, pair)
        value = tau * oracles.dual(unary / tau, pair / tau).value
        bound = oracles.max_entropy_bound(unary, pair)
        assert best - 1e-8 <= value <= best + tau * bound + 1e-8


@pytest.mark.parametrize("n", [1, 2, 4])
@pytest.mark.parametrize("family", ["crf", "bregman"])
def test_marginals_are_gradients(n: int, family: str) -> None:
    unary, pair = one(11, n, 3, removed=0.3)

    def value(u: oracles.Array, p: oracles.Array) -> float:
        return oracles.log_partition(u, p) if family == "crf" else oracles.dual(u, p).value

    if family == "crf":
        tags = oracles.crf_tag_marginals(unary, pair)
        edges = oracles.crf_edge_marginals(unary, pair)
    else:
        _, edges, tags, _ = oracles.dual(unary, pair)
    for index in zip(*np.nonzero(np.isfinite(unary)), strict=True):
        numeric = slope(lambda u: value(u, pair), unary, index)
        assert_allclose(tags[index], numeric, rtol=0, atol=1e-7)
    for index in zip(*np.nonzero(np.isfinite(pair)), strict=True):
        numeric = slope(lambda p: value(unary, p), pair, index)
        assert_allclose(edges[index], numeric, rtol=0, atol=1e-7)
    assert (tags[np.isinf(unary)] == 0).all()
    assert (edges[np.isinf(pair)] == 0).all()


@quick
@given(chains())
def test_paths_live_and_best(chain: ChainArrays) -> None:
    for unary, pair in oracles.sentences(*chain):
        sequences, scores = oracles.paths(unary, pair)
        assert len(sequences) >= 1
        assert len(np.unique(sequences, axis=0)) == len(sequences) or len(unary) == 0
        tags = np.zeros(unary.shape, dtype=bool)
        for sequence in sequences:
            tags[np.arange(len(unary)), sequence] = True
        assert (tags == oracles.live(unary, pair)).all()
        top, best = oracles.best_paths(unary, pair, 3)
        assert len(top) == len(best) == min(3, len(scores))
        assert top[0] == scores.max()
        assert (np.diff(top) <= 0).all()
        assert_allclose(oracles.map_lp(unary, pair), top[0], rtol=1e-9, atol=1e-9)
        for fold in ("right", "half") if len(unary) > 1 else ():
            w = oracles.fold_scores(unary, pair, fold)
            for sequence, score in zip(best, top, strict=True):
                total = sum(w[e, sequence[e], sequence[e + 1]] for e in range(len(w)))
                assert_allclose(total, score, rtol=1e-12, atol=1e-12)


@quick
@given(chains())
def test_crf_identities(chain: ChainArrays) -> None:
    """A = <mu, w> + entropy, and tag marginals are sums of edge marginals."""
    for unary, pair in oracles.sentences(*chain):
        r, q = oracles.crf_tag_marginals(unary, pair), oracles.crf_edge_marginals(unary, pair)
        assert_allclose(r.sum(axis=1), 1, rtol=1e-12)
        assert_allclose(q.sum(axis=2), r[:-1], rtol=0, atol=1e-12)
        assert_allclose(q.sum(axis=1), r[1:], rtol=0, atol=1e-12)
        expected = (r[r > 0] * unary[r > 0]).sum() + (q[q > 0] * pair[q > 0]).sum()
        entropy = oracles.crf_entropy(unary, pair)
        a = oracles.log_partition(unary, pair)
        assert_allclose(a, expected + entropy, rtol=1e-10, atol=1e-10)


def test_kl() -> None:
    p, q = one(1, 4), one(2, 4)
    r, arcs = oracles.crf_tag_marginals(*p), oracles.crf_edge_marginals(*p)
    difference = (r * (p[0] - q[0])).sum() + (arcs * (p[1] - q[1])).sum()
    expected = difference - oracles.log_partition(*p) + oracles.log_partition(*q)
    assert expected > 0.1
    assert_allclose(oracles.crf_kl(p, q), expected, rtol=1e-11)
    assert oracles.crf_kl(p, p) == 0
    restricted = (perturbed(q[0], (1, 0), -np.inf), q[1])
    assert oracles.crf_kl(p, restricted) == np.inf
    assert np.isfinite(oracles.crf_kl(restricted, p))


def test_closed_forms() -> None:
    n, num_tags = 5, 3
    zero = np.zeros((n, num_tags)), np.zeros((n - 1, num_tags, num_tags))
    assert_allclose(oracles.log_partition(*zero), n * np.log(num_tags))
    assert_allclose(oracles.crf_entropy(*zero), n * np.log(num_tags))
    assert_allclose(oracles.dual(*zero).value, 2 * (n - 1) * np.log(num_tags))
    assert_allclose(oracles.primal(*zero).value, 2 * (n - 1) * np.log(num_tags))
    assert_allclose(oracles.max_entropy_bound(*one(0, n)), 2 * (n - 1) * np.log(num_tags))
    assert_allclose(oracles.dual(*zero).edge_marginals, 1 / num_tags**2)

    only = np.full((n, num_tags), -np.inf)
    only[:, 1] = np.arange(n)
    for value in (oracles.log_partition, oracles.map_lp, lambda *s: oracles.dual(*s).value):
        assert_allclose(value(only, zero[1]), 10.0)
    assert_allclose(oracles.primal(only, zero[1]).value, 10.0)
    assert oracles.max_entropy_bound(only, zero[1]) == 0

    # n = 3, two tags, w = 0, only 0 -> 1 removed on the first edge. With m the mass of tag 1 in the
    # middle, the first edge has masses (1-m)/2, (1-m)/2, m and the second (1-m)/2 twice, m/2 twice.
    removed = np.zeros((2, 2, 2))
    removed[0, 0, 1] = -np.inf
    grid = np.linspace(0, 1, 200_001)[1:-1]
    entropy = -(1 - grid) * np.log((1 - grid) / 2) - grid * np.log(grid)
    entropy += -(1 - grid) * np.log(1 - grid) - grid * np.log(grid) + np.log(2)
    assert_allclose(oracles.dual(np.zeros((3, 2)), removed).value, entropy.max(), rtol=1e-9)


def test_no_positions_and_no_path() -> None:
    unary, pair = np.zeros((0, 3)), np.zeros((0, 3, 3))
    sequences, scores = oracles.paths(unary, pair)
    assert sequences.shape == (1, 0)
    assert scores.tolist() == [0.0]
    for function in (oracles.log_partition, oracles.crf_entropy, oracles.map_lp):
        assert function(unary, pair) == 0
    for solution in (oracles.dual(unary, pair), oracles.primal(unary, pair)):
        assert solution.value == 0
        assert solution.edge_marginals.shape == (0, 3, 3)
        assert solution.tag_marginals.shape == (0, 3)
    with pytest.raises(ValueError, match="no path"):
        oracles.dual(np.zeros((2, 2)), np.full((1, 2, 2), -np.inf))


@pytest.mark.parametrize("fold", ["right", "half"])
@pytest.mark.parametrize("first", [1, 2])
@pytest.mark.parametrize("omega", [1.0, 1.3])
@pytest.mark.parametrize("removed", [0.0, 0.5])
def test_projections_converge(
    fold: oracles.Fold, first: Literal[1, 2], omega: float, removed: float
) -> None:
    for n in range(6):
        unary, pair = one(n, n, 3, removed=removed)
        q = oracles.projections(unary, pair, 300, fold=fold, first=first, omega=omega)
        assert_allclose(q, oracles.dual(unary, pair).edge_marginals, rtol=0, atol=1e-9)


@pytest.mark.parametrize("fold", ["right", "half"])
def test_projections_decrease_the_dual(fold: oracles.Fold) -> None:
    """D(lam_k) - <w, y> = sum of -log q_k along y falls to B - <w, y> for all omega in (0, 2)."""
    unary, pair = one(7, 6, 4, removed=0.4)
    (score,), (path,) = oracles.best_paths(unary, pair, 1)
    bound = oracles.dual(unary, pair).value - score
    omega = [1.0, 1.9, 0.2, 1.5, 1.3, 1.0, 1.7, 1.0]

    def loss(k: int) -> float:
        q = oracles.projections(unary, pair, k, fold=fold, omega=omega[:k])
        assert_allclose(q.sum(axis=(1, 2)), 1, rtol=1e-12)
        return float(-np.log(q[np.arange(5), path[:-1], path[1:]]).sum())

    losses = [loss(k) for k in range(len(omega) + 1)]
    assert (np.diff(losses) < 0).all()
    assert losses[-1] > bound
    w = oracles.trimmed(unary, pair, fold)
    start = oracles.dual_objective(w, np.zeros_like(unary))[0]
    assert_allclose(losses[0], start - score, rtol=1e-12)


def test_projections_follow_the_block_update_of_the_dual() -> None:
    """One relaxed step in log space, lam_i <- lam_i + omega ((beta_i - alpha_i) / 2 - lam_i)."""
    unary, pair = one(9, 7, 3)
    w, lam = oracles.fold_scores(unary, pair, "half"), np.zeros((7, 3))
    for k, omega in enumerate([1.0, 1.3, 0.7]):
        for i in range(2 - k % 2, 6, 2):  # 2, 4 first: the paper's order
            alpha = np.log(np.exp(w[i - 1] - lam[i - 1][:, None]).sum(axis=0))
            beta = np.log(np.exp(w[i] + lam[i + 1][None, :]).sum(axis=1))
            lam[i] += omega * ((beta - alpha) / 2 - lam[i])
    q = oracles.projections(unary, pair, 3, fold="half", first=2, omega=[1.0, 1.3, 0.7])
    assert_allclose(q, oracles.dual_objective(w, lam)[1], rtol=1e-11)


def test_one_projection_is_exact_for_three_positions_and_satisfies_its_constraints() -> None:
    unary, pair = one(4, 3)
    exact = oracles.dual(unary, pair).edge_marginals
    assert_allclose(oracles.projections(unary, pair, 1), exact, rtol=0, atol=1e-12)
    assert np.abs(oracles.projections(unary, pair, 1, first=2) - exact).max() > 1e-3
    unary, pair = one(4, 7)
    q = oracles.projections(unary, pair, 4, first=2)  # the last one projects 1, 3, 5
    error = np.abs(q[:-1].sum(axis=1) - q[1:].sum(axis=2)).max(axis=1)
    assert (error[0::2] < 1e-14).all()
    assert (error[1::2] > 1e-6).all()
    other = oracles.projections(unary, pair, 4, first=2, fold="half")
    assert np.abs(q - other).max() > 1e-6  # the gauge changes the iterates


def test_folds() -> None:
    unary, pair = np.diag([2.0, 4.0, 6.0]), np.zeros((2, 3, 3))  # tag i scores at position i only
    right, half = (oracles.fold_scores(unary, pair, fold) for fold in ("right", "half"))
    assert (right[0, 0, 1], right[1, 1, 2]) == (6, 6)
    assert (half[0, 0, 1], half[1, 1, 2]) == (4, 8)


def test_mean_field() -> None:
    unary, pair = one(6, 3, 2)
    start = np.exp(unary) / np.exp(unary).sum(axis=1, keepdims=True)
    assert_allclose(oracles.mean_field(unary, pair, 0), start)
    assert_allclose(oracles.mean_field(unary, 0 * pair, 4), start)
    m = unary.copy()
    m[1:] += np.einsum("is,ist->it", start[:-1], pair)
    m[:-1] += np.einsum("it,ist->is", start[1:], pair)
    expected = np.exp(m) / np.exp(m).sum(axis=1, keepdims=True)
    assert_allclose(oracles.mean_field(unary, pair, 1), expected)
    removed = perturbed(unary, (1, 0), -np.inf)
    assert_allclose(oracles.mean_field(removed, pair, 3)[1], [0, 1])
    with pytest.raises(ValueError, match="removed transitions"):
        oracles.mean_field(unary, perturbed(pair, (0, 0, 0), -np.inf), 1)


def test_sentence_cuts_at_the_length() -> None:
    unary = torch.arange(8.0).reshape(4, 2)
    shared, own = torch.eye(2), torch.arange(12.0).reshape(3, 2, 2)
    for length, edges in ((0, 0), (1, 0), (3, 2), (4, 3)):
        for transitions in (None, shared, own):
            u, p = oracles.sentence(unary, transitions, length)
            assert u.dtype == p.dtype == np.float64
            assert u.shape == (length, 2)
            assert p.shape == (edges, 2, 2)
            assert (u == unary[:length].numpy()).all()
            for e in range(edges):
                matrix = torch.zeros(2, 2) if transitions is None else transitions
                expected = matrix if matrix.ndim == 2 else matrix[e]
                assert (p[e] == expected.numpy()).all()


@pytest.mark.parametrize("pairs", ["none", "shared", "per_pair"])
def test_random_chains_remove_what_they_say(pairs: Pairs) -> None:
    chain = random_chain_arrays(0, 20, 20, 10, pairs=pairs, removed=0.6, dtype=torch.float32)
    assert chain.unary.shape == (20, 20, 10)
    assert chain.unary.dtype == torch.float32
    assert chain.unary.isinf().double().mean().item() == pytest.approx(0.2, abs=0.03)
    if chain.transitions is None:
        assert pairs == "none"
    else:
        assert chain.transitions.shape == ((10, 10) if pairs == "shared" else (20, 19, 10, 10))
        assert chain.transitions.isinf().double().mean().item() == pytest.approx(0.6, abs=0.15)
    assert chain.lengths is not None
    assert chain.lengths.max() == 20
    assert chain.lengths.min() >= 0
    assert len(set(chain.lengths.tolist())) > 5
    for unary, pair in oracles.sentences(*chain):
        assert oracles.live(unary, pair).any(axis=1).all()


def test_bies() -> None:
    labels, start, end, follow = bies_follow()
    assert labels == ["B", "I", "E", "S"]
    assert start.tolist() == [True, False, False, True]
    assert end.tolist() == [False, False, True, True]
    open_span, closed = [False, True, True, False], [True, False, False, True]
    assert follow.tolist() == [open_span, open_span, closed, closed]

    labels, start, end, follow = bies_follow(["X", "Y"], outside=True)
    assert labels == ["B-X", "I-X", "E-X", "S-X", "B-Y", "I-Y", "E-Y", "S-Y", "O"]
    assert not follow[labels.index("B-X"), labels.index("E-Y")]
    assert follow[labels.index("E-X"), labels.index("B-Y")]
    assert follow[labels.index("O"), labels.index("O")]
    assert start.sum() == end.sum() == 5
    assert follow.sum() == 4 * 2 + 5 * 5


@pytest.mark.parametrize("n", [1, 3, 6])
def test_bies_sequences_are_segmentations(n: int) -> None:
    """A sentence of n characters has 2^(n-1) segmentations, each with one tag sequence."""
    _, start, end, follow = bies_follow()
    unary = torch.zeros(n, 4, dtype=torch.float64)
    unary[0].masked_fill_(~start, -torch.inf)
    unary[-1].masked_fill_(~end, -torch.inf)
    transitions = torch.zeros(4, 4, dtype=torch.float64).masked_fill(~follow, -torch.inf)
    sequences, _ = oracles.paths(*oracles.sentence(unary, transitions))
    assert len(sequences) == 2 ** (n - 1)
