"""Train the parts of a bundled model, compress it, compare its scores, and write its folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from bcrf.tagger import Tagger, Tokenizer
from bcrf.tagger.config_tables import deep_merge
from bcrf.tagger.model_folder.weight_storage import WeightStorage
from bcrf.tagger.training import Config, Event, train
from measurement.machine import hardware, load, software
from reproduction.data_folder import DataFolder, LocatedCorpus
from reproduction.experiment import SPLITS, CorpusSpec
from reproduction.training_job import portable_config

from .recipes import Recipe

__all__ = ["MOST_LOSS", "STORAGE", "BuildError", "build", "find_files", "train_parts"]

STORAGE: WeightStorage = "int8"

MOST_LOSS = 0.001
"""The largest loss of a score, 0.1 points, that compressing the weights may cost."""

# Task -> name of a score of its metric -> name for users.
_SCORES = {
    "tokenization": {"f1/sentences": "sentences", "f1/words": "words"},
    "pos": {"accuracy": "tags"},
    "segmentation": {"f1/words": "words", "f1": "words with tags"},
}


class BuildError(RuntimeError):
    """A bundled model cannot be made; the message says why."""


def find_files(recipe: Recipe, data: Path) -> LocatedCorpus:
    """Find the files of the treebank anywhere below a folder.

    Raises:
        BuildError: a file is missing.
    """
    located = DataFolder(data).locate(_corpus(recipe))
    if located.missing is not None:
        raise BuildError(located.missing)
    return located


def train_parts(recipe: Recipe, files: LocatedCorpus, runs: Path) -> Iterator[Event]:
    """Train each part of a model, or resume its training; yield the events."""
    torch.set_num_threads(1)
    for part in recipe.tasks:
        yield from train(_config(recipe, part, files, runs), resume=True)


def build(recipe: Recipe, files: LocatedCorpus, runs: Path, target: Path) -> dict[str, Any]:
    """Write the folder of a model from its trained parts; return what the log says of it.

    Raises:
        BuildError: the compressed model has lost more than `MOST_LOSS`; nothing was written.
    """
    tagger = Tagger.load(runs / "tagger", "cpu")
    tagger.info = _info(recipe, "tagger", files, runs)
    if "tokenizer" in recipe.tasks:
        tagger.tokenizer = Tokenizer.load(runs / "tokenizer", "cpu")
        tagger.tokenizer.tagger.info = _info(recipe, "tokenizer", files, runs)
    trained = _scores(tagger, files)
    tagger.save(runs / "compressed", STORAGE)
    compressed = Tagger.load(runs / "compressed", "cpu")
    scores = _scores(compressed, files)
    for name, score in trained.items():
        if scores[name] < score - MOST_LOSS:
            raise BuildError(f"{target.name}: {name} fell from {score:.4f} to {scores[name]:.4f}")
    compressed.info["bundled"] = {
        "does": recipe.does,
        "data": recipe.data,
        "licence": recipe.licence,
        "scores": scores,
    }
    compressed.save(target, STORAGE)
    return {
        **software(),
        "machine": hardware(),
        "load": load(),
        "files": files.description(_corpus(recipe))["files"],
        "storage": STORAGE,
        "bytes": sum(path.stat().st_size for path in target.rglob("*") if path.is_file()),
        "scores_before": trained,
        "scores": scores,
    }


def _corpus(recipe: Recipe) -> CorpusSpec:
    names: dict[str, tuple[str, ...]] = {
        split: (f"{recipe.files}-{split}.conllu",) for split in SPLITS
    }
    return CorpusSpec(recipe.files, names)


def _config(recipe: Recipe, part: str, files: LocatedCorpus, runs: Path) -> Config:
    values: dict[str, Any] = {
        "output": str(runs / part),
        "data": {
            "task": recipe.tasks[part],
            "train": str(files.paths["train"]),
            "dev": str(files.paths["dev"]),
        },
        "training": {"device": "cpu"},
    }
    return Config.from_dict(deep_merge(values, recipe.settings.get(part, {})))


def _info(recipe: Recipe, part: str, files: LocatedCorpus, runs: Path) -> dict[str, Any]:
    """Return how a part was trained, without paths of this machine."""
    return {"config": portable_config(_config(recipe, part, files, runs))}


def _scores(tagger: Tagger, files: LocatedCorpus) -> dict[str, float]:
    """Return the scores on test. A tagger of words is given the words of the file."""
    parts = [tagger] if tagger.tokenizer is None else [tagger.tokenizer.tagger, tagger]
    scores: dict[str, float] = {}
    for part in parts:
        found = part.evaluate(files.paths["test"]).scores
        scores |= {name: round(found[key], 5) for key, name in _SCORES[part.task.name].items()}
    return scores
