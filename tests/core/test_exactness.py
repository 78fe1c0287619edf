"""Every exact method against enumeration, duality and linear programs, on a grid of small chains.

The grid has every n <= 6, T <= 4, kind of transitions, with and without removed tags and arcs, in
ragged batches of three; hypothesis draws more of the same with other scales.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from scipy.stats import chi2  # type: ignore[import-untyped]

import bcrf
from bcrf import Bregman, ForwardBackward, LinearChain, MeanField, Unstructured
from bcrf.inference import BregmanSolution
from tests import oracles
from tests.strategies import ChainArrays, Pairs, chains, random_chain_arrays
from tests.subjects import (
    CONVERGED,
    CRF,
    FACTORIZED,
    KINDS,
    STRUCTURED,
    TOLERANCE,
    arrays_of,
    close,
    gold_of,
    padded,
    parametrize,
    ragged_chain,
    scores_of,
    slopes,
    with_scores,
)

Case = tuple[int, int, Pairs, float]

# Positions, tags, transitions, share of removed arcs. One test has all chains of one size.
GRID: list[Case] = [
    (n, tags, kind, removed)
    for n in range(7)
    for tags in range(1, 5)
    for kind in KINDS
    for removed in (0.0, 0.5)
]
# A part of the grid, for tests that solve each chain many times.
FEW: list[Case] = [c for c in GRID if c[0] in (1, 2, 3, 6) and c[1] in (2, 4) and c[2] != "none"]


def on(cases: list[Case]) -> Callable[[Callable[[Case], None]], Callable[[int, int], None]]:
    """Run a test of one chain on all `cases`. If it fails, the traceback shows the case."""

    def decorate(test: Callable[[Case], None]) -> Callable[[int, int], None]:
        @pytest.mark.parametrize(("n", "tags"), sorted({case[:2] for case in cases}))
        def sized(n: int, tags: int) -> None:
            for case in cases:
                if case[:2] == (n, tags):
                    test(case)

        sized.__name__, sized.__doc__ = test.__name__, test.__doc__
        return sized

    return decorate


quick = settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)


@cache
def problem(case: Case, other: int = 0) -> tuple[LinearChain, list[oracles.Sentence]]:
    """Return a ragged batch and its sentences; `other` is the seed of another batch of the same
    lengths."""
    n, tags, kind, removed = case
    seed = 1000 * n + 100 * tags + 10 * KINDS.index(kind) + int(removed > 0)
    arrays = random_chain_arrays(seed, 3, n, tags, pairs=kind, removed=removed, scale=1.5)
    if other:
        more = random_chain_arrays(seed + other, 3, n, tags, pairs=kind, removed=removed)
        arrays = more._replace(lengths=arrays.lengths)
    return LinearChain(*arrays), oracles.sentences(*arrays)


@cache
def converged(case: Case) -> BregmanSolution:
    return CONVERGED(problem(case)[0])


def check_crf(solver: bcrf.Solver, chain: LinearChain, parts: list[oracles.Sentence]) -> None:
    solution = solver(chain)
    close(solution.value, [oracles.log_partition(*s) for s in parts])
    tags, edges = solution.tag_marginals, solution.edge_marginals
    close(tags, padded([oracles.crf_tag_marginals(*s) for s in parts], tags))
    close(edges, padded([oracles.crf_edge_marginals(*s) for s in parts], edges))


def check_bregman(solution: BregmanSolution, parts: list[oracles.Sentence]) -> None:
    exact = [oracles.dual(*s) for s in parts]
    close(solution.value, [d.value for d in exact])
    tags, edges = solution.tag_marginals, solution.edge_marginals
    close(tags, padded([d.tag_marginals for d in exact], tags))
    close(edges, padded([d.edge_marginals for d in exact], edges))


@on(GRID)
def test_crf_is_enumeration(case: Case) -> None:
    for solver in CRF.values():
        check_crf(solver, *problem(case))


@on(GRID)
def test_bregman_is_the_dual_minimum(case: Case) -> None:
    """B also lies between A and A + the sum of log(live tags) over interior positions; for n <= 2,
    B = A."""
    chain, parts = problem(case)
    check_bregman(converged(case), parts)
    a, b = ForwardBackward()(chain).value, converged(case).value
    free = [float(np.log(oracles.live(*s)[1:-1].sum(axis=1)).sum()) for s in parts]
    assert (a <= b + TOLERANCE).all()
    assert (b <= a + torch.tensor(free, dtype=torch.float64) + TOLERANCE).all()
    close(b[chain.lengths <= 2], a[chain.lengths <= 2])


@quick
@given(chains())
def test_any_small_chain(arrays: ChainArrays) -> None:
    chain, parts = LinearChain(*arrays), oracles.sentences(*arrays)
    for solver in CRF.values():
        check_crf(solver, chain, parts)
    check_bregman(CONVERGED(chain), parts)
    scores, tags = bcrf.viterbi(chain)
    close(scores, [oracles.best_paths(*s, 1)[0][0] for s in parts])
    close(chain.score(tags), scores)
    close(bcrf.entropy(chain), [oracles.crf_entropy(*s) for s in parts])


@on(FEW)
def test_bregman_is_the_primal_maximum(case: Case) -> None:
    solution, parts = converged(case), problem(case)[1]
    exact = [oracles.primal(*s) for s in parts]
    close(solution.value, [p.value for p in exact])
    q, r = solution.edge_marginals, solution.tag_marginals
    # The error of the marginals is the root of the error of the value, see test_oracles.py.
    expected = padded([p.edge_marginals for p in exact], q)
    torch.testing.assert_close(q, expected, rtol=0, atol=1e-8)
    torch.testing.assert_close(r, padded([p.tag_marginals for p in exact], r), rtol=0, atol=1e-8)


@on(FEW)
def test_every_iterate_is_the_papers_projection(case: Case) -> None:
    """Compare q with k steps of Algorithm 1 in primal space, and D(lam) with <w, y> - sum_e log
    q[e, y]."""
    for iterations in (0, 1, 2, 5):
        check_iterate(case, iterations)


def check_iterate(case: Case, iterations: int) -> None:
    chain, parts = problem(case)
    ramp = [1.0, 1.05, 1.1, 1.15][: max(iterations - 1, 0)] + [1.0] * (iterations > 0)
    ours = Bregman(iterations), "half", 1, ramp
    paper = Bregman.paper(iterations), "right", 2, [1.0] * iterations
    for solver, fold, first, omegas in (ours, paper):
        for backend in ("torch", "naive"):
            solution = replace(solver, backend=backend)(chain)
            exact = [
                oracles.projections(*s, iterations, fold=fold, first=first, omega=omegas)
                for s in parts
            ]
            close(solution.edge_marginals, padded(exact, solution.edge_marginals))
            for value, (unary, pair), q in zip(solution.value, parts, exact, strict=True):
                if len(unary) < 2:
                    close(value, oracles.log_partition(unary, pair))
                    continue
                (score,), (path,) = oracles.best_paths(unary, pair, 1)
                arcs = q[range(len(q)), path[:-1], path[1:]]
                close(value, score - np.log(arcs).sum())


@on(GRID)
def test_viterbi_and_certified_decoding(case: Case) -> None:
    chain, parts = problem(case)
    exact = [oracles.best_paths(*s, 1) for s in parts]
    longest = int(chain.lengths.argmax())
    lp = torch.tensor(oracles.map_lp(*parts[longest]), dtype=torch.float64)
    found = [bcrf.viterbi(chain), bcrf.viterbi(chain, backend="naive")]
    for iterations, temperature in ((10, 0.1), (0, 1.0)):  # the second proves little
        best = bcrf.certified_decode(chain, iterations, temperature)
        assert best.certified.dtype == torch.bool
        found.append((best.score, best.tags))
    for scores, tags in found:
        close(scores, [score[0] for score, _ in exact])
        torch.testing.assert_close(scores[longest], lp, rtol=1e-8, atol=1e-8)  # what HiGHS reaches
        assert tags.dtype == torch.int64
        for (unary, pair), row, score in zip(parts, tags, scores, strict=True):
            length = len(unary)
            assert (row[length:] == -100).all()
            close(score, oracles.path_scores(unary, pair, row[None, :length].numpy())[0])


@on(GRID)
def test_k_best(case: Case) -> None:
    chain, parts = problem(case)
    most = max(len(oracles.paths(*s)[0]) for s in parts)
    for k in sorted({1, 2, 5, min(most, 300) + 2}):
        scores, tags = bcrf.k_best(chain, k)
        assert scores.shape == (3, k)
        assert tags.shape == (3, k, chain.max_length)
        for (unary, pair), row, paths in zip(parts, scores, tags, strict=True):
            exact, length = oracles.best_paths(unary, pair, k)[0], len(unary)
            count = len(exact)
            close(row[:count], exact)
            assert (row[count:] == -math.inf).all()
            assert (paths[count:] == -100).all()
            assert (paths[:, length:] == -100).all()
            inside = paths[:count, :length].numpy()
            close(row[:count], oracles.path_scores(unary, pair, inside))
            assert len({tuple(path) for path in inside.tolist()}) == count


@on(GRID)
def test_entropy_and_kl(case: Case) -> None:
    chain, parts = problem(case)
    close(bcrf.entropy(chain), [oracles.crf_entropy(*s) for s in parts])
    other, other_parts = problem(case, other=1)
    exact = [oracles.crf_kl(p, q) for p, q in zip(parts, other_parts, strict=True)]
    close(bcrf.kl(chain, other), exact)
    close(bcrf.kl(chain, chain), [0.0] * 3)


def test_certificates_are_given_to_some_chains_of_the_grid() -> None:
    long = [problem(c)[0] for c in GRID if c[0] > 3 and c[1] > 1]
    proved = [torch.cat([bcrf.certified_decode(c, k).certified for c in long]) for k in (0, 10)]
    assert 0 < int(proved[0].sum()) < int(proved[1].sum())


def test_some_divergences_of_the_grid_are_infinite_and_some_are_not() -> None:
    found = [bcrf.kl(problem(c)[0], problem(c, other=1)[0]) for c in GRID if c[3]]
    infinite = torch.cat(found) == math.inf
    assert 20 < int(infinite.sum()) < infinite.numel() - 20


@pytest.mark.parametrize("tag_score", [0.0, -30.0, -1000.0])
def test_kl_is_infinite_however_rare_the_lacking_path(tag_score: float) -> None:
    unary = torch.tensor([[[0.0, tag_score], [0.0, 0.0]]], dtype=torch.float64)
    chain = LinearChain(unary)
    lacks = LinearChain(unary, torch.tensor([[0.0, 0.0], [-math.inf, 0.0]], dtype=torch.float64))
    assert float(bcrf.kl(chain, lacks)) == math.inf
    assert math.isfinite(float(bcrf.kl(lacks, chain)))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("removed", [0.0, 0.5])
def test_samples_follow_the_distribution(kind: Pairs, removed: float) -> None:
    chain, parts = problem((4, 3, kind, removed))
    count = 10000
    draws = bcrf.sample(chain, count, torch.Generator().manual_seed(0))
    assert draws.shape == (count, 3, 4)
    again = bcrf.sample(chain, count, torch.Generator().manual_seed(0))
    assert torch.equal(draws, again)
    assert not torch.equal(draws, bcrf.sample(chain, count, torch.Generator().manual_seed(1)))
    for b, (unary, pair) in enumerate(parts):
        length = len(unary)
        assert (draws[:, b, length:] == -100).all()
        sequences, scores = oracles.paths(unary, pair)
        place = {tuple(path): i for i, path in enumerate(sequences.tolist())}
        # A sampled path that uses a removed tag or arc raises KeyError here.
        drawn = [place[tuple(path)] for path in draws[:, b, :length].tolist()]
        observed = np.bincount(drawn, minlength=len(place))
        expected = count * np.exp(scores - oracles.log_partition(unary, pair))
        rare = expected < 5
        observed = np.append(observed[~rare], observed[rare].sum())
        expected = np.append(expected[~rare], expected[rare].sum() + 1e-9)
        statistic = ((observed - expected) ** 2 / np.maximum(expected, 1)).sum()
        assert statistic < chi2.ppf(0.9999, max(len(expected) - 1, 1))


@on(FEW)
def test_low_temperature_bounds_the_maximum(case: Case) -> None:
    """Prop. 1, corrected: max <= tau B(w / tau) <= max + tau H_max."""
    chain, parts = problem(case)
    best = torch.tensor([oracles.best_paths(*s, 1)[0][0] for s in parts], dtype=torch.float64)
    max_entropy = torch.tensor([oracles.max_entropy_bound(*s) for s in parts], dtype=torch.float64)
    for tau in (1.0, 0.3, 0.1, 0.03):
        value = tau * Bregman(20000, tolerance=1e-9)(chain / tau).value
        assert (value >= best - TOLERANCE).all()
        assert (value <= best + tau * max_entropy + TOLERANCE).all()


@on(FEW)
def test_the_value_decreases_towards_the_minimum(case: Case) -> None:
    chain, _ = problem(case)
    for relaxation in (0.5, 1.0, 1.9):
        values = [Bregman(k, relaxation=relaxation)(chain).value for k in range(6)]
        assert (values[-1] >= converged(case).value - TOLERANCE).all()
        for before, after in pairwise(values):
            assert (after <= before + TOLERANCE).all()


@on(GRID)
def test_mean_field_is_its_definition(case: Case) -> None:
    chain, parts = problem(case)
    finite = [(unary, np.maximum(pair, -7.0)) for unary, pair in parts]
    for k in (0, 1, 2, 5):
        solution = MeanField(k, penalty=7.0)(chain)
        exact = [oracles.mean_field(*s, k) for s in finite]
        close(solution.tag_marginals, padded(exact, solution.tag_marginals))
        products = [r[:-1, :, None] * r[1:, None, :] for r in exact]
        close(solution.edge_marginals, padded(products, solution.edge_marginals))
        gains = [
            (r[r > 0] * (unary[r > 0] - np.log(r[r > 0]))).sum() + (q * pair).sum()
            for (unary, pair), r, q in zip(finite, exact, products, strict=True)
        ]
        close(solution.value, gains)


@on(GRID)
def test_unstructured_is_softmax(case: Case) -> None:
    chain, parts = problem(case)
    solution = Unstructured()(chain)
    exact = [torch.softmax(torch.from_numpy(unary), -1).numpy() for unary, _ in parts]
    close(solution.tag_marginals, padded(exact, solution.tag_marginals))
    products = [r[:-1, :, None] * r[1:, None, :] for r in exact]
    close(solution.edge_marginals, padded(products, solution.edge_marginals))
    sums = [float(torch.from_numpy(unary).logsumexp(-1).sum()) for unary, _ in parts]
    close(solution.value, sums)


@on(GRID)
def test_as_chain_has_the_marginals_and_is_normalised(case: Case) -> None:
    check_as_chain(ForwardBackward()(problem(case)[0]), problem(case)[1], same_paths=True)
    check_as_chain(converged(case), problem(case)[1], same_paths=False)


def check_as_chain(
    solution: bcrf.Solution, parts: list[oracles.Sentence], same_paths: bool
) -> None:
    markov = solution.as_chain()
    again = ForwardBackward()(markov)
    markov_parts = oracles.sentences(*arrays_of(markov))
    close(again.value, [0.0] * 3)
    close(again.tag_marginals, solution.tag_marginals)
    close(again.edge_marginals, solution.edge_marginals)
    for (unary, pair), probabilities in zip(parts, markov_parts, strict=True):
        sequences, scores = oracles.paths(unary, pair)
        log_p = oracles.path_scores(*probabilities, sequences)
        if same_paths:
            close(torch.from_numpy(log_p), scores - oracles.log_partition(unary, pair))
        close(torch.tensor(np.exp(log_p).sum()), 1.0)


@parametrize(STRUCTURED | {"converged": CONVERGED})
def test_marginals_are_the_derivative_of_the_value(solver: bcrf.Solver) -> None:
    """The derivatives by arc scores are the edge marginals at every k.

    Those by unary scores are the tag marginals where flow is conserved: CRF, converged Bregman.
    """
    chain = ragged_chain(0, range(8), 3, removed=0.3)
    scores = scores_of(chain)
    solution = solver(with_scores(chain, scores))
    by_unary, by_pair = slopes(solution.value, scores)
    close(by_pair, solution.edge_marginals)
    if solver in (*CRF.values(), CONVERGED):
        close(by_unary, solution.tag_marginals)


@parametrize(STRUCTURED)
@pytest.mark.parametrize("pairs", KINDS)
def test_loss_is_value_minus_score(solver: bcrf.Solver, pairs: Pairs) -> None:
    chain = ragged_chain(0, range(8), 3, pairs=pairs, removed=0.3)
    gold = gold_of(chain)
    close(bcrf.loss(solver, chain, gold), solver(chain).value - chain.score(gold))


@parametrize(FACTORIZED)
def test_loss_is_cross_entropy(solver: bcrf.Solver) -> None:
    chain = ragged_chain(0, range(8), 3, removed=0.3)
    gold, solution = gold_of(chain), solver(chain)
    log_r = solution.tag_marginals.log().flatten(0, 1)
    terms = torch.nn.functional.nll_loss(log_r, gold.flatten(), reduction="none")
    close(bcrf.loss(solver, chain, gold), terms.view(gold.shape).sum(1))
