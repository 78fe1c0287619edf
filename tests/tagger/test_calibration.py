"""Calibration: its measures by hand, the fitted temperature, and where it is applied."""

import copy
import json
import math
from pathlib import Path

import pytest
import torch

import bcrf
from bcrf.tagger import ModelError, Reliability, Tagger, calibrate
from bcrf.tagger.data import read
from bcrf.tagger.prediction.calibration import gold_tags
from bcrf.tagger.prediction.chains import iterate_chains
from tests.tagger_cases import config, epochs, run, trained, write
from tests.tampering import change_description

DECODERS = ["viterbi", "certified", "bregman-5", "mean_field-3", "unstructured"]


@pytest.fixture(scope="module")
def tagger(tmp_path_factory) -> Tagger:
    return trained(tmp_path_factory.mktemp("pos"))


def with_temperature(tagger: Tagger, temperature: float) -> Tagger:
    other = copy.copy(tagger)
    other.probability_temperature = temperature
    return other


# ----------------------------------------------------------------------------------------- measures


def test_error_and_brier_score_of_a_case_by_hand():
    found = Reliability(bins=4)
    found.add(torch.tensor([0.1, 0.2, 0.6]), torch.tensor([False, True, True]))
    found.add(torch.tensor([0.9, 1.0]), torch.tensor([True, False]))
    assert found.count == 5
    # Bins: (0.1, 0.2), (), (0.6), (0.9, 1.0); |sum of confidences - right ones| of each.
    assert found.error == pytest.approx((abs(0.3 - 1) + abs(0.6 - 1) + abs(1.9 - 1)) / 5)
    assert found.brier == pytest.approx((0.1**2 + 0.8**2 + 0.4**2 + 0.1**2 + 1) / 5)
    assert found.confidence == pytest.approx(2.8 / 5)
    assert found.accuracy == pytest.approx(3 / 5)
    expected = [(2, 0.15, 0.5), (0, 0, 0), (1, 0.6, 1), (2, 0.95, 0.5)]
    assert [tuple(map(float, row)) for row in found.curve()] == [
        pytest.approx(row) for row in expected
    ]


def test_without_predictions_all_measures_are_zero():
    found = Reliability()
    assert (found.count, found.error, found.brier, found.accuracy) == (0, 0, 0, 0)


def test_confidence_one_belongs_to_the_last_bin():
    found = Reliability(bins=10)
    found.add(torch.tensor([1.0, 1.0 + 1e-7]), torch.tensor([True, True]))
    assert found.curve()[-1][0] == 2


# -------------------------------------------------------------------------------------- temperature


@pytest.mark.parametrize("truth", [0.5, 1.0, 2.5])
def test_calibration_recovers_the_temperature_of_sampled_tags(tagger, truth):
    generator = torch.Generator().manual_seed(1)
    words = [*tagger.vocabularies.words.tokens[2:], "strange"]
    sentences = [
        [words[k] for k in torch.randint(len(words), (8,), generator=generator)]
        for _ in range(1500)
    ]
    examples = [tagged.example for tagged in tagger.tag(sentences)]
    annotated = list(examples)
    for rows, chain in iterate_chains(tagger, examples):
        (drawn,) = bcrf.sample(chain / truth, 1, generator)
        for row, tags in zip(rows, drawn.tolist(), strict=True):
            labels = tuple(tagger.labels[tag] for tag in tags[:8])
            example = examples[row]
            annotated[row] = type(example)(example.tokens, example.sentence, labels)
    found = calibrate(tagger, annotated)
    assert found.tokens == 12_000
    assert found.temperature == pytest.approx(truth, rel=0.06)
    assert found.loss_after <= found.loss_before + 1e-6
    assert found.error_after < 0.02
    assert tagger.probability_temperature == 1  # unchanged


def test_the_fitted_temperature_has_the_least_loss(tagger, tmp_path):
    """Against scipy, on the likelihood of marginals in float64."""
    from scipy.optimize import minimize_scalar

    examples = tagger.task.annotated(list(read(write(tmp_path, "pos"))))
    ((rows, chain),) = iterate_chains(tagger, examples)
    gold = gold_tags(tagger.task, [examples[row] for row in rows], chain.max_length)
    kept = gold >= 0

    def objective(log_temperature: float) -> float:
        law = bcrf.ForwardBackward()(chain.double() / math.exp(log_temperature)).tag_marginals
        chosen = law.gather(-1, gold.clamp(min=0).unsqueeze(-1)).squeeze(-1)
        return float(-chosen[kept].log().sum()) + log_temperature**2 / 2

    expected = minimize_scalar(objective, bounds=(-3, 3), method="bounded").x
    assert calibrate(tagger, examples).temperature == pytest.approx(math.exp(expected), rel=2e-3)


def test_few_sentences_without_errors_do_not_ask_for_certainty(tagger):
    (example,) = (tagged.example for tagged in tagger.tag([["the", "cat"]]))
    (tagged,) = tagger.tag([["the", "cat"]])
    sure = type(example)(example.tokens, example.sentence, tagged.labels)
    assert 0.1 < calibrate(tagger, [sure]).temperature < 1


def test_sentences_without_known_labels_give_no_temperature(tagger):
    (example,) = (tagged.example for tagged in tagger.tag([["the", "cat"]]))
    foreign = type(example)(example.tokens, example.sentence, ("FOREIGN", "OTHER"))
    assert calibrate(tagger, [foreign]) is None
    assert calibrate(tagger, [example]) is None  # no labels at all
    assert calibrate(tagger, []) is None


# --------------------------------------------------------------------------------- where it applies


@pytest.mark.parametrize("decoder", DECODERS)
def test_tags_do_not_depend_on_the_temperature(tagger, decoder):
    sentences = [["the", "old", "cat", "saw", "run"], ["dogs"], ["we", "saw", "a", "saw", "."]]
    expected = [t.tags for t in tagger.tag(sentences, decoder=decoder)]
    for temperature in (0.05, 20.0):
        other = with_temperature(tagger, temperature)
        found = other.tag(sentences, probabilities=True, decoder=decoder)
        assert [t.tags for t in found] == expected


@pytest.mark.parametrize("task", ["pos", "segmentation", "ner"])
def test_probabilities_are_those_of_the_scaled_scores(tmp_path, task, monkeypatch):
    tagger = with_temperature(trained(tmp_path, task), 3.0)
    examples = tagger.task.annotated(list(read(write(tmp_path, task))))
    for tagged in tagger.tag_examples(examples, probabilities=True):
        part = tagged.example
        with torch.no_grad():
            chain = tagger.chain([tagger.reader(part.tokens)], [tagger.task.permitted_tags(part)])
        if task == "pos":
            law = bcrf.ForwardBackward()(chain / 3).tag_marginals[0]
            tags = [tagger.labels.index(label) for label in tagged.labels]
            expected = law[torch.arange(len(tags)), tags].tolist()
            assert tagged.probabilities == pytest.approx(expected, rel=1e-4)
        raw = next(iter(with_temperature(tagger, 1.0).tag_examples([part], probabilities=True)))
        assert raw.labels == tagged.labels
        assert raw.probabilities != tagged.probabilities
    # A long sentence is computed in blocks, at the same temperature.
    expected = [(t.probabilities, t.item_probabilities) for t in _tagged(tagger, examples)]
    monkeypatch.setattr("bcrf.tagger.prediction.tagging.LONGEST_WHOLE", 1)
    monkeypatch.setattr("bcrf.tagger.prediction.long_sentences.BLOCK_TOKENS", 4)
    for (words, items), tagged in zip(expected, _tagged(tagger, examples), strict=True):
        assert tagged.probabilities == pytest.approx(words, rel=1e-4)
        assert tagged.item_probabilities == pytest.approx(items, rel=1e-4)


def _tagged(tagger, examples):
    return list(tagger.tag_examples(examples, probabilities=True))


def test_the_temperature_is_saved_and_loaded(tagger, tmp_path):
    with_temperature(tagger, 1.25).save(tmp_path / "model")
    assert Tagger.load(tmp_path / "model").probability_temperature == 1.25


def test_folders_without_a_temperature_load_as_before(tagger, tmp_path):
    tagger.save(tmp_path / "model")
    assert "probability_temperature" not in json.loads(
        (tmp_path / "model" / "model.json").read_text()
    )
    assert Tagger.load(tmp_path / "model").probability_temperature == 1


@pytest.mark.parametrize("value", [0, -1.0, "1", None, True, 1e9])
def test_a_wrong_temperature_is_refused(tagger, tmp_path, value):
    tagger.save(tmp_path / "model")

    change_description(
        tmp_path / "model", lambda values: values.update(probability_temperature=value)
    )
    with pytest.raises(ModelError, match="probability_temperature"):
        Tagger.load(tmp_path / "model")


# ----------------------------------------------------------------------------------------- training


def test_training_calibrates_the_best_model(tmp_path):
    settings = config(tmp_path, training={"calibrate": True})
    events = epochs(run(settings))
    best = next(event for event in reversed(events) if event.improved)
    loaded = Tagger.load(settings.output)
    assert loaded.probability_temperature == best.calibration["temperature"] != 1
    assert best.calibration["loss_after"] <= best.calibration["loss_before"]
    log = Path(settings.output, "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in log]
    logged = [row["calibration"] for row in rows if row["event"] == "epoch"]
    assert logged == [event.calibration for event in events]
    for event in events:
        assert (event.calibration is None) == (not event.improved)


def test_training_without_calibration_has_the_same_weights_and_tags(tmp_path):
    from tests.tagger_cases import weights_equal

    on, off = (
        trained(tmp_path / name, training={"calibrate": value})
        for name, value in (("on", True), ("off", False))
    )
    assert weights_equal(on, off)
    assert off.probability_temperature == 1
    sentence = [["the", "cat", "saw", "dogs"]]
    assert on.tag(sentence)[0].tags == off.tag(sentence)[0].tags


def test_without_dev_sentences_nothing_is_calibrated(tmp_path):
    settings = config(tmp_path, data={"dev": None}, training={"calibrate": True})
    assert all(event.calibration is None for event in epochs(run(settings)))
    assert Tagger.load(settings.output).probability_temperature == 1
