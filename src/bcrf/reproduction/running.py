"""A cell of a table of accuracies: train a model, evaluate it with every decoder."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..data import DataError, read
from ..tagging import ModelError, Tagger, choose_device
from ..training import Config, Event, Started, train
from .evaluation import evaluate
from .experiment import Experiment, ExperimentError
from .files import CorpusFiles
from .grid import Cell
from .jobs import Job, Workplace
from .log import Row
from .machine import circumstances

__all__ = ["TrainingJob", "is_trained", "portable", "progress_of"]

_BEST, _LAST, _METRICS = "best", "last", "metrics.jsonl"

# Settings that decide where something is done, not what comes out.
_FREE = ("data.train", "data.dev", "training.device", "training.log_every")


@dataclass(frozen=True)
class TrainingJob(Job):
    """One cell. Dev chooses the epoch; dev and test are then evaluated once, with all decoders."""

    cell: Cell
    workplace: Workplace

    @property
    def key(self) -> dict[str, Any]:
        return self.cell.key

    @property
    def title(self) -> str:
        return self.cell.title

    @property
    def folder(self) -> Path:
        return self.cell.folder(self.workplace.output)

    @property
    def experiment(self) -> Experiment:
        return self.workplace.experiments[self.cell.table]

    @property
    def files(self) -> CorpusFiles:
        return self.workplace.files(self.experiment.corpora[self.cell.corpus])

    @property
    def decoders(self) -> list[str]:
        """A model without transitions is decoded by itself, and the others are not."""
        if self.cell.objective == "unstructured":
            return ["unstructured"]
        return [name for name in self.experiment.decoders if name != "unstructured"]

    @property
    def config(self) -> Config:
        """Of the run; without the data, of one that cannot be run."""
        cell, paths = self.cell, self.files.paths
        return self.experiment.config(
            cell.corpus,
            cell.network,
            cell.variant,
            cell.objective,
            cell.seed,
            str(self.folder),
            str(paths.get("train", "train")),
            str(paths.get("dev", "dev")),
            self.workplace.overrides(cell.network),
        )

    def is_done(self, row: Row | None) -> bool:
        if row is None:
            return False
        self._check_same(row)
        return not self._lacking(row)

    def missing(self, row: Row | None) -> str | None:
        if self.files.missing is not None or row is None:
            return self.files.missing
        if not is_trained(self.folder):
            lacking = ", ".join(self._lacking(row))
            return f"was not evaluated with {lacking}, and its model is no longer in {self.folder}"
        return None

    def run(self, row: Row | None) -> Generator[Event, None, Row]:
        if row is not None:  # only decoders were added since
            return {"evaluations": self._evaluations(self._lacking(row))}
        config = self.config
        started = None
        for event in _begun(train(config, resume=True)):
            started = event if isinstance(event, Started) else started
            yield event
        assert started is not None
        begin = time.perf_counter()
        evaluations = self._evaluations(self.decoders)
        return {
            **self.files.description(self.experiment.corpora[self.cell.corpus]),
            **circumstances(choose_device(config.training.device)),
            "config": portable(config),
            "training": {
                "sentences": started.sentences,
                "tokens": started.tokens,
                "labels": started.labels,
                "words": started.words,
                "parameters": started.parameters,
                **_history(self.folder),
            },
            "evaluation_seconds": round(time.perf_counter() - begin, 2),
            "evaluations": evaluations,
        }

    def tidy(self) -> None:
        """The state from which training would go on is the larger part of the folder."""
        shutil.rmtree(self.folder / _LAST, ignore_errors=True)

    def _lacking(self, row: Row) -> list[str]:
        evaluated = row["evaluations"]["test"]["decoders"]
        return [name for name in self.decoders if name not in evaluated]

    def _evaluations(self, decoders: list[str]) -> dict[str, Any]:
        config = self.config
        tagger = Tagger.load(self.folder, config.training.device)
        found = {}
        for split in ("dev", "test"):
            sentences = list(read(self.files.paths[split], config.data.format))
            examples = tagger.task.annotated(sentences)
            found[split] = {
                "sentences": len(examples),
                "tokens": sum(map(len, examples)),
                "decoders": evaluate(tagger, examples, decoders),
            }
        return found

    def _check_same(self, row: Row) -> None:
        """Numbers of different settings must not meet in one table."""
        before, now = _flat(row["config"]), _flat(portable(self.config))
        free: tuple[str, ...] = _FREE
        if self.cell.network not in self.workplace.pretrained:  # what it was called then is fine
            free += ("model.pretrained",)
        for key, value in before.items():
            if key in now and now[key] != value and key not in free:
                raise ExperimentError(
                    f"{self.title} is in the log with {key} = {value!r}, now it is {now[key]!r}; "
                    "leave it as it was, or begin another log"
                )


def portable(config: Config) -> dict[str, Any]:
    """The config without what is peculiar to a machine: files by name alone."""
    values = config.to_dict()
    del values["output"]
    for part, name in (("data", "train"), ("data", "dev"), ("model", "pretrained")):
        if values[part][name] is not None:
            values[part][name] = Path(values[part][name]).name
    return values


def progress_of(folder: Path) -> int:
    """Epochs that a run has completed."""
    return sum(event["event"] == "epoch" for event in _told(folder))


def is_trained(folder: Path) -> bool:
    """Whether there is the model of a run that came to its end."""
    ended = any(event["event"] == "finish" for event in _told(folder))
    return ended and (folder / _BEST).exists()


def _begun(events: Iterator[Event]) -> Iterator[Event]:
    """The events; what is wrong before the first one is a matter of settings."""
    try:
        first = next(events)
    except (DataError, ModelError):
        raise
    except ValueError as error:
        raise ExperimentError(str(error)) from error
    yield first
    yield from events


def _told(folder: Path) -> Iterator[dict[str, Any]]:
    """What a run has written of itself."""
    path = folder / _METRICS
    if path.exists():
        yield from map(json.loads, path.read_bytes().split(b"\n")[:-1])


def _history(folder: Path) -> dict[str, Any]:
    """What training took and brought, the part before an interruption included."""
    epochs = [event for event in _told(folder) if event["event"] == "epoch"]
    best = max((e for e in epochs if e["improved"]), key=lambda e: int(e["epoch"]))
    return {
        "seconds": round(sum(e["seconds"] for e in epochs), 2),
        "dev_seconds": round(sum(e["dev_seconds"] for e in epochs), 2),
        "best_epoch": best["epoch"],
        "loss": [round(e["loss"], 4) for e in epochs],
        "dev": [round(e["score"], 6) for e in epochs],
    }


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as one, with dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat
