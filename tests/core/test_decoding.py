"""Decoding: certificates, minimum Bayes risk, k best."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import bcrf
from bcrf.inference.certified import _certify
from bcrf.kernels.dual import incoming_outgoing
from bcrf.kernels.folded_chain import fold
from tests.strategies import bies_follow, random_chain_arrays


def optimum(chain: bcrf.LinearChain) -> Tensor:
    """Return the best scores [B], computed by the naive kernel in float64."""
    return bcrf.viterbi(chain.double(), backend="naive")[0]


def rounding(chain: bcrf.LinearChain) -> float:
    """Return n * eps * max|w|, by which the score of an optimal path may differ."""
    scores = [chain.unary] + ([] if chain.transitions is None else [chain.transitions])
    largest = max(float(s[s > -math.inf].abs().max()) for s in scores)
    return chain.max_length * torch.finfo(chain.unary.dtype).eps * largest


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("constrained", [False, True])
@pytest.mark.parametrize("kind", ["shared", "per_pair"])
@pytest.mark.parametrize("scale", [0.3, 2.0])
def test_certified_decoding_is_optimal(
    scale: float, kind: str, constrained: bool, dtype: torch.dtype
) -> None:
    """The tags of 16 x 650 = 10,400 chains are optimal and well-formed, certified or not."""
    n, tags = 11, 8
    arrays = random_chain_arrays(
        0,
        650,
        n,
        tags,
        pairs=kind,  # type: ignore[arg-type]
        scale=scale,
        dtype=dtype,
    )
    chain = bcrf.LinearChain(*arrays)
    if constrained:
        _, start, end, follow = bies_follow(("X", "Y"))
        chain = chain.constrain(bcrf.Structure(start, end, follow))
    result = bcrf.certified_decode(chain)
    best = optimum(chain)
    score = chain.double().score(result.tags)
    assert bool(score.isfinite().all())
    assert_close(score, best, rtol=0, atol=rounding(chain))
    assert_close(result.score.double(), best, rtol=0, atol=4 * rounding(chain))
    assert result.certified.any()  # the test has seen both cases
    assert not result.certified.all()
    assert bool((result.tags[~chain.mask] == -100).all())
    assert bool((result.tags[chain.mask] >= 0).all())


def test_certificates_hold_at_any_dual_point() -> None:
    """For any lam, certified tags are optimal, and the sum of the maxima over arcs bounds the
    optimum."""
    chain = bcrf.LinearChain(*random_chain_arrays(1, 500, 6, 4, pairs="per_pair", removed=0.3))
    arcs, best = fold(chain), optimum(chain)
    certified_somewhere = torch.zeros(500, dtype=torch.bool)
    for seed in range(20):
        noise = torch.randn(arcs.single_scores.shape, generator=torch.Generator().manual_seed(seed))
        lam = bcrf.Bregman(seed)(chain / 0.1).lam * 0.1 + 0.05 * noise.double() * arcs.interior_live
        bound = torch.where(arcs.edge, arcs.scores(lam).amax((-2, -1)), 0.0).sum(1)
        long = chain.lengths > 1
        assert bool((bound >= best - 1e-9)[long].all())
        tags, certified = _certify(arcs, lam)
        assert_close(chain.score(tags)[certified], best[certified], rtol=0, atol=1e-9)
        assert_close(bound[certified & long], best[certified & long], rtol=0, atol=1e-9)
        certified_somewhere |= certified
    assert 0.5 < float(certified_somewhere.double().mean()) <= 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_peaked_chains_are_certified(dtype: torch.dtype) -> None:
    """At least 80 % of N(0, 1) chains whose gold path is raised by 5 get a certificate."""
    generator = torch.Generator().manual_seed(0)
    unary = torch.randn(500, 30, 17, generator=generator)
    gold = torch.randint(17, (500, 30), generator=generator)
    unary.scatter_add_(2, gold.unsqueeze(-1), torch.full((500, 30, 1), 5.0))
    transitions = torch.randn(500, 29, 17, 17, generator=generator)
    chain = bcrf.LinearChain(unary.to(dtype), transitions.to(dtype))
    result = bcrf.certified_decode(chain, iterations=10)
    assert float(result.certified.double().mean()) >= 0.8
    assert_close(result.score, bcrf.viterbi(chain)[0])


def test_short_sentences_are_always_certified() -> None:
    chain = bcrf.LinearChain(*random_chain_arrays(2, 100, 3, 4, pairs="shared", removed=0.3))
    short = chain.lengths <= 2
    result = bcrf.certified_decode(chain, iterations=0)
    assert bool(result.certified[short].all())
    assert_close(result.score, optimum(chain), rtol=0, atol=1e-12)


def test_ties_are_optimal_too() -> None:
    for tags in (1, 3):
        chain = bcrf.LinearChain(torch.zeros(4, 5, tags), torch.zeros(tags, tags), [0, 1, 2, 5])
        result = bcrf.certified_decode(chain)
        assert_close(result.score, torch.zeros(4))
        assert bool((result.tags[chain.mask] >= 0).all())


def test_certified_score_is_differentiable() -> None:
    unary, transitions, lengths = random_chain_arrays(3, 4, 5, 3, pairs="shared")
    unary.requires_grad_()
    result = bcrf.certified_decode(bcrf.LinearChain(unary, transitions, lengths))
    (gradient,) = torch.autograd.grad(result.score.sum(), unary)
    one_hot = torch.nn.functional.one_hot(result.tags.clamp(min=0), 3)
    assert torch.equal(gradient, one_hot * (result.tags >= 0).unsqueeze(-1).double())


@pytest.mark.parametrize(
    "solver",
    [bcrf.Bregman(200), bcrf.Bregman.paper(200), bcrf.Bregman(500, 1e-9), bcrf.ForwardBackward()],
)
def test_low_temperature_finds_the_best_sequence(solver: bcrf.Solver) -> None:
    chain = bcrf.LinearChain(*random_chain_arrays(4, 50, 6, 3, pairs="per_pair"))
    (first, second), (best, _) = (x.unbind(1) for x in bcrf.k_best(chain, 2))
    clear = first - second > 0.5
    found = bcrf.decode(solver, chain, temperature=0.01)
    assert clear.sum() > 10
    assert torch.equal(found[clear], best[clear])


def test_decoding_takes_the_most_probable_tags() -> None:
    chain = bcrf.LinearChain(*random_chain_arrays(5, 30, 6, 4, pairs="shared", removed=0.2))
    for solver in (bcrf.ForwardBackward(), bcrf.Bregman(), bcrf.MeanField(), bcrf.Unstructured()):
        p = solver(chain).tag_marginals
        tags = bcrf.decode(solver, chain)
        assert torch.equal(tags[chain.mask], p.argmax(-1)[chain.mask])
        assert bool((tags[~chain.mask] == -100).all())


def test_half_precision_marginals_do_not_make_ties() -> None:
    """Marginals are compared before rounding: the two tags have equal probabilities in bfloat16."""
    unary = torch.tensor([[[0.0, 0.0]], [[0.0, 0.0]]], dtype=torch.bfloat16)
    transitions = torch.zeros(2, 2, dtype=torch.bfloat16)
    chain = bcrf.LinearChain(unary, transitions)
    nudged = chain.unary + torch.tensor([[[0.0, 1e-4]], [[1e-4, 0.0]]])
    chain = bcrf.LinearChain._new(nudged, chain.transitions, chain.lengths, torch.bfloat16)
    for solver in (bcrf.ForwardBackward(), bcrf.Bregman(), bcrf.MeanField(), bcrf.Unstructured()):
        p = solver(chain).tag_marginals
        assert bool((p[..., 0] == p[..., 1]).all())
        assert bcrf.decode(solver, chain).flatten().tolist() == [1, 0]


def test_geometric_mean_is_the_next_projection() -> None:
    chain = bcrf.LinearChain(*random_chain_arrays(6, 20, 7, 3, pairs="per_pair", ragged=False))
    for k in (1, 2, 3):
        now, following = (bcrf.Bregman(k + j, relaxation=1.0)(chain) for j in (0, 1))
        projected = slice(1 if k % 2 == 0 else 2, 6, 2)
        incoming, _ = incoming_outgoing(following.folded, following.lam)
        mass = (incoming + following.lam).softmax(-1)
        assert_close(now.tag_marginals[:, projected], mass[:, projected], rtol=0, atol=1e-12)


@pytest.mark.parametrize("bad", [0, -1, True, 1.5])
def test_bad_k(bad: object) -> None:
    chain = bcrf.LinearChain(torch.zeros(1, 2, 2))
    with pytest.raises((ValueError, TypeError), match="k must be"):
        bcrf.k_best(chain, bad)  # type: ignore[arg-type]


def test_bad_number_of_samples() -> None:
    chain = bcrf.LinearChain(torch.zeros(1, 2, 2))
    with pytest.raises(ValueError, match="num_samples"):
        bcrf.sample(chain, -1)
    assert bcrf.sample(chain, 0).shape == (0, 1, 2)


@pytest.mark.parametrize("temperature", [0, -1.0, math.nan, math.inf, torch.ones(2), "cold"])
def test_bad_temperatures(temperature: object) -> None:
    chain = bcrf.LinearChain(torch.zeros(1, 3, 2))
    with pytest.raises((ValueError, TypeError), match="temperature"):
        bcrf.certified_decode(chain, temperature=temperature)  # type: ignore[arg-type]
    with pytest.raises((ValueError, TypeError), match="temperature"):
        bcrf.decode(bcrf.Bregman(), chain, temperature=temperature)  # type: ignore[arg-type]


def test_map_decode_is_exact_by_either_method() -> None:
    chain = bcrf.LinearChain(*random_chain_arrays(7, 20, 9, 4, pairs="shared", removed=0.2))
    score, _ = bcrf.viterbi(chain)
    for method in ("auto", "viterbi", "certified"):
        found, tags = bcrf.map_decode(chain, method)  # type: ignore[arg-type]
        assert_close(found, score)
        assert_close(chain.score(tags), score)
    with pytest.raises(ValueError, match="method must be"):
        bcrf.map_decode(chain, "greedy")  # type: ignore[arg-type]
