"""Layers with `train_temperature`: every result is that of the scores w / tau."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.testing import assert_close

import bcrf
from bcrf import ChainLayer
from tests.layer_cases import LAYERS

RULES = bcrf.Structure.from_labels(["O", "B", "I"], "BIO")
TAU = 0.3


def pair_of_layers(
    family: Callable[..., ChainLayer], **settings: object
) -> tuple[ChainLayer, ChainLayer]:
    """Return a layer at temperature `TAU`, and one at 1 whose parameters are divided by `TAU`."""
    torch.manual_seed(0)
    one = family(3, train_temperature=TAU, **settings).double()
    other = family(3, **settings).double()
    for parameter in one.parameters():
        torch.nn.init.normal_(parameter)
    other.load_state_dict({name: value / TAU for name, value in one.state_dict().items()})
    return one, other


@pytest.mark.parametrize("family", LAYERS.values(), ids=list(LAYERS))
@pytest.mark.parametrize("constraints", [None, RULES])
@pytest.mark.parametrize("holes", [False, True])
def test_a_temperature_is_a_scale_of_the_scores(
    family: Callable[..., ChainLayer], constraints: bcrf.Structure | None, holes: bool
) -> None:
    layer, scaled = pair_of_layers(family, constraints=constraints, batch_first=True)
    emissions = torch.randn(2, 5, 3, dtype=torch.float64)
    mask = torch.tensor([[1, 1, 0 if holes else 1, 1, 1], [1, 1, 1, 0, 0]])
    tags = torch.tensor([[0, 1, 2, 2, 0], [1, 2, 0, 0, 0]])
    if holes:
        tags[0, 3] = 2
    pairs = None if holes else torch.randn(2, 4, 3, 3, dtype=torch.float64)
    own = (mask, "none")
    found = layer.loss(emissions, tags, *own, transitions=pairs)
    colder = None if pairs is None else pairs / TAU
    expected = TAU * scaled.loss(emissions / TAU, tags, *own, transitions=colder)
    assert_close(found, expected)
    allowed = torch.nn.functional.one_hot(tags, 3).bool() | (torch.rand(2, 5, 3) < 0.5)
    assert_close(
        layer.loss(emissions, None, *own, allowed=allowed, transitions=pairs),
        TAU * scaled.loss(emissions / TAU, None, *own, allowed=allowed, transitions=colder),
    )
    assert_close(
        layer.marginals(emissions, mask, transitions=pairs),
        scaled.marginals(emissions / TAU, mask, transitions=colder),
    )
    assert layer.decode(emissions, mask, transitions=pairs) == scaled.decode(
        emissions / TAU, mask, transitions=colder
    )
    assert_close(
        layer.sequence_probability(emissions, tags, mask, transitions=pairs),
        scaled.sequence_probability(emissions / TAU, tags, mask, transitions=colder),
    )


@pytest.mark.parametrize("family", LAYERS.values(), ids=list(LAYERS))
def test_the_loss_is_the_function_at_a_temperature(family: Callable[..., ChainLayer]) -> None:
    layer, _ = pair_of_layers(family, batch_first=True)
    plain = family(3, batch_first=True).double()
    plain.load_state_dict(layer.state_dict())
    emissions, tags = torch.randn(2, 5, 3, dtype=torch.float64), torch.randint(3, (2, 5))
    expected = bcrf.loss(plain.solver, plain.chain(emissions), tags, TAU)
    assert_close(layer.loss(emissions, tags, reduction="none"), expected)
    assert "train_temperature=0.3" in repr(layer)
    assert "train_temperature" not in repr(plain)


@pytest.mark.parametrize("family", LAYERS.values(), ids=list(LAYERS))
@pytest.mark.parametrize("tau", [0.0, -1.0, float("inf"), "cold"])
def test_bad_temperatures_are_errors(family: Callable[..., ChainLayer], tau: object) -> None:
    with pytest.raises((TypeError, ValueError), match="temperature"):
        family(3, train_temperature=tau)
