"""bcrf.CRF agrees with pytorch-crf: numbers, errors, initialisation, state dicts.

Layers also load AllenNLP's state dicts.
"""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import bcrf
from bcrf import Structure
from tests.layer_cases import HOLES, random_emissions, random_tags

torchcrf = pytest.importorskip("torchcrf")

B, N, T = 5, 6, 4
LENGTHS = torch.tensor([6, 4, 1, 2, 5])
MASK = torch.arange(N) < LENGTHS.unsqueeze(1)
each_axis = pytest.mark.parametrize("batch_first", [False, True])


def pair(batch_first: bool, dtype: torch.dtype = torch.float64) -> tuple[bcrf.CRF, nn.Module]:
    """Return our layer and that of pytorch-crf, with the same parameters."""
    theirs = torchcrf.CRF(T, batch_first)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.mul_(10)
    ours = bcrf.CRF(T, batch_first)
    ours.load_state_dict(theirs.state_dict())
    return ours.to(dtype), theirs.to(dtype)


def batch(batch_first: bool, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    emissions, tags = random_emissions(B, N, T, dtype=dtype), random_tags(B, N, T)
    if batch_first:
        return emissions, tags, MASK
    return emissions.transpose(0, 1), tags.mT, MASK.mT


@each_axis
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("reduction", ["none", "sum", "mean", "token_mean"])
def test_log_likelihoods(batch_first: bool, dtype: torch.dtype, reduction: str) -> None:
    ours, theirs = pair(batch_first, dtype)
    emissions, tags, mask = batch(batch_first, dtype)
    results = []
    for layer in (ours, theirs):
        e = emissions.clone().requires_grad_()
        found = layer(e, tags, mask, reduction)
        weights = torch.linspace(1, 2, found.numel(), dtype=dtype).view(found.shape)
        inputs = [e, layer.start_transitions, layer.end_transitions, layer.transitions]
        results.append((found, *torch.autograd.grad((found * weights).sum(), inputs)))
    assert_close(results[0], results[1])
    assert_close(ours.nll(emissions, tags, mask, reduction), -results[1][0])
    assert_close(ours(emissions, tags, mask=mask, reduction=reduction), results[1][0])


@each_axis
def test_without_a_mask(batch_first: bool) -> None:
    ours, theirs = pair(batch_first)
    emissions, tags, mask = batch(batch_first)
    full = torch.ones_like(mask)
    assert_close(ours(emissions, tags), theirs(emissions, tags, full))
    assert ours.decode(emissions) == theirs.decode(emissions, full)


@each_axis
@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64], ids=str)
def test_decoding(batch_first: bool, dtype: torch.dtype) -> None:
    ours, theirs = pair(batch_first)
    emissions, tags, mask = batch(batch_first)
    found = ours.decode(emissions, mask.to(dtype))
    assert found == theirs.decode(emissions, mask)
    assert all(type(tag) is int for row in found for tag in row)
    assert_close(ours(emissions, tags, mask.to(dtype)), theirs(emissions, tags, mask))


def test_the_same_start_from_the_same_seed() -> None:
    layers = []
    for layer in (bcrf.CRF, torchcrf.CRF):
        torch.manual_seed(5)
        layers.append(layer(T).state_dict())
    assert layers[0].keys() == layers[1].keys()
    for name, value in layers[0].items():
        assert torch.equal(value, layers[1][name])
        assert value.abs().max() <= 0.1
    ours = bcrf.CRF(T)
    before = ours.transitions.clone()
    torch.manual_seed(6)
    ours.reset_parameters()
    assert not torch.equal(ours.transitions, before)
    assert repr(ours) == repr(torchcrf.CRF(T))


def test_state_dicts_load_in_both_directions() -> None:
    class ModelWithLayer(nn.Module):
        def __init__(self, layer: Callable[[int], nn.Module]) -> None:
            super().__init__()
            self.linear = nn.Linear(2, T)
            self.crf = layer(T)

    for source, target in ((torchcrf.CRF, bcrf.CRF), (bcrf.CRF, torchcrf.CRF)):
        state = ModelWithLayer(source).state_dict()
        model = ModelWithLayer(target)
        model.load_state_dict(state)
        for name, value in model.state_dict().items():
            assert torch.equal(value, state[name])


# Misuse: both raise ValueError


def crf(layer: Callable[..., nn.Module], batch_first: bool = False) -> nn.Module:
    return layer(T, batch_first=batch_first)


E, Y, M = torch.zeros(N, B, T), torch.zeros(N, B).long(), torch.ones(N, B).bool()
MISUSE: dict[str, Callable[[Callable[..., nn.Module]], object]] = {
    "no tags": lambda layer: layer(0),
    "negative number of tags": lambda layer: layer(-1),
    "two axes": lambda layer: crf(layer)(E[0], Y, M),
    "two axes, decoding": lambda layer: crf(layer).decode(E[0]),
    "another number of tags": lambda layer: crf(layer)(torch.zeros(N, B, T + 1), Y, M),
    "another number of tags, decoding": lambda layer: crf(layer).decode(torch.zeros(N, B, T + 1)),
    "tags of another length": lambda layer: crf(layer)(E, Y[:-1], M),
    "tags of another batch": lambda layer: crf(layer)(E, Y[:, :-1], M),
    "tags turned": lambda layer: crf(layer)(E, Y.mT, M),
    "mask of another shape": lambda layer: crf(layer)(E, Y, M[:-1]),
    "mask of another shape, decoding": lambda layer: crf(layer).decode(E, M[:-1]),
    "first step masked": lambda layer: crf(layer)(
        E, Y, M.clone().index_fill_(0, torch.tensor(0), 0)
    ),
    "one first step masked": lambda layer: crf(layer)(E, Y, M & (torch.arange(B) != 1)),
    "first step masked, decoding": lambda layer: crf(layer).decode(E, M & (torch.arange(B) != 1)),
    "first step masked, batch first": lambda layer: crf(layer, True).decode(
        E.transpose(0, 1), M.mT & (torch.arange(N) != 0)
    ),
    "unknown reduction": lambda layer: crf(layer)(E, Y, M, "max"),
}


@pytest.mark.parametrize("name", MISUSE)
@pytest.mark.parametrize("layer", [bcrf.CRF, torchcrf.CRF], ids=["ours", "theirs"])
def test_misuse_is_a_value_error(name: str, layer: Callable[..., nn.Module]) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the words differ
        MISUSE[name](layer)


def test_the_masked_first_step_is_named() -> None:
    mask = torch.ones(B, N)
    mask[3, 0] = 0
    with pytest.raises(ValueError, match=r"sentence 3: .*first position.*ExactCRF"):
        bcrf.CRF(T, batch_first=True).nll(torch.zeros(B, N, T), torch.zeros(B, N).long(), mask)


# Where pytorch-crf is wrong


def test_a_hole_gives_the_compacted_sequence() -> None:
    ours, theirs = pair(True)
    emissions, tags, mask = batch(True)
    mask = mask.clone()
    mask[0, 2:4] = mask[1, 1] = mask[4, 3] = False
    found, decoded = ours(emissions, tags, mask, "none"), ours.decode(emissions, mask)
    for row in range(B):
        kept = mask[row]
        alone = emissions[row, kept].unsqueeze(0)
        every = torch.ones(1, int(kept.sum()), dtype=torch.bool)
        assert_close(found[row], theirs(alone, tags[row, kept].unsqueeze(0), every))
        assert decoded[row] == theirs.decode(alone, every)[0]
    assert not torch.allclose(found, theirs(emissions, tags, mask, "none"))


def test_ignored_labels() -> None:
    ours, theirs = pair(True)
    emissions, tags, mask = batch(True)
    labels = torch.where(mask, tags, -100)
    assert_close(ours(emissions, labels), theirs(emissions, tags, mask))
    assert_close(ours(emissions, labels, mask), theirs(emissions, tags, mask))


# AllenNLP's state dicts: the same parameters, and a mask that is applied in decoding


def allennlp_state(structure: Structure | None, seed: int = 0) -> dict[str, Tensor]:
    """Return the state dict of AllenNLP's `ConditionalRandomField(T, constraints)`.

    Its start is tag T, its end is T + 1.
    """
    generator = torch.Generator().manual_seed(seed)
    mask = torch.ones(T + 2, T + 2)
    if structure is not None:
        mask.zero_()
        mask[:T, :T] = structure.follow
        mask[T, :T] = structure.start
        mask[:T, T + 1] = structure.end
    return {
        "transitions": torch.randn(T, T, generator=generator),
        "_constraint_mask": mask,
        "start_transitions": torch.randn(T, generator=generator),
        "end_transitions": torch.randn(T, generator=generator),
    }


def structure() -> Structure:
    return Structure.from_labels(["B", "I", "E", "S"], "BIES")


@pytest.mark.parametrize("prefix", ["", "crf."])
@pytest.mark.parametrize("layer", [bcrf.CRF, bcrf.BregmanCRF], ids=["crf", "bregman"])
def test_allennlp_constraints_become_constraints(
    prefix: str, layer: Callable[[int], bcrf.ChainLayer]
) -> None:
    state = allennlp_state(structure())
    crf = layer(T)
    module = crf if not prefix else nn.ModuleDict({"crf": crf})
    module.load_state_dict({prefix + name: value for name, value in state.items()})
    found, expected = crf.constraints, structure()
    assert found is not None
    for name in ("start", "end", "follow"):
        assert torch.equal(getattr(found, name), getattr(expected, name))
    for name in ("transitions", "start_transitions", "end_transitions"):
        assert torch.equal(getattr(crf, name), state[name])
    ends = torch.zeros(1, 3, T)
    ends[0, 0], ends[0, 2] = state["start_transitions"], state["end_transitions"]
    chain = bcrf.LinearChain(ends, state["transitions"]).constrain(expected)
    emissions = torch.zeros(1, 3, T) if crf.batch_first else torch.zeros(3, 1, T)
    assert crf.decode(emissions) == bcrf.viterbi(chain)[1].tolist()


def test_allennlp_without_constraints() -> None:
    crf = bcrf.CRF(T)
    crf.load_state_dict(allennlp_state(None))
    assert crf.constraints is None
    crf = bcrf.CRF(T, constraints=structure())
    crf.load_state_dict(allennlp_state(None))
    assert crf.constraints is not None


def test_allennlp_constraints_that_agree_or_not() -> None:
    state = allennlp_state(structure())
    bcrf.CRF(T, constraints=structure()).load_state_dict(state)
    other = Structure(end=[True, False, True, True])
    with pytest.raises(RuntimeError, match=r"_constraint_mask: it disagrees .*\(start\)"):
        bcrf.CRF(T, constraints=other).load_state_dict(state)
    state["_constraint_mask"] = torch.ones(T, T)
    with pytest.raises(RuntimeError, match=r"_constraint_mask: expected shape .* \[6, 6\]"):
        bcrf.CRF(T).load_state_dict(state)


def test_allennlp_without_start_and_end() -> None:
    """The state dict of a layer with include_start_end_transitions=False."""
    state = {
        k: v for k, v in allennlp_state(None).items() if k in ("transitions", "_constraint_mask")
    }
    crf = bcrf.ExactCRF(T, start_end=False)
    crf.load_state_dict(state)
    assert torch.equal(crf.transitions, state["transitions"])


def test_masks_of_every_pattern_work_in_the_other_class() -> None:
    """ExactCRF accepts masks that the compatible class refuses, as pytorch-crf does."""
    emissions, tags = random_emissions(len(HOLES), 7, T), random_tags(len(HOLES), 7, T)
    assert bcrf.ExactCRF(T).double().loss(emissions, tags, HOLES).isfinite()
    with pytest.raises(ValueError, match="first position"):
        bcrf.CRF(T, True).double().nll(emissions, tags, HOLES)
