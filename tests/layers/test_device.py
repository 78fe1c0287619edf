"""On a GPU, a layer never waits; `finite_emissions` changes no result, and saves launches."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import bcrf
from bcrf import Bregman, ChainLayer, LinearChain, Structure
from measurement.launches import LaunchCounter
from tests.layer_cases import (
    HOLES,
    LAYERS,
    PATTERNS,
    PATTERNS_WITHOUT_HOLES,
    T,
    bio,
    make,
    random_emissions,
)

B, N = HOLES.shape
RULES = bio()[1]
each_layer = pytest.mark.parametrize("name", LAYERS)
TAGS = torch.zeros(B, N, dtype=torch.int64)
ROWS = [list(PATTERNS).index(name) for name in PATTERNS_WITHOUT_HOLES]


def on_meta(layer: ChainLayer) -> ChainLayer:
    """Return the layer on the device meta, after a call that fills its caches."""
    layer = layer.to("meta")
    emissions = torch.empty(B, N, T, device="meta")
    layer.loss(emissions, torch.empty(B, N, dtype=torch.int64, device="meta"))
    return layer


def meta(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


@each_layer
@pytest.mark.parametrize("finite", [False, True], ids=["undeclared", "finite"])
@pytest.mark.parametrize("rules", [None, RULES], ids=["free", "rules"])
@pytest.mark.parametrize("penalty", [None, 3.0], ids=["hard", "soft"])
def test_no_call_waits(
    name: str, finite: bool, rules: Structure | None, penalty: float | None
) -> None:
    """The mask may have any pattern and tags may be -100, but their values cannot be read."""
    layer = on_meta(LAYERS[name](T, constraints=rules, penalty=penalty, finite_emissions=finite))
    emissions = meta((B, N, T)).requires_grad_()
    mask, tags = meta((B, N), torch.bool), meta((B, N), torch.int64)
    allowed, transitions = meta((B, N, T), torch.bool), meta((B, N - 1, T, T))
    for extra in (None, transitions):
        with LaunchCounter(refuse_waiting=True) as counter:
            for reduction in ("sum", "mean", "token_mean", "none"):
                loss = layer.loss(emissions, tags, mask, reduction, transitions=extra)
                loss.sum().backward()
            layer.loss(emissions, mask=mask, allowed=allowed, transitions=extra).backward()
            assert layer.decode_tensor(emissions, mask, transitions=extra).shape == (B, N)
            assert layer.marginals(emissions.detach(), mask, transitions=extra).shape == (B, N, T)
        assert counter.launches
        assert not counter.synchronisations


@pytest.mark.parametrize("decoder", ["map", "viterbi", "mbr", "constrained_mbr", Bregman.paper(5)])
@pytest.mark.parametrize("finite", [False, True], ids=["undeclared", "finite"])
def test_no_decoder_waits(decoder: str | Bregman, finite: bool) -> None:
    layer = on_meta(bcrf.BregmanCRF(T, constraints=RULES, decoder=decoder, finite_emissions=finite))
    with LaunchCounter(refuse_waiting=True):
        for mask in (None, meta((B, N), torch.bool)):
            assert layer.decode_tensor(meta((B, N, T)), mask).shape == (B, N)


def answers(layer: ChainLayer, emissions: Tensor, transitions: Tensor | None) -> list[Tensor]:
    """Return losses with gradients, marginals and tags of a layer."""
    emissions = emissions.clone().requires_grad_()
    mask = HOLES if transitions is None else HOLES[ROWS]
    tags = TAGS[: len(emissions)]
    inputs = [emissions, *layer.parameters()]
    if transitions is not None:
        transitions = transitions.clone().requires_grad_()
        inputs.append(transitions)
    loss = layer.loss(emissions, tags, mask, "none", transitions=transitions)
    allowed = torch.ones(emissions.shape, dtype=torch.bool)
    allowed[:, 1::2, 1:] = False
    partial = layer.loss(emissions, None, mask, "none", allowed=allowed, transitions=transitions)
    found = [loss, partial]
    for value in (loss, partial):
        found += torch.autograd.grad(value.sum(), inputs, materialize_grads=True)
    found.append(layer.marginals(emissions, mask, transitions=transitions, converge=False))
    found.append(layer.decode_tensor(emissions, mask, transitions=transitions))
    return found


@each_layer
@pytest.mark.parametrize("backend", ["auto", "torch"])
@pytest.mark.parametrize("rules", [None, RULES], ids=["free", "rules"])
@pytest.mark.parametrize("penalty", [None, 3.0], ids=["hard", "soft"])
@pytest.mark.parametrize("pairs", [False, True], ids=["shared", "per pair"])
def test_the_setting_changes_no_result(
    name: str, backend: str, rules: Structure | None, penalty: float | None, pairs: bool
) -> None:
    found = []
    for finite in (False, True):
        layer = make(name, constraints=rules, penalty=penalty, finite_emissions=finite)
        if name in ("exact", "bregman"):
            family = bcrf.ForwardBackward if name == "exact" else Bregman
            layer.solver = family(backend=backend)
        emissions = random_emissions(B, N)
        transitions = None
        if pairs:
            emissions = emissions[ROWS]
            generator = torch.Generator().manual_seed(3)
            shape = (len(ROWS), N - 1, T, T)
            transitions = torch.randn(shape, generator=generator, dtype=torch.float64)
        found.append(answers(layer, emissions, transitions))
    assert len(found[0]) > 5
    assert_close(found[1], found[0], rtol=1e-9, atol=1e-9)


@each_layer
def test_the_chain_is_declared(name: str) -> None:
    emissions = torch.zeros(2, 4, T)

    def chain(**options: object) -> LinearChain:
        return LAYERS[name](T, **options).chain(emissions)

    assert not chain().finite
    assert chain(finite_emissions=True).finite
    assert chain(finite_emissions=True).structure is None
    hard = chain(constraints=RULES, finite_emissions=True)
    assert hard.structure is not None
    assert torch.equal(hard.structure.follow, RULES.follow)
    soft = chain(constraints=RULES, finite_emissions=True, penalty=1.0)
    assert soft.finite
    assert soft.structure is None
    # The layer's chain equals a chain with this structure.
    expected = chain(finite_emissions=True).constrain(RULES)
    assert_close(hard.unary == -torch.inf, expected.unary == -torch.inf)
    assert hard.transitions is not None
    assert expected.transitions is not None
    assert_close(hard.transitions == -torch.inf, expected.transitions == -torch.inf)


def test_representation() -> None:
    assert "finite" not in repr(bcrf.BregmanCRF(3))
    assert "finite_emissions=True" in repr(bcrf.BregmanCRF(3, finite_emissions=True))
    assert repr(bcrf.CRF(3, finite_emissions=True)) == "CRF(num_tags=3, finite_emissions=True)"


def test_launches_of_a_declared_layer() -> None:
    """A declared layer skips trimming, or finds live tags in tables instead of a search."""
    counts = {}
    for finite in (False, True):
        for rules in (None, RULES):
            solver = Bregman(10, backend="torch")
            layer = on_meta(ChainLayer(T, solver, constraints=rules, finite_emissions=finite))
            emissions, tags = meta((B, N, T)).requires_grad_(), meta((B, N), torch.int64)
            with LaunchCounter(refuse_waiting=True) as counter:
                layer.loss(emissions, tags).backward()
            counts[finite, rules is not None] = counter.launches
    assert counts[True, False] < counts[False, False]
    assert counts[True, True] < counts[False, True]
