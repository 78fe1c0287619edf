"""Configs, names of objectives and decoders, and the network as a whole."""

import copy
import dataclasses
import json
import math

import pytest
import torch
from torch import nn

import bcrf
from bcrf import Bregman, ForwardBackward, LinearChain, MeanField, Structure, Unstructured
from bcrf.tagger.nn import (
    Batch,
    LazyAdam,
    ModelConfig,
    Sizes,
    TaggerModel,
    clip_gradients,
    collate,
    decoder,
    default_decoder,
    probability_solver,
    training_solver,
)
from tests import oracles

TINY = ModelConfig(
    width=8, heads=2, hidden=16, score_width=6, dropout=0.0, layer_dropout=0.0, unknown_rate=0.0
)
SIZES = Sizes(tags=3, words=12, characters=9)
BIO = Structure.from_labels(["O", "B", "I"], "BIO")
OBJECTIVES = ["unstructured", "crf", "mean_field", "bregman", "bregman-5-relaxed"]
DECODERS = [
    "viterbi",
    "certified",
    "unstructured",
    "mean_field-5",
    "bregman-10",
    "bregman-3-relaxed",
]
TAGS = torch.tensor([[1, 2, 0, 1], [0, -100, -100, -100], [-100] * 4, [0, 1, 2, -100]])


def model(structure: Structure | None = None, seed: int = 0, **changes) -> TaggerModel:
    torch.manual_seed(seed)
    return TaggerModel(dataclasses.replace(TINY, **changes), SIZES, structure)


def batch(empty: bool = False) -> Batch:
    words = [] if empty else [[3, 4, 5, 3], [6], [], [7, 8, 4]]
    return collate(words, [[[2 + w % 5, 3] for w in sentence] for sentence in words])


# ------------------------------------------------------------------------------------------- config


def test_config_round_trip_through_json():
    config = ModelConfig(layers=2, characters="cnn", objective="bregman-20", dropout=0)
    assert ModelConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    assert ModelConfig.from_dict({}) == ModelConfig()


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"laeyrs": 2}, ValueError, "unknown setting 'laeyrs'; did you mean 'layers'"),
        ({"layers": -1}, ValueError, "layers: expected an integer of at least 0, got -1"),
        ({"layers": "2"}, TypeError, 'layers: expected an integer .*, got "2"'),
        ({"width": 0}, ValueError, "width: expected an integer of at least 1"),
        ({"dropout": 1.0}, ValueError, "dropout: expected a number .* less than 1, got 1.0"),
        ({"dropout": None}, TypeError, "dropout: expected a number"),
        ({"characters": "lstm"}, ValueError, 'characters: expected one of .*cnn, got "lstm"'),
        ({"transitions": None}, ValueError, "transitions: expected one of"),
        (
            {"character_kernel": 4},
            ValueError,
            "character_kernel: expected an odd integer .*, got 4",
        ),
        ({"layers": 2, "heads": 7}, ValueError, "heads must divide width = 768, got 7"),
        ({"layers": 2, "width": 9, "heads": 3}, ValueError, "width must be even"),
        ({"pretrained": ""}, ValueError, 'pretrained: expected a folder or hub name, got ""'),
        ({"pretrained": "x", "layers": 2}, ValueError, "layers must be 0 with a pretrained"),
        ({"pretrained": "x", "characters": "cnn"}, ValueError, "characters must be 'none'"),
        ({"pretrained": "x", "window": 0}, ValueError, "window: expected an integer of at least 1"),
        ({"objective": "svm"}, ValueError, "objective must be one of unstructured, crf.*'svm'"),
    ],
)
def test_errors_about_wrong_config_values(changes, error, message):
    with pytest.raises(error, match=message):
        ModelConfig.from_dict(changes)


def test_sizes_that_are_too_small_are_errors():
    with pytest.raises(ValueError, match="tags must be at least 1"):
        Sizes(tags=0)
    with pytest.raises(ValueError, match="words must be at least 2"):
        TaggerModel(TINY, Sizes(tags=3))
    with pytest.raises(ValueError, match="characters must be at least 2"):
        TaggerModel(dataclasses.replace(TINY, characters="cnn"), Sizes(tags=3, words=5))


def test_defaults_are_those_of_the_paper():
    torch.manual_seed(0)
    flat = TaggerModel(ModelConfig(), Sizes(17, 50))
    assert flat.encoder.table.weight.shape == (50, 768)
    assert 0.095 < flat.encoder.table.weight[1:].std().item() < 0.105
    assert flat.scorer.project.weight.shape == (3 * 256, 768)
    assert flat.scorer.pairs.weight.shape == (17 * 17, 256)
    deep = TaggerModel(ModelConfig(layers=2), Sizes(17, 50)).encoder
    assert [layer.heads for layer in deep.layers] == [8, 8]
    assert deep.layers[0].up.weight.shape == (2048, 768)


# -------------------------------------------------------------------------------------------- names


def test_objectives_by_name():
    assert training_solver("unstructured") == Unstructured()
    assert training_solver("crf") == ForwardBackward()
    assert training_solver("mean_field") == MeanField(10, keep_forbidden=True)
    assert training_solver("mean_field-5") == MeanField(5, keep_forbidden=True)
    uniform = MeanField(5, initial="uniform", keep_forbidden=True)
    assert training_solver("mean_field-5-uniform") == uniform
    assert training_solver("bregman") == training_solver("bregman-10") == Bregman.paper(10)
    assert training_solver("bregman-7-relaxed") == Bregman(7)
    assert training_solver("bregman-relaxed") == Bregman(10)


def test_decoders_by_name():
    torch.manual_seed(0)
    chain = LinearChain(torch.randn(4, 9, 3) * 2, torch.randn(3, 3) * 2, [9, 1, 0, 6])
    expected = {
        "viterbi": bcrf.viterbi(chain)[1],
        "certified": bcrf.certified_decode(chain).tags,
        "certified-2": bcrf.viterbi(chain)[1],
        "unstructured": bcrf.decode(Unstructured(), chain),
        "mean_field-1": bcrf.decode(MeanField(1), chain),
        "mean_field": bcrf.decode(MeanField(10), chain),
        "bregman": bcrf.decode(Bregman.paper(10), chain, 0.1),
        "bregman-1": bcrf.decode(Bregman.paper(1), chain, 0.1),
        "bregman-1-relaxed": bcrf.decode(Bregman(1), chain, 0.1),
    }
    for name, tags in expected.items():
        assert torch.equal(decoder(name)(chain), tags), name
    # These decoders give different tags on this chain.
    assert not torch.equal(expected["bregman-1"], expected["bregman"])
    assert not torch.equal(expected["mean_field-1"], expected["mean_field"])
    assert not torch.equal(expected["unstructured"], expected["viterbi"])


@pytest.mark.parametrize(
    "name",
    ["", "Viterbi", "viterbi-3", "bregman-0", "bregman--3", "bregman-ten", "bregman-3-relax",
     "mean_field-5-relaxed", "crf", "unstructured-1", "bregman-10 ", "bregman-१"],
)  # fmt: skip
def test_unknown_decoders_are_named(name):
    with pytest.raises(ValueError, match="decoder must be one of viterbi, certified") as error:
        decoder(name)
    assert repr(name) in str(error.value)


def test_names_are_strings():
    with pytest.raises(TypeError, match="decoder must be a string, got 3"):
        decoder(3)
    with pytest.raises(TypeError, match="objective must be a string, got None"):
        training_solver(None)


def test_each_objective_has_a_decoder_of_its_own():
    assert default_decoder("crf") == "viterbi"
    for name in ("unstructured", "mean_field-5", "bregman", "bregman-5-relaxed"):
        assert default_decoder(name) == name
        decoder(name)
    with pytest.raises(ValueError, match="objective must be"):
        default_decoder("viterbi")


# ------------------------------------------------------------------------------------------ network


LEARNERS = [(objective, 0, "none") for objective in OBJECTIVES] + [("crf", 1, "cnn")]


@pytest.mark.parametrize(("objective", "layers", "characters"), LEARNERS)
@pytest.mark.parametrize("structure", [None, BIO], ids=["free", "bio"])
def test_every_model_memorizes_a_batch(objective, layers, characters, structure):
    network = model(structure, layers=layers, characters=characters, objective=objective)
    optimizer = LazyAdam(network, 0.03)
    losses = []
    for _ in range(40):
        optimizer.zero_grad()
        loss = network.loss(network(batch()), TAGS)
        assert loss.shape == (4,)
        assert loss[2] == 0  # the empty sentence
        loss.mean().backward()
        assert clip_gradients(network.parameters(), 5.0) > 0
        optimizer.step()
        losses.append(loss.mean().item())
    assert losses[-1] < 0.1 * losses[0]
    chain = network.eval()(batch())
    assert torch.equal(network.decode(chain), TAGS)
    assert torch.equal(network.marginals(chain).argmax(-1)[chain.mask], TAGS[chain.mask])


@pytest.mark.parametrize("name", DECODERS)
def test_any_decoder_works_with_any_model(name):
    for objective in OBJECTIVES:
        network = model(BIO, objective=objective)
        chain = network(batch())
        tags = network.decode(chain, name)
        assert torch.equal(tags, decoder(name)(chain.detach()))
        assert torch.equal(tags == -100, ~chain.mask)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_the_loss_is_that_of_the_family(objective):
    network = model(BIO, objective=objective)
    chain = network(batch())
    expected = bcrf.loss(training_solver(objective), chain, TAGS)
    torch.testing.assert_close(network.loss(chain, TAGS), expected)
    allowed = torch.zeros(4, 4, 3, dtype=torch.bool)
    allowed[..., 0] = allowed[..., 1] = True
    partial = network.loss(chain, allowed)
    torch.testing.assert_close(
        partial, bcrf.partial_loss(training_solver(objective), chain, allowed)
    )
    assert not torch.allclose(partial, expected)


@pytest.mark.parametrize("objective", ["crf", "bregman"])
def test_marginals_are_probabilities_of_the_model(objective):
    """Against enumeration (CRF) and a general optimiser on the dual (Bregman)."""
    network = model(BIO, objective=objective).eval()
    with torch.no_grad():
        for parameter in network.scorer.parameters():
            nn.init.normal_(parameter)
    chain = network(batch())
    found = network.marginals(chain)
    parts = oracles.sentences(chain.unary, chain.transitions, chain.lengths)
    for b, (unary, pair) in enumerate(parts):
        if len(unary) < 2:
            continue
        if objective == "crf":
            sequences, scores = oracles.paths(unary, pair)
            weight = torch.softmax(torch.tensor(scores), 0)
            hot = nn.functional.one_hot(torch.tensor(sequences), 3).double()
            expected = torch.einsum("p,pnt->nt", weight, hot)
        else:
            expected = torch.tensor(oracles.dual(unary, pair).tag_marginals)
        torch.testing.assert_close(found[b, : len(unary)].double(), expected, rtol=1e-4, atol=1e-4)
    assert not found[1, 1:].any()


def test_marginals_of_the_factorised_families_are_their_own():
    for objective in ("unstructured", "mean_field-5"):
        network = model(objective=objective)
        chain = network(batch())
        expected = training_solver(objective)(chain).tag_marginals
        torch.testing.assert_close(network.marginals(chain), expected.detach())
        assert probability_solver(objective) == training_solver(objective)


def test_unstructured_models_have_no_transitions():
    network = model(objective="unstructured", transitions="pairs")
    assert not any("pairs" in name for name, _ in network.named_parameters())
    assert network.scorer.project.weight.shape == (6, 8)
    assert network(batch()).transitions is None
    # Viterbi still finds a best sequence under the constraints.
    constrained = model(BIO, objective="unstructured")
    tags = constrained.decode(constrained(batch()), "viterbi")
    assert bool(constrained(batch()).score(tags).isfinite().all())


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_an_empty_batch_has_an_empty_loss(objective):
    """A process of a data-parallel run may get an empty batch."""
    network = model(BIO, objective=objective)
    chain = network(batch(empty=True))
    assert network.loss(chain, torch.zeros(0, 0, dtype=torch.int64)).shape == (0,)
    network.loss(chain, torch.zeros(0, 0, dtype=torch.int64)).sum().backward()
    assert network.decode(chain).shape == (0, 0)
    assert network.marginals(chain).shape == (0, 0, 3)


def test_a_sentence_of_ten_thousand_words():
    network = model(BIO).eval()
    words = [3 + i % 9 for i in range(10_000)]
    with torch.no_grad():
        chain = network(collate([words, words[:3]]))
        tags = network.decode(chain)
        assert tags.shape == (2, 10_000)
        assert math.isfinite(float(network.loss(chain, tags).sum()))
        alone = network(collate([words[:3]]))
    torch.testing.assert_close(chain.transitions[1, :2], alone.transitions[0])


def test_a_model_is_rebuilt_from_config_sizes_and_weights():
    network = model(BIO, layers=1, characters="cnn").eval()
    again = TaggerModel(ModelConfig.from_dict(network.config.to_dict()), network.sizes, BIO).eval()
    again.load_state_dict(network.state_dict())
    torch.testing.assert_close(again(batch()).unary, network(batch()).unary, rtol=0, atol=0)
    torch.testing.assert_close(
        again(batch()).transitions, network(batch()).transitions, rtol=0, atol=0
    )


@pytest.mark.parametrize("layers", [0, 1])
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_training_under_autocast(layers, objective):
    network = model(BIO, layers=layers, characters="cnn", objective=objective)
    plain = network.loss(network(batch()), TAGS).detach()
    with torch.autocast("cpu", torch.bfloat16):
        chain = network(batch())
        loss = network.loss(chain, TAGS)
    assert chain.dtype == loss.dtype == torch.float32
    torch.testing.assert_close(loss.detach(), plain, rtol=0.05, atol=0.05)
    loss.mean().backward()
    assert all(
        bool(p.grad.to_dense().isfinite().all()) for p in network.parameters() if p.grad is not None
    )
    network.eval()
    with torch.autocast("cpu", torch.bfloat16):
        assert network.marginals(network(batch())).dtype == torch.float32


def test_training_repeats_bit_by_bit_and_resumes():
    """Dropout and unknown words repeat if the state of the random generator is restored."""

    def steps(network: TaggerModel, optimizer: LazyAdam, count: int) -> list[float]:
        losses = []
        for _ in range(count):
            optimizer.zero_grad()
            loss = network.loss(network(batch()), TAGS).mean()
            loss.backward()
            clip_gradients(network.parameters(), 1.0)
            optimizer.step()
            losses.append(loss.item())
        return losses

    changes = {
        "dropout": 0.3,
        "layer_dropout": 0.1,
        "unknown_rate": 0.2,
        "layers": 1,
        "characters": "cnn",
    }
    network = model(**changes)
    optimizer = LazyAdam(network, 0.01)
    first = steps(network, optimizer, 10)
    saved = {
        "weights": {k: v.clone() for k, v in network.state_dict().items()},
        "optimizer": copy.deepcopy(optimizer.state_dict()),
        "random": torch.get_rng_state(),
    }
    resumed = model(seed=5, **changes)
    other = LazyAdam(resumed, 0.01)
    resumed.load_state_dict(saved["weights"])
    other.load_state_dict(saved["optimizer"])
    torch.set_rng_state(saved["random"])
    straight = steps(network, optimizer, 10)
    torch.set_rng_state(saved["random"])
    assert steps(resumed, other, 10) == straight
    repeated = model(**changes)
    assert steps(repeated, LazyAdam(repeated, 0.01), 10) == first
