"""What a training run is made of: the user's choices, as plain values."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from ..checks import check_count, check_number
from ..data import FORMATS
from ..nn import ModelConfig, check_decoder
from ..tagging import REPAIRS, choose_device
from ..tasks import TASKS
from .recipes import merged, recipe

__all__ = ["Config", "DataConfig", "DecodingConfig", "OptimizerConfig", "TrainingConfig"]


@dataclass(frozen=True)
class DataConfig:
    """What is learned, from which files.

    Args:
        train: file with the training sentences.
        dev: file by which the best epoch is chosen; None: the last epoch is the best.
        task: "pos", "segmentation" or "ner".
        format: of the files; "auto": by their names and first lines.
        column: pos and segmentation: "upos" or "xpos".
        spaces: segmentation: whether a space is a "boundary" of words, or a "token" that words may
            hold; "auto": what the training words demand.
        scheme: ner: "IOB2" or "BIOES".
        strict: ner: whether ill-formed labels in a file are an error.
        lowercase: whether the network reads words in lower case (the letters of words are read as
            they are).
        min_count: how often a word must occur to be known.
        partial: ner: forget all annotation but one type of mentions per training sentence.
        partial_reading: what is then known of the other words, "exclusive" or "literal".
    """

    train: str
    dev: str | None = None
    task: Literal["pos", "segmentation", "ner"] = "pos"
    format: str = "auto"
    column: Literal["upos", "xpos"] = "upos"
    spaces: Literal["auto", "boundary", "token"] = "auto"
    scheme: Literal["IOB2", "BIOES"] = "IOB2"
    strict: bool = True
    lowercase: bool = True
    min_count: int = 1
    partial: bool = False
    partial_reading: Literal["exclusive", "literal"] = "exclusive"

    # Settings that some tasks have and others have not.
    _OF_TASKS: ClassVar[dict[str, tuple[str, ...]]] = {
        "column": ("pos", "segmentation"),
        "spaces": ("segmentation",),
        "scheme": ("ner",),
        "strict": ("ner",),
        "partial": ("ner",),
        "partial_reading": ("ner",),
    }

    def __post_init__(self) -> None:
        _check_path("train", self.train)
        if self.dev is not None:
            _check_path("dev", self.dev)
        _check_choice("task", self.task, tuple(TASKS))
        _check_choice("format", self.format, ("auto", *FORMATS))
        _check_choice("column", self.column, ("upos", "xpos"))
        _check_choice("spaces", self.spaces, ("auto", "boundary", "token"))
        _check_choice("scheme", self.scheme, ("IOB2", "BIOES"))
        _check_choice("partial_reading", self.partial_reading, ("exclusive", "literal"))
        for name in ("strict", "lowercase", "partial"):
            _check_bool(name, getattr(self, name))
        check_count("min_count", self.min_count, least=1)
        defaults = {f.name: f.default for f in dataclasses.fields(self)}
        for name, of_tasks in self._OF_TASKS.items():
            if self.task not in of_tasks and getattr(self, name) != defaults[name]:
                raise ValueError(
                    f"{name} is a setting of the task {' or '.join(of_tasks)}, not of {self.task}"
                )

    @property
    def task_settings(self) -> dict[str, Any]:
        """What `tasks.fit` is to be told."""
        names = ("column", "spaces", "scheme", "strict")
        return {name: getattr(self, name) for name in names if self.task in self._OF_TASKS[name]}


@dataclass(frozen=True)
class OptimizerConfig:
    """How the weights are moved (by Adam).

    Args:
        learning_rate: at its highest.
        scorer_learning_rate: that of the scorer, which is always new; None: the same.
        schedule: how it falls after the warm-up, "linear" to zero, or "constant".
        warmup: share of the steps in which it rises from zero.
        clip: longest gradient that is taken as it is; None: any.
        lazy: whether rows of embeddings that a batch does not use are moved later, when one uses
            them: the same numbers but for rounding (see `LazyAdam`), in less time.
    """

    learning_rate: float = 3e-4
    scorer_learning_rate: float | None = None
    schedule: Literal["linear", "constant"] = "linear"
    warmup: float = 0.1
    clip: float | None = None
    lazy: bool = True

    def __post_init__(self) -> None:
        for name in ("learning_rate", "scorer_learning_rate", "clip"):
            value = getattr(self, name)
            if value is None and name != "learning_rate":
                continue
            check_number(name, value)
            if not 0 < value < math.inf:
                raise ValueError(f"{name} must be positive and finite, got {value}")
        _check_choice("schedule", self.schedule, ("linear", "constant"))
        check_number("warmup", self.warmup)
        if not 0 <= self.warmup < 1:
            raise ValueError(f"warmup must be in [0, 1), got {self.warmup}")
        _check_bool("lazy", self.lazy)


@dataclass(frozen=True)
class TrainingConfig:
    """How long, on what, in which portions.

    Args:
        epochs: how often each sentence is seen.
        batch: sentences, or tokens with padding, of a batch.
        batch_unit: which of the two.
        patience: stop after so many epochs without a better score on dev; None: never.
        seed: of the first weights, dropout, unknown words, batches and the partial split.
        device: "auto" (a GPU where there is one), "cpu", "cuda" or "cuda:N".
        precision: "float32", or "bfloat16" for the products of the network (autocast).
        log_every: steps between two lines of metrics.jsonl.
    """

    epochs: int = 12
    batch: int = 32
    batch_unit: Literal["sentences", "tokens"] = "sentences"
    patience: int | None = None
    seed: int = 0
    device: str = "auto"
    precision: Literal["float32", "bfloat16"] = "float32"
    log_every: int = 100

    def __post_init__(self) -> None:
        for name in ("epochs", "batch", "log_every"):
            check_count(name, getattr(self, name), least=1)
        _check_choice("batch_unit", self.batch_unit, ("sentences", "tokens"))
        if self.patience is not None:
            check_count("patience", self.patience, least=1)
        check_count("seed", self.seed)
        choose_device(self.device)
        _check_choice("precision", self.precision, ("float32", "bfloat16"))


@dataclass(frozen=True)
class DecodingConfig:
    """How labels are chosen, on dev and by the tagger that comes out.

    Args:
        decoder: "viterbi", "certified", "bregman-10", ...; None: what goes with the objective.
        repair: of ill-formed labels: "rule", "mbr" or "none".
    """

    decoder: str | None = None
    repair: Literal["rule", "mbr", "none"] = "rule"

    def __post_init__(self) -> None:
        if self.decoder is not None:
            check_decoder(self.decoder)
        _check_choice("repair", self.repair, REPAIRS)


@dataclass(frozen=True)
class Config:
    """A training run.

    Args:
        output: folder of the run.
    """

    output: str
    data: DataConfig
    model: ModelConfig = field(default_factory=ModelConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    decoding: DecodingConfig = field(default_factory=DecodingConfig)

    def __post_init__(self) -> None:
        _check_path("output", self.output)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Config:
        """The config with these values; what is left out is as the task's recipe says.

        Errors name the key, such as `training.epochs`.
        """
        known = ["output", *_PARTS]
        for key in values:
            if key not in known:
                raise ValueError(f"unknown key {key!r}; expected {', '.join(known)}")
        if "output" not in values:
            raise ValueError("output is missing; expected the folder of the run")
        given = {name: _part(name, values.get(name, {})) for name in _PARTS}
        if "train" not in given["data"]:
            raise ValueError("data.train is missing; expected the file with training sentences")
        task = given["data"].get("task", "pos")
        _check_choice("data.task", task, tuple(TASKS))
        whole = merged(recipe(task, given["model"].get("pretrained") is not None), given)
        parts = {}
        for name, kind in _PARTS.items():
            try:
                parts[name] = kind(**whole[name])
            except (TypeError, ValueError) as error:
                raise type(error)(f"{name}.{error}") from error
        return cls(values["output"], **parts)


_PARTS: dict[str, type[Any]] = {
    "data": DataConfig,
    "model": ModelConfig,
    "optimizer": OptimizerConfig,
    "training": TrainingConfig,
    "decoding": DecodingConfig,
}


def _part(name: str, values: object) -> Mapping[str, Any]:
    """The values of one part, all with known keys."""
    if not isinstance(values, Mapping):
        raise TypeError(f"{name} must be a table of settings, got {values!r}")
    known = [f.name for f in dataclasses.fields(_PARTS[name])]
    for key in values:
        if key not in known:
            raise ValueError(f"unknown key '{name}.{key}'; expected {', '.join(known)}")
    return values


def _check_path(name: str, value: object) -> None:
    if not isinstance(value, str) or not value:
        raise ValueError(f"{name} must be a path, got {value!r}")


def _check_choice(name: str, value: object, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ValueError(f"{name} must be one of {', '.join(known)}, got {value!r}")


def _check_bool(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be true or false, got {value!r}")
