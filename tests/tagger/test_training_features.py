"""The default network: training without a config, resuming, saving and loading."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from bcrf.cli import main
from bcrf.tagger import ModelError, Tagger
from bcrf.tagger.training import Config, train
from tests.tagger_cases import run, trained, weights_equal, write
from tests.tampering import change_description, reseal

TINY: dict[str, Any] = {"feature_width": 4, "context_width": 16, "score_width": 8}
VECTORS = "3 2\nthe 0.5 1\nDOG 7 7\ndog 1 -1\n"

# The settings that old versions did not know.
NEW_OF_MODEL = (
    *("features", "size", "feature_width", "feature_dropout", "context", "context_width"),
    *("context_layers", "vectors", "vector_words"),
)


def config(folder: Path, task: str = "pos", **changes: dict[str, Any]) -> Config:
    """Return the config of a small network that reads features, on the tiny corpus of a task."""
    folder.mkdir(exist_ok=True)
    values: dict[str, Any] = {
        "output": str(folder / "run"),
        "data": {
            "task": task,
            "train": str(write(folder, task)),
            "dev": str(write(folder, task, "dev", skip=3)),
        },
        "model": TINY | changes.get("model", {}),
        "optimizer": {"learning_rate": 0.02},
        "training": {"epochs": 4, "batch": 12, "device": "cpu"} | changes.get("training", {}),
    }
    return Config.from_dict(values)


def outcome(output: str) -> list[bytes]:
    names = ("best/model.safetensors", "last/model.safetensors", "last/optimizer.safetensors")
    return [Path(output, name).read_bytes() for name in names]


@pytest.mark.parametrize("task", ["pos", "segmentation", "ner"])
def test_training_needs_no_config(tmp_path, task, capsys):
    train_file, dev = write(tmp_path, task), write(tmp_path, task, "dev", skip=3)
    output = tmp_path / "run"
    options = ["--data.task", task] if task != "pos" else []
    arguments = ["--data.train", str(train_file), "--data.dev", str(dev), "--output", str(output)]
    assert main(["train", *options, *arguments, "--threads", "1"]) == 0
    tagger = Tagger.load(output)
    assert tagger.model.config.features == ("character" if task == "segmentation" else "word")
    assert tagger.evaluate(dev).score > 0.5
    assert "features, cnn of 3 layers" in repr(tagger)


@pytest.mark.parametrize("context", ["cnn", "bilstm"])
@pytest.mark.parametrize("task", ["pos", "segmentation"])
def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path, task, context):
    whole = config(tmp_path / "a", task, model={"context": context})
    run(whole)
    parts = config(tmp_path / "b", task, model={"context": context})
    for event in train(parts):
        if getattr(event, "epoch", 0) == 3 and not hasattr(event, "score"):
            break  # during the third epoch
    run(parts, resume=True)
    assert outcome(parts.output) == outcome(whole.output)


@pytest.mark.parametrize("task", ["pos", "segmentation"])
def test_saving_and_loading_changes_nothing(tmp_path, task):
    settings = config(tmp_path, task, training={"epochs": 1})
    run(settings)
    tagger = Tagger.load(settings.output)
    tagger.save(tmp_path / "copy")
    again = Tagger.load(tmp_path / "copy")
    assert weights_equal(tagger, again)
    assert again.vocabularies == tagger.vocabularies
    texts: list[Any] = [["the", "dogs", "Ж", "\U0001f600"], ["run"]]
    if task == "segmentation":
        texts = ["".join(words) for words in texts]
    first, second = (t.tag(texts, probabilities=True) for t in (tagger, again))
    assert [(t.labels, t.probabilities) for t in first] == [
        (t.labels, t.probabilities) for t in second
    ]


def test_the_loss_is_the_mean_over_tokens(tmp_path):
    settings = config(tmp_path, training={"epochs": 1, "batch": 10_000})
    run(settings)
    lines = Path(settings.output, "metrics.jsonl").read_text().splitlines()
    (epoch,) = [json.loads(line) for line in lines if '"epoch"' in line and '"seconds"' in line]
    start = torch.log(torch.tensor(9.0))  # of a model that does not know anything: 9 tags
    assert 0.5 * start < epoch["loss"] < 2 * start


def test_long_sentences_are_tagged_in_blocks_with_the_same_labels(tmp_path, monkeypatch):
    settings = config(tmp_path, training={"epochs": 2})
    run(settings)
    tagger = Tagger.load(settings.output)
    words = ["the", "old", "dog", "saw", "a", "cat", "."] * 40
    (whole,) = tagger.tag([words])
    monkeypatch.setattr("bcrf.tagger.prediction.tagging.LONGEST_WHOLE", 10)
    monkeypatch.setattr("bcrf.tagger.prediction.long_sentences.BLOCK_TOKENS", 16)
    (blocks,) = tagger.tag([words])
    assert blocks.labels == whole.labels


# ------------------------------------------------------------------------------------------ vectors


def test_vectors_are_saved_with_the_model(tmp_path):
    tmp_path.joinpath("some.vec").write_text(VECTORS)
    vectors = {"vectors": str(tmp_path / "some.vec"), "vector_words": 0}
    settings = config(tmp_path, model=vectors, training={"epochs": 1})
    run(settings)
    tmp_path.joinpath("some.vec").unlink()
    tagger = Tagger.load(settings.output)
    assert tagger.vocabularies.vectors is not None
    assert tagger.vocabularies.vectors.words == ("the", "dog")
    table = tagger.model.state_dict()["encoder.embeddings.vectors"]
    assert table.tolist() == [[0, 0], [0.5, 1], [1, -1]]
    assert tagger.tag([["the", "dog"]])[0].labels


def test_an_error_in_the_vectors_names_the_line(tmp_path, capsys):
    tmp_path.joinpath("some.vec").write_text("the 1 2\ndog 1\n")
    train_file = write(tmp_path, "pos")
    options = ["--model.vectors", str(tmp_path / "some.vec"), "--output", str(tmp_path / "run")]
    assert main(["train", "--data.train", str(train_file), *options]) != 0
    assert "some.vec:2: expected a word and 2 numbers" in capsys.readouterr().err


# ------------------------------------------------------------------------- folders of old versions


def test_folders_of_old_versions_are_read(tmp_path):
    tagger = trained(tmp_path, training={"epochs": 1})
    folder = tmp_path / "old"
    tagger.save(folder)

    def make_old(values: dict[str, Any]) -> None:
        for name in NEW_OF_MODEL:
            del values["model"][name]
        assert set(values["vocabularies"]) == {"words", "characters"}

    change_description(folder, make_old)
    old = Tagger.load(folder)
    assert weights_equal(tagger, old)
    assert old.model.config == tagger.model.config


def test_runs_of_old_versions_are_resumed(tmp_path):
    from tests.tagger_cases import config as paper_config

    settings = paper_config(tmp_path, training={"epochs": 1})
    run(settings)
    last = Path(settings.output, "last")
    state = json.loads((last / "training.json").read_text())
    for name in NEW_OF_MODEL:
        del state["config"]["model"][name]
    del state["config"]["training"]["loss_unit"], state["config"]["optimizer"]["beta2"]
    (last / "training.json").write_text(json.dumps(state))
    reseal(last)
    assert len(run(settings, resume=True)) == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda values: values["vocabularies"].pop("features"), "feature_rows"),
        (lambda values: values["model"].update(features="none"), "lacks the weights|no weights"),
        (lambda values: values["model"].update(context_layers=10**6), "at most 256"),
        (lambda values: values["vocabularies"]["features"]["values"]["shape"].pop(), "table"),
        (
            lambda values: values["vocabularies"].update(vectors={"words": ["a"], "width": 10**9}),
            "vectors",
        ),
    ],
)
def test_tampered_descriptions_are_refused(tmp_path, change, message):
    settings = config(tmp_path, training={"epochs": 1})
    run(settings)
    folder = Path(settings.output, "best")
    change_description(folder, change)
    with pytest.raises(ModelError, match=message):
        Tagger.load(folder)
