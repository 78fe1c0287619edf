"""Train one model of an accuracy table, and evaluate it with every decoder."""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bcrf.tagger import ModelError, Tagger, choose_device
from bcrf.tagger.config_tables import deep_merge
from bcrf.tagger.data import DataError, read
from bcrf.tagger.files import LogRow
from bcrf.tagger.training import Config, Event, Started, train

from .calibration import calibration
from .data_folder import LocatedCorpus
from .evaluation import evaluate
from .experiment import Experiment, ExperimentError, TrainingSettings
from .jobs import Job, RunContext, describe_machine
from .methods import Objective
from .selection import RunSpec

__all__ = ["TrainingJob", "epochs_done", "is_trained", "portable_config"]

_BEST, _LAST, _METRICS = "best", "last", "metrics.jsonl"

# Family of the training objective -> the decoder that belongs to it.
_OWN_DECODERS = {
    "unstructured": "unstructured",
    "crf": "viterbi",
    "mean_field": "mean_field-10",
    "bregman": "bregman-10",
}

# Settings that may differ from those of the logged row, because they do not change the result.
_IGNORED = ("data.train", "data.dev", "training.device", "training.log_every")


@dataclass(frozen=True)
class TrainingJob(Job):
    """One training run, or two.

    The dev file selects the best epoch. If this is one of the last three epochs, and the table has
    a longer schedule, a second run with this schedule begins anew; the dev file selects the better
    of the two runs. Then dev and test are evaluated once, with all decoders.
    """

    spec: RunSpec
    context: RunContext

    @property
    def key(self) -> dict[str, Any]:
        return self.spec.key

    @property
    def title(self) -> str:
        return self.spec.title

    @property
    def folder(self) -> Path:
        return self.spec.folder(self.context.output)

    @property
    def longer_folder(self) -> Path:
        """The folder of the second run."""
        return self.folder.with_name(f"{self.folder.name}-longer")

    @property
    def model_folder(self) -> Path:
        """The folder of the run with the better score on dev."""
        if not is_trained(self.longer_folder):
            return self.folder
        return max(self.folder, self.longer_folder, key=lambda folder: max(_history(folder)["dev"]))

    @property
    def experiment(self) -> Experiment:
        return self.context.experiments[self.spec.table]

    @property
    def files(self) -> LocatedCorpus:
        """The paths of the files of its corpus."""
        return self.context.locate(self.experiment.corpora[self.spec.corpus])

    @property
    def decoders(self) -> list[str]:
        """The decoders to evaluate. Only a model without transitions uses "unstructured"."""
        if self.spec.objective == "unstructured":
            return ["unstructured"]
        return [name for name in self.experiment.decoders if name != "unstructured"]

    @property
    def config(self) -> Config:
        """The training config; its file names are placeholders if the data are missing."""
        return self._config(self.folder, {})

    def _config(self, folder: Path, overrides: TrainingSettings) -> Config:
        spec, paths = self.spec, self.files.paths
        return self.experiment.config(
            spec.corpus,
            spec.network,
            spec.variant,
            spec.objective,
            spec.seed,
            str(folder),
            str(paths.get("train", "train")),
            str(paths.get("dev", "dev")),
            deep_merge(self.context.overrides(spec.network), overrides),
        )

    @property
    def _longer_config(self) -> Config:
        """The training config of the second run; only if the table has one."""
        assert self.experiment.longer is not None
        epochs = round(self.config.training.epochs * self.experiment.longer)
        return self._config(self.longer_folder, {"training": {"epochs": epochs}})

    def is_done(self, row: LogRow | None) -> bool:
        if row is None:
            return False
        self._check_same(row)
        return not self._lacking(row)

    def missing(self, row: LogRow | None) -> str | None:
        if self.files.missing is not None or row is None:
            return self.files.missing
        if not is_trained(self.model_folder):
            lacking = ", ".join(self._lacking(row))
            return (
                f"the run was not evaluated with {lacking}, and {self.folder} has no model any more"
            )
        return None

    def run(self, row: LogRow | None) -> Generator[Event, None, LogRow]:
        if row is not None:  # the model was evaluated before; only new decoders are left
            return {"evaluations": self._evaluations(self._lacking(row))}
        config = self.config
        started = yield from _train(config)
        other = None
        if self.experiment.longer is not None and _ends_at_best(_history(self.folder)["dev"]):
            yield from _train(self._longer_config)
            other = self.longer_folder
            if self.model_folder == other:
                config, other = self._longer_config, self.folder
        history = _history(self.model_folder)
        if other is not None:
            history["other_run"] = _history(other)
        begin = time.perf_counter()
        evaluations = self._evaluations(self.decoders)
        return {
            **self.files.description(self.experiment.corpora[self.spec.corpus]),
            **describe_machine(choose_device(config.training.device)),
            "config": portable_config(config),
            "training": {
                "sentences": started.sentences,
                "tokens": started.tokens,
                "labels": started.labels,
                "words": started.words,
                "parameters": started.parameters,
                **history,
            },
            "evaluation_seconds": round(time.perf_counter() - begin, 2),
            "evaluations": evaluations,
        }

    def outcome(self, row: LogRow) -> str:
        """Return the score of the objective's own decoder, beside the paper's number."""
        decoders = self._evaluated(row)
        own = _OWN_DECODERS[Objective.parse(self.spec.objective).family]
        decoder = own if own in decoders else next(iter(decoders))
        spec = self.spec
        key = (spec.variant, spec.network, spec.corpus, spec.objective, decoder)
        paper = self.experiment.paper.get(key)
        score = f"{100 * decoders[decoder]['score']:.2f}"
        return score if paper is None else f"{score} (paper {paper:.1f})"

    def clean_up(self) -> None:
        """Remove the state for resuming, which takes most of the space of the folder."""
        for folder in (self.folder, self.longer_folder):
            shutil.rmtree(folder / _LAST, ignore_errors=True)

    def discard(self) -> None:
        for folder in (self.folder, self.longer_folder):
            for name in (_BEST, _LAST):
                shutil.rmtree(folder / name, ignore_errors=True)
            (folder / _METRICS).unlink(missing_ok=True)

    def _lacking(self, row: LogRow) -> list[str]:
        evaluated = self._evaluated(row)
        return [name for name in self.decoders if name not in evaluated]

    def _evaluated(self, row: LogRow) -> dict[str, Any]:
        """Return the logged results of the decoders: on test, or on dev if test is left out."""
        decoders: dict[str, Any] = row["evaluations"][self.experiment.splits[-1]]["decoders"]
        return decoders

    def _evaluations(self, decoders: list[str]) -> dict[str, Any]:
        config = self.config
        tagger = Tagger.load(self.model_folder, config.training.device)
        found = {}
        for split in self.experiment.splits:
            sentences = list(read(self.files.paths[split], config.data.format))
            examples = tagger.task.annotated(sentences)
            found[split] = {
                "sentences": len(examples),
                "tokens": sum(map(len, examples)),
                "calibration": calibration(tagger, examples),
                "decoders": evaluate(tagger, examples, decoders),
            }
        return found

    def _check_same(self, row: LogRow) -> None:
        """Raise ExperimentError if the settings of the logged row differ from those of this run."""
        before, now = _flat(row["config"]), _flat(portable_config(self.config))
        ignored: tuple[str, ...] = _IGNORED
        if (
            self.spec.network not in self.context.pretrained
        ):  # the logged run may have used another name for the encoder
            ignored += ("model.pretrained",)
        if self.experiment.longer is not None:
            longer = self._longer_config.training.epochs
            if before["training.epochs"] == longer:  # the second run was better
                ignored += ("training.epochs",)
        for key, value in before.items():
            if key in now and now[key] != value and key not in ignored:
                raise ExperimentError(
                    f"{self.title} is in the log with {key} = {value!r}, but now {key} = "
                    f"{now[key]!r}; restore the setting, or replace the result with --again"
                )


def _train(config: Config) -> Generator[Event, None, Started]:
    """Train or resume a run; return its first event."""
    started = None
    for event in _with_config_errors(train(config, resume=True, extend=False)):
        started = event if isinstance(event, Started) else started
        yield event
    assert started is not None
    return started


def portable_config(config: Config) -> dict[str, Any]:
    """Return the config without the output folder, and with file names in place of paths."""
    values = config.to_dict()
    del values["output"]
    for part, name in (("data", "train"), ("data", "dev"), ("model", "pretrained")):
        if values[part][name] is not None:
            values[part][name] = Path(values[part][name]).name
    return values


def epochs_done(folder: Path) -> int:
    """Return the number of epochs that a run has completed."""
    return sum(event["event"] == "epoch" for event in _metrics(folder))


def is_trained(folder: Path) -> bool:
    """Whether the folder holds the model of a finished run."""
    ended = any(event["event"] == "finish" for event in _metrics(folder))
    return ended and (folder / _BEST).exists()


def _with_config_errors(events: Iterator[Event]) -> Iterator[Event]:
    """Yield the events; re-raise a ValueError before the first event as ExperimentError."""
    try:
        first = next(events)
    except (DataError, ModelError):
        raise
    except ValueError as error:
        raise ExperimentError(str(error)) from error
    yield first
    yield from events


def _metrics(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of the log of a training run."""
    path = folder / _METRICS
    if path.exists():
        yield from map(json.loads, path.read_bytes().split(b"\n")[:-1])


def _history(folder: Path) -> dict[str, Any]:
    """Return times and scores of all epochs, including those before an interruption."""
    epochs = [event for event in _metrics(folder) if event["event"] == "epoch"]
    best = max((e for e in epochs if e["improved"]), key=lambda e: int(e["epoch"]))
    return {
        "seconds": round(sum(e["seconds"] for e in epochs), 2),
        "dev_seconds": round(sum(e["dev_seconds"] for e in epochs), 2),
        "best_epoch": best["epoch"],
        "loss": [round(e["loss"], 4) for e in epochs],
        "dev": [round(e["score"], 6) for e in epochs],
    }


def _ends_at_best(scores: list[float]) -> bool:
    """Whether the last three epochs reached a score on dev that no earlier epoch had."""
    return max(scores[-3:]) > max(scores[:-3], default=-math.inf)


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested tables as one table with dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat
