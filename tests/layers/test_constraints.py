"""Test hard and soft constraints, partial labels, and the locations in errors."""

import itertools
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import bcrf
from bcrf import ChainLayer, LinearChain, Structure
from tests.layer_cases import (
    HOLES,
    LAYERS,
    T,
    bio,
    close,
    make,
    penalised,
    random_emissions,
    random_tags,
    sentences,
)

B, N = HOLES.shape
STRUCTURE = bio()[1]
each_layer = pytest.mark.parametrize("name", LAYERS)
each_structured = pytest.mark.parametrize("name", ["exact", "bregman"])


def legal_tags(keep: Tensor, seed: int = 0) -> Tensor:
    """Return well-formed gold tags at kept positions, and an invalid tag at removed ones."""
    generator = torch.Generator().manual_seed(seed)
    tags = torch.full(keep.shape, 77)
    for row, kept in zip(tags, keep, strict=True):
        n = int(kept.sum())
        free = LinearChain(torch.randn(1, n, T, generator=generator)).constrain(STRUCTURE)
        row[kept] = bcrf.viterbi(free)[1][0]
    return tags


def assert_same_gradients(found: Tensor, expected: Tensor, inputs: list[Tensor]) -> None:
    """Compare the gradients of the two sums; they must be finite."""
    for one, two in zip(
        torch.autograd.grad(found.sum(), inputs, materialize_grads=True),
        torch.autograd.grad(expected.sum(), inputs, materialize_grads=True),
        strict=True,
    ):
        assert one.isfinite().all()
        close(one, two)


def constrained(layer: ChainLayer, chain: LinearChain, penalty: float | None) -> LinearChain:
    """Return the chain of one sentence with the constraints written into its scores."""
    unary, n = chain.unary.clone(), chain.max_length
    if n:
        unary[:, 0] = penalised(unary[:, 0], STRUCTURE.start, penalty)
        unary[:, n - 1] = penalised(unary[:, n - 1], STRUCTURE.end, penalty)
    return LinearChain(unary, penalised(chain.pair_scores, STRUCTURE.follow, penalty))


@each_layer
@pytest.mark.parametrize("penalty", [None, 0.0, 2.5])
def test_losses(name: str, penalty: float | None) -> None:
    layer = make(name, constraints=STRUCTURE, penalty=penalty)
    emissions = random_emissions(B, N).requires_grad_()
    tags = legal_tags(HOLES) if penalty is None else random_tags(B, N)
    found = layer.loss(emissions, tags, HOLES, "none")
    expected = torch.cat(
        [
            bcrf.loss(
                layer.solver,
                constrained(layer, one.chain, penalty),
                tags[one.row, one.index].unsqueeze(0),
            )
            for one in sentences(layer, emissions, HOLES)
        ]
    )
    close(found, expected)
    assert_same_gradients(found, expected, [emissions, *layer.parameters()])


@each_layer
def test_a_penalty_of_nothing_is_no_constraint(name: str) -> None:
    emissions, tags = random_emissions(B, N), random_tags(B, N)
    soft = make(name, constraints=STRUCTURE, penalty=0.0)
    close(soft.loss(emissions, tags, HOLES), make(name).loss(emissions, tags, HOLES))


def well_formed(tags: list[int]) -> bool:
    if not tags:
        return True
    ends = bool(STRUCTURE.start[tags[0]] and STRUCTURE.end[tags[-1]])
    return ends and all(bool(STRUCTURE.follow[s, t]) for s, t in itertools.pairwise(tags))


@each_layer
@pytest.mark.parametrize("penalty", [None, 1.0])
def test_decoded_sequences(name: str, penalty: float | None) -> None:
    """Tags are well-formed if the constraints are hard, or if the decoder is constrained MBR."""
    layer = make(name, constraints=STRUCTURE, penalty=penalty)
    emissions = 2 * random_emissions(B * 10, N, seed=4)
    keep = HOLES.repeat(10, 1)
    found = layer.decode(emissions, keep)
    if penalty is None or layer.decoder == "constrained_mbr":
        assert all(well_formed(row) for row in found)
    free = make(name)
    free.load_state_dict(layer.state_dict())
    assert not all(well_formed(row) for row in free.decode(emissions, keep))
    if layer.decoder == "map":
        for one in sentences(layer, emissions, keep):
            best = bcrf.viterbi(constrained(layer, one.chain, penalty))[1][0].tolist()
            assert found[one.row] == best


@each_layer
def test_windows_may_start_and_end_inside_a_mention(name: str) -> None:
    labels = ["B", "I", "E", "S"]
    whole = Structure.from_labels(labels, "BIES")
    window = Structure.from_labels(labels, "BIES", allow_partial_start=True, allow_partial_end=True)
    tags = torch.tensor([[1, 1, 2, 0, 1]])  # I I E B I
    emissions = 9 * torch.nn.functional.one_hot(tags, 4).double()
    strict, partial = (make(name, 4, constraints=x) for x in (whole, window))
    with torch.no_grad():
        for layer in (strict, partial):
            for parameter in layer.parameters():
                parameter.zero_()
    assert partial.loss(emissions, tags) < 0.1
    assert partial.decode(emissions) == tags.tolist()
    assert strict.decode(emissions) != tags.tolist()
    with pytest.raises(
        ValueError, match=r"position 0: gold tag 1 \(I\) may not start a sentence\. .* penalty="
    ):
        strict.loss(emissions, tags)


def test_constraints_are_not_trained() -> None:
    """Parameters stay finite, and the state dict equals that of a layer without constraints."""
    layer = bcrf.ExactCRF(T, constraints=STRUCTURE)
    assert layer.state_dict().keys() == bcrf.ExactCRF(T).state_dict().keys()
    before = {name: value.clone() for name, value in layer.state_dict().items()}
    optimizer = torch.optim.SGD(layer.parameters(), 0.1)
    tags = legal_tags(HOLES)
    for _ in range(5):
        optimizer.zero_grad()
        layer.loss(random_emissions(B, N).float(), tags, HOLES).backward()
        optimizer.step()
    allowed = {
        "start_transitions": STRUCTURE.start,
        "end_transitions": STRUCTURE.end,
        "transitions": STRUCTURE.follow,
    }
    for name, value in layer.state_dict().items():
        assert value.isfinite().all()
        assert torch.equal(value[~allowed[name]], before[name][~allowed[name]])
        assert not torch.equal(value, before[name])


def test_constraints_can_be_replaced() -> None:
    layer, emissions = make("exact"), random_emissions(B, N, seed=8)
    free = layer.decode(emissions, HOLES)
    layer.constraints = STRUCTURE
    assert all(well_formed(row) for row in layer.decode(emissions, HOLES))
    layer.constraints = None
    assert layer.constraints is None
    assert layer.decode(emissions, HOLES) == free


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"constraints": Structure(start=[True] * 4)}, ValueError, "have 4 tags, the layer has 3"),
        ({"constraints": torch.ones(3, 3)}, TypeError, "must be a Structure, got Tensor"),
        ({"penalty": -1.0}, ValueError, "penalty must be finite and >= 0, or None, got -1.0"),
        ({"penalty": math.inf}, ValueError, "penalty must be finite"),
        ({"penalty": "hard"}, TypeError, "penalty must be a number"),
    ],
)
def test_settings_that_make_no_sense(
    options: dict[str, object], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        bcrf.BregmanCRF(3, **options)


# Errors name the caller's sentence and position, also after removed positions

MASK = torch.ones(3, 6)
MASK[1] = torch.tensor([0, 1, 0, 1, 1, 0])


def message(call: Callable[[], object]) -> str:
    with pytest.raises(ValueError, match="sentence") as caught:
        call()
    return str(caught.value)


@each_layer
@pytest.mark.parametrize("masked", [False, True])
def test_illegal_gold_tags_are_located(name: str, masked: bool) -> None:
    layer = make(
        name, constraints=Structure(STRUCTURE.start, [True, True, False], STRUCTURE.follow)
    )
    mask = MASK if masked else None

    def said(tags: Tensor) -> str:
        return message(lambda: layer.loss(random_emissions(3, 6), tags, mask))

    tags = torch.zeros(3, 6).long()
    tags[1, 4] = 2  # O I
    before = 3
    found = said(tags)
    assert found.startswith("sentence 1, position 4: gold tag 2 may not")
    if masked:  # it is the last kept position as well
        assert found.startswith("sentence 1, position 4: gold tag 2 may not end a sentence.")
    else:
        assert f"follow tag 0 of position {before}" in found
    tags = torch.zeros(3, 6).long()
    tags[1, 3] = 2
    place = 1 if masked else 2
    assert said(tags).startswith("sentence 1, position 3: gold tag 2 may not follow tag 0 of")
    assert f"of position {place}:" in said(tags)
    tags = torch.zeros(3, 6).long()
    tags[1, 1 if masked else 0] = 2
    place = 1 if masked else 0
    assert said(tags) == (
        f"sentence 1, position {place}: gold tag 2 may not start a sentence. The constraints of "
        "the layer forbid this: correct the tags, change the constraints, or make them soft with "
        "the argument penalty= of the layer"
    )
    tags = torch.zeros(3, 6).long()
    tags[1, 4] = 3
    assert said(tags) == "sentence 1, position 4: tag 3 is not in 0..2"
    tags[1, 4] = -1
    assert said(tags) == "sentence 1, position 4: tag -1 is not in 0..2"


@each_layer
def test_bad_scores_are_located(name: str) -> None:
    layer, tags = make(name), torch.zeros(3, 6).long()
    calls: list[Callable[[Tensor], object]] = [
        lambda e: layer.loss(e, tags, MASK),
        lambda e: layer.decode(e, MASK),
        lambda e: layer.marginals(e, MASK),
        lambda e: layer.k_best(e, 2, MASK),
        lambda e: layer.sample(e, 2, MASK),
        lambda e: layer.sequence_probability(e, tags, MASK),
    ]
    emissions = random_emissions(3, 6)
    emissions[1, 3, 2] = math.nan
    for call in calls:
        found = message(lambda: call(emissions))  # noqa: B023
        assert found.startswith("sentence 1, position 3: the score of tag 2 is nan")
    if layer.transitions is None:
        return
    with torch.no_grad():
        layer.transitions[1, 2] = math.inf
    with pytest.raises(ValueError, match="the transition from tag 1 to tag 2 is inf"):
        layer.loss(random_emissions(3, 6), tags, MASK)


def test_bad_pair_scores_are_located() -> None:
    layer, tags = make("exact"), torch.zeros(3, 6).long()
    pairs = torch.zeros(3, 5, T, T)
    pairs[2, 3, 0, 1] = math.nan
    mask = torch.ones(3, 6)
    mask[2, 0] = 0
    found = message(lambda: layer.loss(random_emissions(3, 6), tags, mask, transitions=pairs))
    assert found.startswith("sentence 2, position 4: the transition from tag 0 to tag 1 is nan")


@each_layer
def test_removed_gold_tags_are_located(name: str) -> None:
    emissions, tags = random_emissions(3, 6), torch.zeros(3, 6).long()
    emissions[1, 3, 0] = -math.inf
    found = message(lambda: make(name).loss(emissions, tags, MASK))
    assert found == "sentence 1, position 3: gold tag 0 is removed (-inf) there"


# Partial labels


def random_sets(seed: int = 0) -> Tensor:
    """Return allowed tags that contain a well-formed sequence.

    At removed positions they are arbitrary.
    """
    generator = torch.Generator().manual_seed(seed)
    allowed = torch.rand(B, N, T, generator=generator) < 0.4
    gold = legal_tags(HOLES).clamp(max=T - 1)
    allowed |= torch.nn.functional.one_hot(gold, T).bool()
    return torch.where(HOLES.unsqueeze(-1), allowed, False)


@each_layer
@pytest.mark.parametrize("ruled", [False, True])
def test_partial_labels(name: str, ruled: bool) -> None:
    layer = make(name, constraints=STRUCTURE if ruled else None)
    emissions, allowed = random_emissions(B, N).requires_grad_(), random_sets()
    found = layer.loss(emissions, None, HOLES, "none", allowed=allowed)
    expected = torch.cat(
        [
            bcrf.partial_loss(
                layer.solver,
                constrained(layer, one.chain, None if ruled else 0.0),
                allowed[one.row, one.index].unsqueeze(0),
            )
            for one in sentences(layer, emissions, HOLES)
        ]
    )
    close(found, expected)
    assert_same_gradients(found, expected, [emissions, *layer.parameters()])


@each_layer
def test_sets_of_one_tag_are_labels(name: str) -> None:
    layer, emissions, tags = make(name), random_emissions(B, N), random_tags(B, N)
    singles = torch.nn.functional.one_hot(tags, T).bool()
    for mask in (None, HOLES):
        close(
            layer.loss(emissions, mask=mask, allowed=singles, reduction="none"),
            layer.loss(emissions, tags, mask, "none"),
        )
    everything = torch.ones(B, N, T, dtype=torch.bool)
    # A partial Bregman loss runs ten more projections for its second term, so it may be negative.
    assert layer.loss(emissions, mask=HOLES, allowed=everything).abs() < 1e-6


@each_layer
def test_sets_that_make_no_sense(name: str) -> None:
    layer, emissions = make(name), random_emissions(3, 6)
    allowed = torch.ones(3, 6, T, dtype=torch.bool)
    allowed[1, 3] = False
    found = message(lambda: layer.loss(emissions, mask=MASK, allowed=allowed))
    assert found == "sentence 1, position 3: no tag is allowed"
    allowed[1, 3, 0] = True
    emissions[1, 3, 0] = -math.inf
    found = message(lambda: layer.loss(emissions, mask=MASK, allowed=allowed))
    assert found == "sentence 1, position 3: every allowed tag is removed (-inf) there"
    with pytest.raises(ValueError, match="expected tags or allowed, got both"):
        layer.loss(emissions, torch.zeros(3, 6).long(), allowed=allowed)
    with pytest.raises(TypeError, match=r"allowed must be a bool tensor, got torch\.float32"):
        layer.loss(emissions, allowed=allowed.float())
    with pytest.raises(ValueError, match=r"allowed must be \[B, n, T\] = \[3, 6, 3\]"):
        layer.loss(emissions, allowed=allowed[:, :2])


@each_structured
def test_sets_without_a_path_name_the_sentence(name: str) -> None:
    layer = make(name, constraints=STRUCTURE)
    allowed = torch.ones(3, 6, T, dtype=torch.bool)
    allowed[2, 4] = torch.tensor([True, False, False])
    allowed[2, 5] = torch.tensor([False, False, True])  # O I
    assert message(
        lambda: layer.loss(random_emissions(3, 6), mask=MASK, allowed=allowed)
    ).startswith("sentence 2 has no path left")
