"""Constrained chains with a matrix per pair: kernels apply the rules and make no copy."""

import copy
import math
import pickle

import pytest
import torch
from torch import Tensor

import bcrf
from bcrf import Bregman, ForwardBackward, LinearChain, MeanField, Solver, Structure
from tests.comparing import any_path, needs_native

NEG = -math.inf


def chain_of(seed: int = 0, scale: float = 1.0, dtype: torch.dtype = torch.float64) -> LinearChain:
    generator = torch.Generator().manual_seed(seed)
    scores = [
        (torch.randn(*shape, generator=generator) * scale).to(dtype).requires_grad_()
        for shape in ((3, 5, 4), (3, 4, 4, 4))
    ]
    return LinearChain(*scores, [5, 3, 1])


def rules(*removed: tuple[int, int]) -> Structure:
    follow = torch.ones(4, 4, dtype=torch.bool)
    for before, after in removed:
        follow[before, after] = False
    return Structure(start=[True, True, False, True], follow=follow)


RULES = rules((0, 1), (2, 2), (3, 0))


@pytest.fixture
def refuse_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make it an error to compute the constrained transitions of a chain."""

    def refuse(chain: LinearChain) -> None:
        raise AssertionError("a constrained copy was made")

    monkeypatch.setattr(LinearChain, "constrained_transitions", refuse)


def by_hand(chain: LinearChain, structure: Structure) -> LinearChain:
    unary = chain.unary.clone()
    unary[:, 0] = torch.where(structure.start, unary[:, 0], NEG)
    return LinearChain(unary, torch.where(structure.follow, chain.pair_scores, NEG), chain.lengths)


SOLVERS: dict[str, Solver] = {
    "crf": ForwardBackward(),
    "crf torch": ForwardBackward(backend="torch"),
    "bregman": Bregman(10),
    "bregman torch": Bregman(10, backend="torch"),
    "mean field": MeanField(3),
}


def results(solver: Solver, chain: LinearChain, gold: Tensor, leaves: list[Tensor]) -> list[Tensor]:
    value = bcrf.loss(solver, chain, gold)
    slopes = torch.autograd.grad(value.sum(), leaves, create_graph=True)
    again = torch.autograd.grad(sum(x.square().sum() for x in slopes), leaves, allow_unused=True)
    return [value, solver(chain).tag_marginals, *slopes, *(x for x in again if x is not None)]


@pytest.mark.parametrize("name", SOLVERS)
def test_losses_and_their_derivatives(name):
    chain, solver = chain_of(), SOLVERS[name]
    leaves = [chain.unary, chain.pair_scores]
    expected = by_hand(chain, RULES)
    gold = any_path(expected.detach())
    for found, wanted in zip(
        results(solver, chain.constrain(RULES), gold, leaves),
        results(solver, expected, gold, leaves),
        strict=True,
    ):
        torch.testing.assert_close(found, wanted)
    assert torch.equal(bcrf.viterbi(chain.constrain(RULES))[1], bcrf.viterbi(expected)[1])


@needs_native
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [1.0, 30.0, 1e4])
def test_kernels_take_the_rules_and_make_no_copy(dtype, scale, refuse_copies):
    chain = chain_of(scale=scale, dtype=dtype)
    leaves = [chain.unary, chain.raw_transitions]
    unary = chain.unary.clone()
    unary[:, 0] = torch.where(RULES.start, unary[:, 0], NEG)
    pairs = torch.where(RULES.follow, chain.raw_transitions, NEG)
    gold = torch.tensor([[0, 0, 2, 3, 1], [1, 1, 0, -100, -100], [3, -100, -100, -100, -100]])
    for solver in (ForwardBackward(), Bregman(10)):
        value = bcrf.loss(solver, chain.constrain(RULES), gold)
        slopes = torch.autograd.grad(value.sum(), leaves)
        # The results are bitwise the same.
        expected = bcrf.loss(solver, LinearChain(unary, pairs, chain.lengths), gold)
        assert torch.equal(value, expected)
        wanted = torch.autograd.grad(expected.sum(), leaves, retain_graph=True)
        for one, other in zip(slopes, wanted, strict=True):
            assert torch.equal(one, other)
        assert (slopes[1][..., ~RULES.follow] == 0).all()


def test_other_chains_are_made_of_both_without_a_copy(monkeypatch):
    chain = chain_of().constrain(RULES)
    expected = chain.transitions.detach()
    for make, wanted in {
        "detach": (LinearChain.detach, expected),
        "double": (LinearChain.double, expected),
        "to": (lambda c: c.to(torch.float32), expected.float()),
        "divide": (lambda c: c / 2.0, expected / 2),
        "choose": (lambda c: c[1:], expected[1:]),
        "restrict": (lambda c: c.restrict(torch.ones(3, 5, 4, dtype=torch.bool)), expected),
        "constrain": (lambda c: c.constrain(RULES), expected),
        "more": (
            lambda c: c.constrain(rules((1, 1))),
            expected.masked_fill(~rules((1, 1)).follow, NEG),
        ),
    }.values():
        given = chain_of().constrain(RULES)
        with monkeypatch.context() as patch:
            patch.setattr(LinearChain, "constrained_transitions", None)  # an error if it is called
            found = make(given)
        assert not found.shared
        assert found.structure is not None
        assert torch.equal(found.transitions, wanted)
        assert torch.equal(found.constrained_transitions(), wanted)


@pytest.mark.parametrize("without", [torch.no_grad, torch.inference_mode])
def test_the_copy_has_the_gradient_of_where_the_rules_were_made(without):
    chain = chain_of()
    constrained = chain.constrain(RULES)
    with without():
        assert constrained.transitions.requires_grad
    (slope,) = torch.autograd.grad(
        constrained.transitions[..., RULES.follow].sum(), chain.pair_scores
    )
    assert torch.equal(slope, RULES.follow.to(slope.dtype).expand_as(slope))
    with without():
        constrained = chain.constrain(RULES)
    assert not constrained.transitions.requires_grad


def test_copies_and_pickles():
    chain = chain_of().detach().constrain(RULES)
    for other in (copy.copy(chain), copy.deepcopy(chain), pickle.loads(pickle.dumps(chain))):
        assert torch.equal(other.transitions, chain.transitions)
    with pytest.raises(AttributeError, match="no attribute 'transition'"):
        chain.transition  # noqa: B018
    with pytest.raises(AttributeError, match="cannot assign"):
        chain.transitions = None


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("solver", [ForwardBackward(), Bregman(10)])
def test_scores_of_forbidden_transitions_are_checked_too(solver, bad):
    chain = chain_of().detach()
    gold = any_path(by_hand(chain, RULES))
    chain.pair_scores[0, 2, 3, 0] = bad
    where = "sentence 0, position 3: the transition from tag 3 to tag 0 is"
    with pytest.raises(ValueError, match=f"{where} {bad}"):
        bcrf.loss(solver, chain.constrain(RULES), gold)


@pytest.mark.parametrize("solver", [ForwardBackward(), Bregman(10)])
def test_a_gold_sequence_against_the_rules_is_an_error(solver):
    chain = chain_of()
    gold = torch.tensor([[0, 1, 0, 0, 0], [0, 0, 0, -100, -100], [0, -100, -100, -100, -100]])
    with pytest.raises(ValueError, match="sentence 0, position 1: gold tag 1 may not follow tag 0"):
        bcrf.loss(solver, chain.constrain(RULES), gold)


def test_the_constructor_takes_the_rules():
    chain = chain_of()
    for scores in (chain.transitions, chain.transitions[0, 0], None):
        plain = LinearChain(chain.unary, scores, chain.lengths)
        found = LinearChain(chain.unary, scores, chain.lengths, structure=RULES)
        expected = plain.constrain(RULES)
        assert plain.structure is None
        for chain_ in (found, expected):
            assert torch.equal(chain_.structure.follow, RULES.follow)
            assert torch.equal(chain_.structure.start, RULES.start)
        assert torch.equal(found.unary, expected.unary)
        assert torch.equal(found.transitions, expected.transitions)
