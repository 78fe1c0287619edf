"""Losses at a temperature: tau l(w / tau; y), with tau times the regulariser."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import bcrf
from bcrf import Bregman, ForwardBackward, LinearChain, MeanField, Solver
from tests.strategies import Pairs, bies_follow
from tests.subjects import (
    BREGMAN,
    CONVERGED,
    CRF,
    KINDS,
    SOLVERS,
    allowed_with,
    alone,
    gold_of,
    parametrize,
    ragged,
    ragged_chain,
    scores_of,
    with_scores,
)

TAUS = [0.1, 0.3, 2.0]
every_tau = pytest.mark.parametrize("tau", TAUS)


def entropy_regularised_maximum(chain: LinearChain, tau: float, solver: Solver) -> Tensor:
    """Return the maximum over q of <q, w> + tau H(q), [B]; H is the entropy of the family.

    The maximiser is the converged q of w / tau; <q, w> and H(q) are computed from q alone.
    """
    found = []
    for i in range(len(chain)):
        one = alone(chain, i)
        if not one.max_length:
            found.append(torch.zeros((), dtype=torch.float64))
            continue
        solution = solver(one / tau)
        q, p = solution.edge_marginals[0], solution.tag_marginals[0]
        pair = one.pair_scores.expand(*q.shape) if one.shared else one.pair_scores[0]
        gain = _product(p, one.unary[0]) + _product(q, pair)
        edges = -torch.special.xlogy(q, q).sum()
        if isinstance(solver, ForwardBackward):  # the entropy of the distribution over sequences
            edges = edges + torch.special.xlogy(p[1:-1], p[1:-1]).sum()
        entropy = edges if len(q) else -torch.special.xlogy(p, p).sum()
        found.append(gain + tau * entropy)
    return torch.stack(found)


def _product(q: Tensor, scores: Tensor) -> Tensor:
    return torch.where(q > 0, q * scores, 0.0).sum()


@every_tau
@pytest.mark.parametrize("pairs", KINDS)
@pytest.mark.parametrize("removed", [0.0, 0.4])
@parametrize({"crf": ForwardBackward(), "bregman": CONVERGED})
def test_the_loss_is_a_conjugate_with_a_scaled_regulariser(
    solver: Solver, tau: float, pairs: Pairs, removed: float
) -> None:
    chain = ragged(pairs, removed)
    tags = gold_of(chain)
    expected = entropy_regularised_maximum(chain, tau, solver) - chain.score(tags)
    assert_close(bcrf.loss(solver, chain, tags, tau), expected, rtol=1e-7, atol=1e-7)


@every_tau
@pytest.mark.parametrize("pairs", KINDS)
@parametrize(CRF | BREGMAN)
def test_the_gradient_is_marginals_minus_gold(solver: Solver, tau: float, pairs: Pairs) -> None:
    chain = ragged(pairs, 0.4)
    tags = gold_of(chain)
    scores = scores_of(chain)
    value = bcrf.loss(solver, with_scores(chain, scores), tags, tau)
    assert (value >= 0).all()
    found = torch.autograd.grad(value.sum(), scores)
    # The gradient at temperature 1 of the scores w / tau is q(w / tau) - y, too.
    colder = tuple((x / tau).detach().requires_grad_() for x in scores)
    expected = torch.autograd.grad(
        bcrf.loss(solver, with_scores(chain, colder), tags).sum(), colder
    )
    assert_close(found, expected, rtol=1e-9, atol=1e-9)


@every_tau
@parametrize(SOLVERS)
def test_sets_of_one_tag_have_the_loss_of_tags(solver: Solver, tau: float) -> None:
    chain = ragged("per_pair", 0.4)
    tags = gold_of(chain)
    single = torch.nn.functional.one_hot(tags.clamp(min=0), chain.num_tags).bool()
    value = bcrf.partial_loss(solver, chain, single, tau)
    tolerance = 1e-6 if isinstance(solver, Bregman) else 1e-9
    assert_close(value, bcrf.loss(solver, chain, tags, tau), rtol=tolerance, atol=tolerance)
    more = bcrf.partial_loss(solver, chain, allowed_with(chain, tags), tau)
    assert (more >= 0).all()
    if solver not in BREGMAN.values():  # holds for Bregman at convergence
        assert (more <= value + 1e-9).all()


@pytest.mark.parametrize("solver", [ForwardBackward(), Bregman(200)])
def test_at_low_temperature_the_loss_is_that_of_the_perceptron(solver: Solver) -> None:
    chain = ragged("shared", 0.0)
    tags = gold_of(chain)
    best, _ = bcrf.viterbi(chain)
    assert_close(bcrf.loss(solver, chain, tags, 1e-3), best - chain.score(tags), rtol=0, atol=0.05)


@every_tau
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@parametrize(SOLVERS)
def test_dtypes(solver: Solver, dtype: torch.dtype, tau: float) -> None:
    wide = ragged_chain(1, (0, 1, 2, 3, 7), 4)
    scores = [x.to(dtype) for x in (wide.unary, wide.pair_scores)]
    tags = gold_of(wide)
    value = bcrf.loss(solver, LinearChain(*scores, wide.lengths), tags, tau)
    exact = bcrf.loss(solver, LinearChain(*(x.double() for x in scores), wide.lengths), tags, tau)
    assert value.dtype is torch.float32
    assert_close(value.double(), exact, rtol=1e-4, atol=1e-4)


def test_a_tensor_as_temperature_is_differentiable() -> None:
    chain = ragged("shared", 0.0)
    tags = gold_of(chain)

    def total(tau: Tensor) -> Tensor:
        return bcrf.loss(ForwardBackward(), chain, tags, tau).sum()

    tau = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(total, tau)


@pytest.mark.parametrize("tau", [0.0, -1.0, math.inf, math.nan, "cold", None, torch.ones(2)])
def test_bad_temperatures_are_errors(tau: object) -> None:
    chain = LinearChain(torch.zeros(1, 2, 2))
    tags = torch.zeros(1, 2, dtype=torch.int64)
    with pytest.raises((TypeError, ValueError), match="temperature"):
        bcrf.loss(ForwardBackward(), chain, tags, tau)  # type: ignore[arg-type]
    with pytest.raises((TypeError, ValueError), match="temperature"):
        bcrf.partial_loss(ForwardBackward(), chain, chain.unary == 0, tau)  # type: ignore[arg-type]


# Mean field and forbidden transitions


@pytest.mark.parametrize("iterations", [1, 5])
def test_mean_field_can_keep_scores_that_only_the_structure_forbids(iterations: int) -> None:
    _, start, end, follow = bies_follow()
    rules = bcrf.Structure(start, end, follow)
    unary = torch.randn(3, 6, rules.num_tags, dtype=torch.float64)
    pair = torch.randn(3, 5, rules.num_tags, rules.num_tags, dtype=torch.float64)
    lengths = [6, 4, 1]
    chain = LinearChain(unary, pair, lengths, structure=rules)
    kept = MeanField(iterations, keep_forbidden=True)(chain)
    free = LinearChain(chain.unary, pair, lengths)  # starts and ends stay removed
    assert_close(kept.tag_marginals, MeanField(iterations)(free).tag_marginals)
    penalised = MeanField(iterations)(chain).tag_marginals
    assert not torch.allclose(kept.tag_marginals, penalised)
    # All other solvers exclude what the structure forbids; mean field charges a penalty for it.
    assert bool(rules.follow[bcrf.viterbi(chain)[1][0][:-1], bcrf.viterbi(chain)[1][0][1:]].all())
    removed = torch.where(rules.follow, pair, -math.inf)
    again = MeanField(iterations, keep_forbidden=True)(LinearChain(chain.unary, removed, lengths))
    assert_close(again.tag_marginals, penalised)


def test_uniform_distributions_before_the_first_update() -> None:
    unary = torch.tensor([[[3.0, 0.0], [0.0, 1.0]]], dtype=torch.float64)
    pair = torch.tensor([[1.0, -1.0], [0.5, 2.0]], dtype=torch.float64)
    chain = LinearChain(unary, pair)
    found = MeanField(1, initial="uniform")(chain).tag_marginals
    by_hand = torch.softmax(unary[0] + torch.stack([pair.mean(1), pair.mean(0)]), -1)
    assert_close(found[0], by_hand)
    assert_close(MeanField(0, initial="uniform")(chain).tag_marginals, torch.full_like(unary, 0.5))
    with pytest.raises(ValueError, match="initial must be one of"):
        MeanField(initial="random")  # type: ignore[arg-type]
