"""Settings of a training run: defaults, errors, and the files in configs/."""

import json
import re
from pathlib import Path

import pytest

from bcrf.tagger.nn import ModelConfig
from bcrf.tagger.training import Config, DataConfig, recipe

CONFIGS = sorted((Path(__file__).resolve().parents[2] / "configs").glob("*.toml"))
LEAST = {"output": "run", "data": {"train": "train.conllu"}}


def with_data(**data: object) -> dict[str, object]:
    return {"output": "run", "data": {"train": "train.conllu", **data}}


@pytest.mark.parametrize(
    ("task", "epochs", "unknown_rate", "lowercase"),
    [("pos", 12, 0.05, True), ("segmentation", 10, 0.03, False), ("ner", 20, 0.05, False)],
)
def test_the_network_of_the_paper_has_its_recipe(task, epochs, unknown_rate, lowercase):
    config = Config.from_dict(with_data(task=task) | {"model": {"layers": 0}})
    assert config.training.epochs == epochs
    assert config.model.unknown_rate == unknown_rate
    assert config.data.lowercase == lowercase
    assert config.optimizer.learning_rate == 3e-4
    assert config.optimizer.warmup == 0.1
    assert (config.training.batch, config.training.batch_unit) == (32, "sentences")
    assert config.model.dropout == 0.3
    assert config.model.features == "none"
    assert config.training.patience is None


@pytest.mark.parametrize(
    ("task", "features"), [("pos", "word"), ("segmentation", "character"), ("ner", "word")]
)
def test_without_a_network_features_are_read(task, features):
    config = Config.from_dict(with_data(task=task))
    assert (config.model.features, config.model.transitions) == (features, "shared")
    assert (config.optimizer.learning_rate, config.optimizer.beta2) == (2e-3, 0.99)
    assert (config.training.batch_unit, config.training.loss_unit) == ("tokens", "tokens")
    assert config.training.patience is not None
    assert config.data.min_count == 2
    assert not config.data.lowercase
    small = Config.from_dict(with_data(task=task) | {"model": {"size": "small"}})
    assert small.model.context_width < config.model.context_width
    assert small.training == config.training


@pytest.mark.parametrize(
    "model",
    [
        {"layers": 0},
        {"width": 8},
        {"characters": "none"},
        {"pretrained": "x"},
        {"unknown_rate": 0.1},
        {"features": "none"},
        {"forbidden_transitions": "removed"},
    ],
)
def test_a_setting_of_another_network_chooses_it(model):
    assert Config.from_dict(LEAST | {"model": model}).model.features == "none"
    assert Config.from_dict(LEAST | {"model": {"objective": "bregman"}}).model.uses_features


def test_features_of_characters_need_segmentation():
    with pytest.raises(
        ValueError, match=r"'character' needs the task segmentation or tokenization; .* is pos"
    ):
        Config.from_dict(LEAST | {"model": {"features": "character"}})


def test_given_settings_override_the_recipe():
    config = Config.from_dict(
        with_data(task="segmentation", lowercase=True)
        | {"model": {"unknown_rate": 0.5, "layers": 2}, "training": {"epochs": 1}}
    )
    assert config.model == ModelConfig(layers=2, unknown_rate=0.5)
    assert config.training.epochs == 1
    assert config.data.lowercase


def test_pretrained_encoders_have_a_lower_learning_rate():
    config = Config.from_dict(LEAST | {"model": {"pretrained": "somewhere"}})
    assert config.optimizer.learning_rate == 3e-5
    assert config.training.epochs == 3
    rates = {"learning_rate": 3e-5, "scorer_learning_rate": 3e-4}
    assert recipe("pos", {"pretrained": "x"})["optimizer"] == rates
    assert "optimizer" not in recipe("pos", {"layers": 2})


def test_config_round_trip_through_json():
    config = Config.from_dict(
        with_data(task="ner", partial=True, scheme="BIOES", dev="dev.conll")
        | {"optimizer": {"clip": 5.0}, "decoding": {"decoder": "bregman-5", "repair": "mbr"}}
    )
    assert Config.from_dict(json.loads(json.dumps(config.to_dict()))) == config


@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        ({"data": LEAST["data"]}, ValueError, "output is missing"),
        (
            {"output": "", "data": LEAST["data"]},
            ValueError,
            'output: expected the path .*, got ""$',
        ),
        ({"output": "run"}, ValueError, "data.train is missing"),
        (LEAST | {"modle": {}}, ValueError, "unknown setting 'modle'; did you mean 'model'\\?"),
        (LEAST | {"model": 3}, TypeError, "model: expected a table of settings, got 3"),
        (
            LEAST | {"model": {"laeyrs": 2}},
            ValueError,
            "unknown setting 'model.laeyrs'; did you mean 'model.layers'",
        ),
        (
            LEAST | {"model": {"layers": -1}},
            ValueError,
            "^model.layers: expected an integer of at least 0, got -1",
        ),
        (LEAST | {"model": {"objective": "svm"}}, ValueError, "^model.objective must be one of"),
        (with_data(train=3), TypeError, "^data.train: expected the path .*, got 3"),
        (with_data(dev=""), ValueError, "^data.dev: expected the path"),
        (with_data(task="parsing"), ValueError, 'data.task: expected one of pos.*got "parsing"'),
        (with_data(task=["pos"]), ValueError, "data.task: expected one of"),
        (with_data(format="xml"), ValueError, '^data.format: expected one of auto, conllu.*"xml"'),
        (
            with_data(lowercase="yes"),
            TypeError,
            '^data.lowercase: expected true or false, got "yes"',
        ),
        (with_data(min_count=0), ValueError, "^data.min_count: expected an integer of at least 1"),
        (with_data(scheme="BIOES"), ValueError, "data.scheme is a setting of the task ner; the"),
        (with_data(partial=True), ValueError, "data.partial is a setting of the task ner"),
        (
            with_data(task="ner", column="xpos"),
            ValueError,
            "of the task pos or segmentation; the task is ner",
        ),
        (
            LEAST | {"optimizer": {"lazy": "false"}},
            TypeError,
            '^optimizer.lazy: expected true or false, got "false"',
        ),
        (
            LEAST | {"optimizer": {"lazy": 0}},
            TypeError,
            "^optimizer.lazy: expected true or false, got 0",
        ),
        (LEAST | {"training": {"epochs": True}}, TypeError, "^training.epochs: .* got true"),
        (
            LEAST | {"optimizer": {"warmup": float("nan")}},
            ValueError,
            "^optimizer.warmup: .* got NaN",
        ),
        (LEAST | {"optimizer": {"learning_rate": 0}}, ValueError, "learning_rate: expected a posi"),
        (
            LEAST | {"optimizer": {"learning_rate": None}},
            TypeError,
            "a positive, finite number, got null",
        ),
        (LEAST | {"optimizer": {"clip": -1}}, ValueError, "^optimizer.clip: expected a pos"),
        (
            LEAST | {"optimizer": {"warmup": 1}},
            ValueError,
            "^optimizer.warmup: expected a number of at least 0 and less than 1, got 1",
        ),
        (
            LEAST | {"optimizer": {"schedule": "cosine"}},
            ValueError,
            "schedule: expected one of lin",
        ),
        (
            LEAST | {"training": {"epochs": 0}},
            ValueError,
            "^training.epochs: expected an integer of at least 1",
        ),
        (
            LEAST | {"training": {"epochs": "9"}},
            TypeError,
            '^training.epochs: expected an integer .* got "9"',
        ),
        (LEAST | {"training": {"batch_unit": "bytes"}}, ValueError, "batch_unit: expected one of"),
        (
            LEAST | {"training": {"patience": 0}},
            ValueError,
            "^training.patience: expected an integer of at least 1",
        ),
        (
            LEAST | {"training": {"seed": -1}},
            ValueError,
            "^training.seed: expected an integer of at least 0",
        ),
        (LEAST | {"training": {"device": "gpu"}}, ValueError, "^training.device must be auto, cpu"),
        (
            LEAST | {"training": {"precision": "int8"}},
            ValueError,
            "^training.precision: expected one",
        ),
        (LEAST | {"decoding": {"decoder": "crf"}}, ValueError, "^decoding.decoder must be one of"),
        (
            LEAST | {"decoding": {"repair": "no"}},
            ValueError,
            "repair: expected one of rule, mbr, none",
        ),
    ],
)
def test_errors_about_wrong_config_values(values, error, message):
    with pytest.raises(error, match=message):
        Config.from_dict(values)


def test_settings_of_other_tasks_may_keep_their_defaults():
    assert DataConfig("train.conllu").task_settings == {"column": "upos"}
    assert DataConfig("x", task="ner", strict=False).task_settings == {
        "scheme": "IOB2",
        "strict": False,
    }
    assert set(DataConfig("x", task="segmentation").task_settings) == {"column", "spaces"}


# ----------------------------------------------------------------------------------------- configs/


def test_the_configs_folder_has_files():
    assert {path.stem for path in CONFIGS} >= {"pos", "pos-2-layers", "segmentation", "ner"}


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_configs_are_valid_and_begin_with_their_command(path):
    tomllib = pytest.importorskip("tomllib")
    text = path.read_text(encoding="utf-8")
    assert re.search(rf"^# +bcrf train configs/{re.escape(path.name)}", text, re.MULTILINE)
    config = Config.from_dict(tomllib.loads(text))
    assert config.output == f"runs/{path.stem}"
