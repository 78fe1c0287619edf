"""The scorer against its formula, word by word, with and without removed transitions."""

import math

import pytest
import torch
from torch import Tensor

import bcrf
from bcrf import LinearChain, Structure
from bcrf.tagger.nn import Scorer

LENGTHS = [4, 0, 1, 3]
TAGS, WIDTH, HIDDEN = 3, 5, 6
BIO = Structure.from_labels(["O", "B", "I"], "BIO", allow_partial_end=True)
ENDS = Structure(end=[True, False, True])


def scorer(transitions: str = "pairs", structure: Structure | None = None, **options) -> Scorer:
    torch.manual_seed(0)
    found = Scorer(WIDTH, TAGS, HIDDEN, transitions, structure, **options).double()
    for parameter in found.parameters():  # so that no learned score is zero
        torch.nn.init.normal_(parameter)
    return found


def states(lengths: list[int] = LENGTHS) -> Tensor:
    torch.manual_seed(1)
    return torch.randn(len(lengths), max(lengths, default=0), WIDTH, dtype=torch.float64)


def by_hand(model: Scorer, h: Tensor, structure: Structure | None) -> tuple[Tensor, Tensor]:
    """Unary [n, T] and pair scores [n-1, T, T] of one sentence, from the docstring's formulas."""
    v, *ab = (
        (weight, bias)
        for weight, bias in zip(
            model.project.weight.split(HIDDEN), model.project.bias.split(HIDDEN), strict=True
        )
    )
    rows = []
    for i, state in enumerate(h):
        row = model.tags(torch.relu(v[0] @ state + v[1]))
        if i == 0:
            row = row + model.start
        if i == len(h) - 1:
            row = row + model.end
        rows.append(row)
    unary = torch.stack(rows)
    pairs = unary.new_zeros(len(h) - 1, TAGS, TAGS)
    if ab:
        (a, a0), (b, b0) = ab
        for e in range(len(h) - 1):
            values = model.pairs(torch.relu(a @ h[e] + a0 + b @ h[e + 1] + b0))
            arcs = range(TAGS**2) if structure is None else structure.follow.flatten().nonzero()
            for value, arc in zip(values, arcs, strict=True):
                pairs[e, int(arc) // TAGS, int(arc) % TAGS] = value
    elif model.transitions is not None:
        pairs = pairs + model.transitions
    return unary, pairs


@pytest.mark.parametrize("structure", [None, BIO, ENDS], ids=["free", "bio", "ends"])
@pytest.mark.parametrize("transitions", ["pairs", "shared", "none"])
@pytest.mark.parametrize("lengths", [LENGTHS, [3, 3], [1, 1], [0, 0], []], ids=str)
def test_scores_equal_the_formula(transitions, structure, lengths):
    """Constraints are those of `LinearChain.constrain`, which the core's tests cover."""
    model, h = scorer(transitions, structure), states(lengths)
    chain = model(h, torch.tensor(lengths, dtype=torch.int64))
    n = max(lengths, default=0)
    assert chain.unary.shape == (len(lengths), n, TAGS)
    assert chain.shared == (transitions != "pairs")
    for b, length in enumerate(lengths):
        if not length:
            continue
        unary, pairs = by_hand(model, h[b, :length], structure)
        expected = LinearChain(unary.unsqueeze(0), pairs.unsqueeze(0))
        if structure is not None:
            expected = expected.constrain(structure)
        torch.testing.assert_close(chain.unary[b, :length], expected.unary[0])
        found = chain.pair_scores if chain.shared else chain.transitions[b, : length - 1]
        torch.testing.assert_close(found.expand(length - 1, -1, -1), expected.transitions[0])


@pytest.mark.parametrize("transitions", ["pairs", "shared"])
def test_gradients_equal_those_of_the_formula(transitions):
    """The gradients of a loss, with removed arcs and padding."""
    tags = torch.tensor([[1, 2, 0, 1], [9, 9, 9, 9], [0, 9, 9, 9], [1, 2, 2, 9]])
    lengths = torch.tensor(LENGTHS)
    model, h = scorer(transitions, BIO), states()
    chain = model(h, lengths)
    loss = bcrf.loss(bcrf.ForwardBackward(), chain, tags).sum()
    found = torch.autograd.grad(loss, list(model.parameters()))
    total = torch.zeros((), dtype=torch.float64)
    for b, length in enumerate(LENGTHS):
        if length:
            unary, pairs = by_hand(model, h[b, :length], BIO)
            alone = LinearChain(unary.unsqueeze(0), pairs.unsqueeze(0)).constrain(BIO)
            gold = tags[b : b + 1, :length]
            total = total + bcrf.loss(bcrf.ForwardBackward(), alone, gold).sum()
    torch.testing.assert_close(loss, total)
    expected = torch.autograd.grad(total, list(model.parameters()))
    torch.testing.assert_close(found, expected)


def test_forbidden_transitions_have_no_parameters():
    follow = torch.ones(TAGS, TAGS, dtype=torch.bool)
    follow[0, 1] = follow[2, 2] = False
    model = scorer(structure=Structure(follow=follow))
    assert model.pairs.weight.shape == (7, HIDDEN)
    chain = model(states(), torch.tensor(LENGTHS))
    assert torch.equal(chain.transitions[0] > -math.inf, follow.expand(3, -1, -1))


def test_unstructured_scorers_have_no_start_end_or_transition_scores():
    model = scorer("none", ends=False)
    assert {name for name, _ in model.named_parameters()} == {
        "project.weight",
        "project.bias",
        "tags.weight",
        "tags.bias",
    }
    assert model.project.weight.shape == (HIDDEN, WIDTH)
    chain = model(states(), torch.tensor(LENGTHS))
    assert chain.transitions is None
    assert set(model.state_dict()) == {name for name, _ in model.named_parameters()}


def test_constraints_are_not_saved_with_the_weights():
    """Constraints come from the task; a state dict holds only learned values."""
    model = scorer(structure=BIO)
    assert set(model.state_dict()) == {name for name, _ in model.named_parameters()}


def test_second_derivatives_go_through_removed_arcs():
    model, h = scorer(structure=BIO), states()

    def score(h: Tensor) -> Tensor:
        return bcrf.ForwardBackward()(model(h, torch.tensor(LENGTHS))).value.sum()

    assert torch.autograd.gradgradcheck(score, h.requires_grad_(), atol=1e-4)


def test_autocast_gives_single_precision_scores():
    model = Scorer(WIDTH, TAGS, HIDDEN, structure=BIO)
    with torch.autocast("cpu", torch.bfloat16):
        chain = model(states().float(), torch.tensor(LENGTHS))
    assert chain.dtype == chain.unary.dtype == chain.transitions.dtype == torch.float32
    assert bcrf.ForwardBackward()(chain).tag_marginals.dtype == torch.float32


def test_a_structure_must_have_as_many_tags():
    with pytest.raises(ValueError, match="structure has 3 tags; expected 4"):
        Scorer(WIDTH, 4, HIDDEN, structure=BIO)


@pytest.mark.parametrize("transitions", ["pairs", "shared", "none"])
@pytest.mark.parametrize("structure", [None, BIO])
def test_a_temperature_divides_all_scores(transitions, structure):
    plain = scorer(transitions, structure)
    colder = scorer(transitions, structure, temperature=0.25)
    expected = plain(states(), torch.tensor(LENGTHS)) / 0.25
    found = colder(states(), torch.tensor(LENGTHS))
    torch.testing.assert_close(found.unary, expected.unary)
    torch.testing.assert_close(found.transitions, expected.transitions)


def test_scores_of_forbidden_transitions_are_for_mean_field_only():
    model, free = scorer("pairs", BIO, score_forbidden=True), scorer("pairs")
    assert [p.shape for p in model.parameters()] == [p.shape for p in free.parameters()]
    lengths = torch.tensor(LENGTHS)
    chain, unconstrained = model(states(), lengths), free(states(), lengths)
    kept = bcrf.MeanField(3, keep_forbidden=True)(chain).tag_marginals
    torch.testing.assert_close(chain.raw_transitions, unconstrained.raw_transitions)
    assert not torch.allclose(kept, bcrf.MeanField(3)(chain).tag_marginals)
    # All other functions see the constrained chain.
    constrained = unconstrained.constrain(BIO)
    for solver in (bcrf.ForwardBackward(), bcrf.Bregman(5)):
        torch.testing.assert_close(solver(chain).value, solver(constrained).value)
    torch.testing.assert_close(bcrf.viterbi(chain), bcrf.viterbi(constrained))


def test_mean_field_learns_scores_of_forbidden_transitions():
    model = scorer("pairs", BIO, score_forbidden=True)
    chain = model(states(), torch.tensor(LENGTHS))
    tags = bcrf.viterbi(chain)[1]
    bcrf.loss(bcrf.MeanField(3, keep_forbidden=True), chain, tags).sum().backward()
    forbidden = ~BIO.follow.flatten()
    assert (model.pairs.weight.grad[forbidden] != 0).any()
