"""Settings of the integration tests, and the models that they share."""

from __future__ import annotations

import importlib.util
from importlib.resources import files
from pathlib import Path

import pytest

from bcrf.tagger.training import Config, train

PACKAGES = ("spacy", "ray", "onnxruntime")

# Folder -> task, sample corpus and number of epochs.
MODELS = {
    "pos": ("pos", "english-train.conllu", 4),
    "ner": ("ner", "english-ner-train.conll", 8),
    "zh": ("segmentation", "chinese-train.conllu", 8),
    "tokenizer": ("tokenization", "english-train.conllu", 4),
}


def pytest_configure() -> None:
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise pytest.UsageError(
            f"the integration tests need the packages {', '.join(missing)}; run them with "
            "`make test-integrations`, which installs these in .venv-integrations"
        )


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `runs/pos`, `runs/ner`, `runs/zh` and `runs/tokenizer`."""
    folder = tmp_path_factory.mktemp("models")
    for name, (task, corpus, epochs) in MODELS.items():
        tables = {
            "output": str(folder / "runs" / name),
            "data": {"task": task, "train": str(files("bcrf") / "samples" / corpus)},
            "model": {"size": "small"},
            "optimizer": {"learning_rate": 0.02},
            "training": {
                "epochs": epochs,
                "batch": 2000 if task == "tokenization" else 300,
                "device": "cpu",
            },
        }
        for _ in train(Config.from_dict(tables)):
            pass
    return folder
