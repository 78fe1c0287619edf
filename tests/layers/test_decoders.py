"""Training solver and decoder are chosen independently."""

import itertools
import math

import pytest
import torch

import bcrf
from bcrf import Bregman, ForwardBackward, LinearChain, MeanField, Structure, Unstructured
from bcrf.decoding import constrained_mbr
from tests.layer_cases import HOLES, LAYERS, T, make, random_emissions

B, N = HOLES.shape
SOLVERS = {
    "exact": ForwardBackward(),
    "bregman": Bregman(10),
    "mean field": MeanField(5),
    "softmax": Unstructured(),
}


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("decoder", ["map", "viterbi", "certified"])
def test_best_sequences(name: str, decoder: str) -> None:
    layer, emissions = make(name, decoder=decoder), random_emissions(B, N)
    best = bcrf.viterbi(layer.chain(emissions, HOLES))[1]
    lengths = HOLES.sum(1).tolist()
    expected = [row[:n] for row, n in zip(best.tolist(), lengths, strict=True)]
    assert layer.decode(emissions, HOLES) == expected


@pytest.mark.parametrize("trained", LAYERS)
@pytest.mark.parametrize("decoder", [*SOLVERS, "mbr"])
@pytest.mark.parametrize("temperature", [1.0, 0.1])
def test_most_probable_tags(trained: str, decoder: str, temperature: float) -> None:
    solver = SOLVERS.get(decoder)
    choice = "mbr" if solver is None else solver
    layer = make(trained, decoder=choice, temperature=temperature)
    emissions = random_emissions(B, N)
    chain = layer.chain(emissions, HOLES)
    own = layer.solver if solver is None else solver
    marginals = own(chain.detach() / temperature).tag_marginals
    expected = [
        row[:n] for row, n in zip(marginals.argmax(-1).tolist(), HOLES.sum(1).tolist(), strict=True)
    ]
    assert layer.decode(emissions, HOLES) == expected


def test_decoders_can_be_changed_later() -> None:
    layer, emissions = make("exact"), random_emissions(40, 6)
    best = layer.decode(emissions)
    layer.decoder = "mbr"
    likely = layer.decode(emissions)
    assert likely == bcrf.decode(ForwardBackward(), layer.chain(emissions)).tolist()
    assert likely != best


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("penalty", [None, 1.0])
def test_constrained_mbr_by_enumeration(name: str, penalty: float | None) -> None:
    """Constrained MBR finds the well-formed sequence with the largest sum of marginals."""
    structure = Structure.from_labels(["B", "I", "E", "S"], "BIES")
    layer = make(name, 4, constraints=structure, penalty=penalty, decoder="constrained_mbr")
    emissions = random_emissions(40, 4, 4, seed=3)
    marginals = layer.marginals(emissions, converge=False).detach()
    repaired = 0
    for row, tags in enumerate(layer.decode(emissions)):
        best, hits = None, -math.inf
        for candidate in itertools.product(range(4), repeat=4):
            pairs = itertools.pairwise(candidate)
            if not structure.start[candidate[0]] or not structure.end[candidate[-1]]:
                continue
            if not all(bool(structure.follow[s, t]) for s, t in pairs):
                continue
            total = sum(float(marginals[row, i, t]) for i, t in enumerate(candidate))
            if total > hits:
                best, hits = list(candidate), total
        assert tags == best
        repaired += tags != marginals[row].argmax(-1).tolist()
    assert repaired > 0


def test_constrained_mbr_sees_what_the_scores_remove() -> None:
    """Without constraints, constrained MBR avoids tags and transitions that the scores remove."""
    emissions = random_emissions(30, 4)
    emissions[:, 1, 0] = -math.inf
    pairs = torch.zeros(30, 3, T, T, dtype=torch.float64)
    pairs[:, 1, 1, 2] = -math.inf
    layer = bcrf.TokenSoftmax(T)
    found = layer.decode_tensor(emissions, transitions=pairs)
    assert (found[:, 1] != 0).all()
    assert not ((found[:, 1] == 1) & (found[:, 2] == 2)).any()
    free = layer.decode_tensor(emissions)
    assert ((free[:, 1] == 1) & (free[:, 2] == 2)).any()
    assert torch.equal(found, constrained_mbr(layer.solver, LinearChain(emissions, pairs)))


def test_without_removed_transitions_it_is_the_most_probable_tags() -> None:
    layer, emissions = make("mean field"), random_emissions(B, N)
    chain = layer.chain(emissions, HOLES)
    assert torch.equal(
        constrained_mbr(layer.solver, chain, 0.5), bcrf.decode(layer.solver, chain, 0.5)
    )


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"decoder": "best"}, ValueError, "decoder must be a solver or one of .* got 'best'"),
        ({"decoder": 3}, TypeError, "decoder must be a solver or one of .* got 3"),
        ({"temperature": 0.0, "decoder": "mbr"}, ValueError, "temperature must be positive"),
        ({"temperature": 0.1}, ValueError, "temperature 0.1 changes nothing for decoder 'map'"),
        ({"temperature": 0.1, "decoder": "viterbi"}, ValueError, "changes nothing"),
    ],
)
def test_settings_that_make_no_sense(
    options: dict[str, object], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        bcrf.BregmanCRF(3, **options)


def test_any_solver_makes_a_layer() -> None:
    emissions = random_emissions(B, N)
    tags = torch.zeros(B, N).long()
    layer = bcrf.ChainLayer(T, Bregman.paper(4)).double()
    expected = bcrf.loss(Bregman.paper(4), layer.chain(emissions, HOLES), tags)
    torch.testing.assert_close(layer.loss(emissions, tags, HOLES, "none"), expected)
    with pytest.raises(TypeError, match="solver must be a solver"):
        bcrf.ChainLayer(T, "bregman")  # type: ignore[arg-type]
