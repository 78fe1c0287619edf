"""The configuration of a training run: what the user chooses, as plain values."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

from .. import choose_device
from ..config_tables import (
    COUNT,
    POSITIVE,
    SHARE,
    SIZE,
    Limit,
    check_fields,
    deep_merge,
    from_table,
)
from ..data import FORMATS
from ..nn import ModelConfig, check_decoder
from ..tasks import TASKS
from .fine_tuning import inherited_settings
from .recipes import recipe

__all__ = ["Config", "DataConfig", "DecodingConfig", "OptimizerConfig", "TrainingConfig"]

_FORMAT_NAMES = ("auto", *FORMATS)
_FORMAT = Limit(lambda name: name in _FORMAT_NAMES, f"one of {', '.join(_FORMAT_NAMES)}")


_DECAY = Limit(lambda value: 0 < value < 1, "a number between 0 and 1")


@dataclass(frozen=True)
class DataConfig:
    """The files with the data, and the task that is learned from them.

    Args:
        train: file with the training sentences.
        dev: file with the sentences by which the best epoch is chosen; without it, the last epoch
            is the best.
        task: "pos", "segmentation", "ner" or "tokenization".
        format: format of the files; "auto" detects it from their names and first lines.
        column: pos and segmentation: the column with the tags, "upos" or "xpos".
        spaces: segmentation: whether a space is a "boundary" of words, or a "token" that may be
            part of a word; "auto" chooses "token" if a training word contains a space.
        scheme: ner: tag scheme of the network, "IOB2" or "BIOES".
        strict: ner: whether ill-formed labels in a file are an error, or a warning.
        lowercase: whether the network reads words in lower case (the characters of words are never
            changed).
        min_count: how often a word, or a feature of words, must occur to get an embedding of its
            own.
        partial: ner: train on partial labels: each training sentence keeps the mentions of one
            type.
        partial_reading: partial labels: which labels the other words may have: all except those of
            the annotated type ("exclusive"), or all ("literal").

    Example:
        >>> from bcrf.tagger.training import DataConfig
        >>> DataConfig("train.conllu", dev="dev.conllu").task
        'pos'
        >>> DataConfig("train.conllu", scheme="BIOES")
        Traceback (most recent call last):
        ValueError: scheme is a setting of the task ner; the task is pos
    """

    train: Annotated[str, Limit(bool, "the path of the file with the training sentences")]
    dev: Annotated[str, Limit(bool, "the path of the file with the dev sentences")] | None = None
    task: Literal["pos", "segmentation", "ner", "tokenization"] = "pos"
    format: Annotated[str, _FORMAT] = "auto"
    column: Literal["upos", "xpos"] = "upos"
    spaces: Literal["auto", "boundary", "token"] = "auto"
    scheme: Literal["IOB2", "BIOES"] = "IOB2"
    strict: bool = True
    lowercase: bool = True
    min_count: Annotated[int, SIZE] = 1
    partial: bool = False
    partial_reading: Literal["exclusive", "literal"] = "exclusive"

    # The tasks that have a setting; all tasks have the settings that are not listed.
    _TASKS_WITH: ClassVar[dict[str, tuple[str, ...]]] = {
        "column": ("pos", "segmentation"),
        "spaces": ("segmentation",),
        "scheme": ("ner",),
        "strict": ("ner",),
        "partial": ("ner",),
        "partial_reading": ("ner",),
    }

    def __post_init__(self) -> None:
        check_fields(self)
        defaults = {f.name: f.default for f in dataclasses.fields(self)}
        for name, tasks in self._TASKS_WITH.items():
            if self.task not in tasks and getattr(self, name) != defaults[name]:
                raise ValueError(
                    f"{name} is a setting of the task {' or '.join(tasks)}; the task is {self.task}"
                )

    @property
    def task_settings(self) -> dict[str, Any]:
        """The arguments of `tasks.fit` for this task."""
        names = ("column", "spaces", "scheme", "strict")
        return {name: getattr(self, name) for name in names if self.task in self._TASKS_WITH[name]}


@dataclass(frozen=True)
class OptimizerConfig:
    """How the optimizer, Adam, updates the weights.

    Args:
        learning_rate: highest learning rate.
        scorer_learning_rate: highest learning rate of the scorer, which is never pretrained; by
            default `learning_rate`.
        schedule: the learning rate after the warm-up: "linear" decay to zero, or "constant".
        beta2: how slowly Adam forgets the squares of earlier gradients.
        warmup: share of the steps in which the learning rate rises from zero.
        clip: largest norm of the gradient; a larger gradient is scaled down. By default, gradients
            are not scaled.
        lazy: whether the embedding of a word is updated only when a batch has the word. This is
            faster and gives the same result up to rounding (see `LazyAdam`). On a GPU all
            embeddings are updated in any case, which takes one kernel.

    Example:
        >>> from bcrf.tagger.training import OptimizerConfig
        >>> OptimizerConfig(learning_rate=1e-3).schedule
        'linear'
    """

    learning_rate: Annotated[float, POSITIVE] = 3e-4
    scorer_learning_rate: Annotated[float, POSITIVE] | None = None
    schedule: Literal["linear", "constant"] = "linear"
    beta2: Annotated[float, _DECAY] = 0.999
    warmup: Annotated[float, SHARE] = 0.1
    clip: Annotated[float, POSITIVE] | None = None
    lazy: bool = True

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True)
class TrainingConfig:
    """Epochs, batches, seed and device of the training.

    Args:
        epochs: how often each sentence is seen.
        batch: size of a batch, in sentences, or in tokens with padding.
        batch_unit: unit of `batch`, "sentences" or "tokens".
        loss_unit: whether the loss of a batch is the mean over its sentences or over its tokens.
        patience: stop after this number of epochs without a better score on dev; by default never.
        seed: seed of the initial weights, dropout, unknown words, batches and the partial labels.
        device: "auto" (a GPU if there is one), "cpu", "cuda" or "cuda:N".
        precision: "float32", or "bfloat16" for the matrix products of the network (autocast).
        log_every: steps between two lines of metrics.jsonl.
        calibrate: whether the probabilities of each model that is saved in `best` are calibrated on
            dev by a temperature; its tags do not change.
        init_from: folder of a model with which the training begins (fine-tuning). Settings that are
            left out are those of this model; new labels and words are added to it.

    Example:
        >>> from bcrf.tagger.training import TrainingConfig
        >>> TrainingConfig(epochs=3).batch
        32
    """

    epochs: Annotated[int, SIZE] = 12
    batch: Annotated[int, SIZE] = 32
    batch_unit: Literal["sentences", "tokens"] = "sentences"
    loss_unit: Literal["sentences", "tokens"] = "sentences"
    patience: Annotated[int, SIZE] | None = None
    seed: Annotated[int, COUNT] = 0
    device: str = "auto"
    precision: Literal["float32", "bfloat16"] = "float32"
    log_every: Annotated[int, SIZE] = 100
    calibrate: bool = True
    init_from: Annotated[str, Limit(bool, "the folder of a model")] | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        choose_device(self.device)


@dataclass(frozen=True)
class DecodingConfig:
    """How labels are decoded, on dev and by the trained tagger.

    Args:
        decoder: "viterbi", "certified", "bregman-10", ...; by default the decoder that fits the
            objective.
        repair: how ill-formed label sequences are repaired: "rule", "mbr" or "none".

    Example:
        >>> from bcrf.tagger.training import DecodingConfig
        >>> DecodingConfig(decoder="bregman-10").repair
        'rule'
    """

    decoder: str | None = None
    repair: Literal["rule", "mbr", "none"] = "rule"

    def __post_init__(self) -> None:
        check_fields(self)
        if self.decoder is not None:
            check_decoder(self.decoder)


@dataclass(frozen=True)
class Config:
    """The configuration of a training run.

    Args:
        output: folder of the run.

    Example:
        >>> config = Config.from_dict({"output": "run", "data": {"train": "train.conllu"}})
        >>> config.model.features, config.training.epochs
        ('word', 8)
        >>> Config.from_dict({**config.to_dict(), "optimizer": {"lazy": "false"}})
        Traceback (most recent call last):
        TypeError: optimizer.lazy: expected true or false, got "false"
    """

    output: Annotated[str, Limit(bool, "the path of the folder of the run")]
    data: DataConfig
    model: ModelConfig = field(default_factory=ModelConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    decoding: DecodingConfig = field(default_factory=DecodingConfig)

    def __post_init__(self) -> None:
        check_fields(self)
        on_text = TASKS[self.data.task].is_on_text
        if self.model.features == "character" and not on_text:
            names = [name for name, task in TASKS.items() if task.is_on_text]
            raise ValueError(
                f"model.features = 'character' needs the task {' or '.join(names)}; the task is "
                f"{self.data.task}"
            )

    def to_dict(self) -> dict[str, Any]:
        """Return the configuration as nested tables of plain values, for JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Config:
        """Build a configuration; settings that are left out come from the recipe of the task.

        The network reads features, unless a setting of another network is given (see `recipe`).
        With `training.init_from`, settings come from the saved model first. Errors name the
        setting, such as `training.epochs`.

        Args:
            values: nested tables of plain values, such as a TOML file holds.

        Example:
            >>> from bcrf.tagger.training import Config
            >>> config = Config.from_dict({"output": "runs/pos", "data": {"train": "train.conllu"}})
            >>> config.data.task
            'pos'
        """
        training = values.get("training")
        start = training.get("init_from") if isinstance(training, Mapping) else None
        if isinstance(start, str) and start:
            values = deep_merge(inherited_settings(start), values)
        data, model = values.get("data"), values.get("model")
        task = data.get("task", "pos") if isinstance(data, Mapping) else None
        if isinstance(task, str) and task in TASKS:  # otherwise `from_table` raises
            settings = model if isinstance(model, Mapping) else {}
            values = deep_merge(recipe(task, settings), values)
        return from_table(cls, values)
