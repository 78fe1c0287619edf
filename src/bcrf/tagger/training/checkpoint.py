"""The state of a run at the end of an epoch, from which it can be resumed.

The state is saved as the folder of a model with two more files: the moments of the optimizer, and
the progress of the run. Batches, dropout and learning rates need no state: they are functions of
seed, epoch and step.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import ModelError, Tagger
from ..config_tables import deep_merge
from ..files import replace_folder
from ..model_folder.description import load_json, read_description, read_weights, verify
from ..model_folder.tensors import load_tensors, save_tensors
from .config import Config, DataConfig
from .optimization import Optimization

__all__ = ["REASONS", "Checkpoint", "TrainingProgress", "load_checkpoint", "save_checkpoint"]

_STATE, _MOMENTS = "training.json", "optimizer.safetensors"

REASONS = ("done", "early stopping")
"""The reasons for which a run ends."""

# Settings that may differ when a run is resumed: they do not change the weights.
_MAY_DIFFER = (
    *("output", "data.train", "data.dev"),
    *("training.device", "training.log_every", "training.calibrate"),
)

# Setting that may grow when a run is resumed, which extends the run.
_EPOCHS = "training.epochs"


@dataclass(frozen=True)
class TrainingProgress:
    """How far a run has come.

    Args:
        epoch: the last epoch that is complete; 0: none.
        best_epoch, best_score: epoch and score of the best model.
        improved_epoch: the last epoch whose score was higher than all scores before it. The best
            epoch may be later, with the same score.
        log_size: size of metrics.jsonl at the end of `epoch`, in bytes.
        reason: why the run is over, one of `REASONS`; None: it is not over.
        is_extended: whether the run was resumed with more epochs than before. It is not saved.
    """

    epoch: int = 0
    best_epoch: int = 0
    best_score: float | None = None
    improved_epoch: int = 0
    log_size: int = 0
    reason: str | None = None
    is_extended: bool = False


@dataclass(frozen=True)
class Checkpoint:
    """The folder of a saved state, and the progress of the run at that time."""

    folder: Path
    progress: TrainingProgress

    def restore(self, tagger: Tagger, optimization: Optimization, steps: int) -> None:
        """Load the weights and the moments of the optimizer, which were saved after `steps` steps.

        Raises:
            ModelError: the tensors do not fit this network.
        """
        try:
            tagger.model.load_state_dict(read_weights(self.folder))
        except RuntimeError as error:
            reason = " ".join(str(error).split())
            raise ModelError(
                f"{self.folder}: its weights do not fit the network of this run: {reason}"
            ) from error
        path = self.folder / _MOMENTS
        if not path.is_file():
            raise ModelError(f"{path}: is missing; expected the state of the optimizer")
        try:
            optimization.load_state(load_tensors(path), steps)
        except ValueError as error:
            raise ModelError(f"{path}: {error}") from error


def save_checkpoint(
    folder: Path,
    tagger: Tagger,
    optimization: Optimization,
    progress: TrainingProgress,
    config: Config,
    fingerprint: str,
) -> None:
    """Replace the saved state by the present one, atomically."""
    saved_progress = dataclasses.asdict(progress)
    del saved_progress["is_extended"]
    state = {
        "progress": saved_progress,
        "config": config.to_dict(),
        "fingerprint": fingerprint,
    }
    with replace_folder(folder) as fresh:
        save_tensors(fresh / _MOMENTS, optimization.state())
        (fresh / _STATE).write_text(json.dumps(state, indent=1) + "\n", encoding="utf-8")
        tagger.write(fresh)  # last, because it computes the checksums of all files


def load_checkpoint(
    folder: Path, config: Config, fingerprint: str, extend: bool
) -> Checkpoint | None:
    """Return the checked state that is saved in a folder; None if there is no folder.

    Args:
        folder: the folder of the state.
        config: the configuration of the run.
        fingerprint: the checksum of the data, see `TrainingData.fingerprint`.
        extend: whether the configuration may have more epochs than that of the saved run.

    Raises:
        ModelError: a file is missing or damaged.
        ValueError: the run had another configuration, or other data.
    """
    if not folder.exists():
        return None
    verify(folder, read_description(folder))
    path = folder / _STATE
    if not path.is_file():
        raise ModelError(f"{path}: is missing; expected the state of a training run")
    state = load_json(folder, _STATE)
    _check_keys(path, "", state, ("progress", "config", "fingerprint"))
    for key in ("progress", "config"):
        if not isinstance(state[key], dict):
            raise ModelError(f"{path}: {key} must be an object, found {state[key]!r:.60}")
    epochs = config.training.epochs
    # Runs of older versions lack the settings that were added since; these have their defaults.
    defaults = Config(config.output, DataConfig(config.data.train)).to_dict()
    saved = deep_merge(defaults, state["config"])
    for key, before, now in _differences(saved, config.to_dict()):
        if extend and key == _EPOCHS and type(before) is int and 1 <= before < now:
            epochs = before
        elif key not in _MAY_DIFFER:
            least = "at least " if extend and key == _EPOCHS else ""
            raise ValueError(
                f"{folder} was trained with {key} = {before!r:.60}, but now {key} = {now!r}; to "
                f"resume, set {key} to {least}{before!r:.60}"
            )
    if state["fingerprint"] != fingerprint:
        files = " and ".join(filter(None, (config.data.train, config.data.dev)))
        raise ValueError(
            f"the data in {files} have changed since {folder} was trained; restore the files to "
            "resume, or start again (--overwrite)"
        )
    progress = _read_progress(path, state["progress"], config, epochs)
    if epochs < config.training.epochs:
        reason = None if progress.reason == "done" else progress.reason
        progress = dataclasses.replace(progress, reason=reason, is_extended=reason is None)
    return Checkpoint(folder, progress)


def _read_progress(
    path: Path, values: dict[str, Any], config: Config, epochs: int
) -> TrainingProgress:
    """Return the progress in `training.json`, checked against a run of `epochs` epochs."""
    # Older states lack this field: in them the best epoch was the one with the last improvement.
    values = {"improved_epoch": values.get("best_epoch"), **values}
    names = [
        field.name for field in dataclasses.fields(TrainingProgress) if field.name != "is_extended"
    ]
    _check_keys(path, "progress.", values, names)
    has_dev = config.data.dev is not None
    score_form = "a number from 0 to 1" if has_dev else "null, because there are no dev sentences"

    def check(key: str, valid: bool, form: str) -> None:
        if not valid:
            raise ModelError(f"{path}: progress.{key} must be {form}, found {values[key]!r:.60}")

    def check_count(key: str, least: int, most: float) -> None:
        value = values[key]
        valid = type(value) is int and least <= value <= most
        check(key, valid, f"a whole number from {least} to {most}")

    check_count("epoch", 1, epochs)
    check_count("best_epoch", 1, values["epoch"])
    check_count("improved_epoch", 1, values["best_epoch"])
    check_count("log_size", 0, math.inf)
    score = values["best_score"]
    is_score = type(score) in (int, float) and 0 <= score <= 1
    check("best_score", is_score if has_dev else score is None, score_form)
    done, stopped = REASONS
    reasons: list[str | None] = [done]
    if values["epoch"] < epochs:
        reasons = [None] if config.training.patience is None else [None, stopped]
    check("reason", values["reason"] in reasons, " or ".join(map(json.dumps, reasons)))
    return TrainingProgress(**values)


def _check_keys(path: Path, prefix: str, values: dict[str, Any], known: Iterable[str]) -> None:
    known = list(known)
    for key in known:
        if key not in values:
            raise ModelError(f"{path}: {prefix}{key} is missing")
    for key in values:
        if key not in known:
            raise ModelError(
                f"{path}: unknown key '{prefix}{key:.60}'; expected {', '.join(known)}"
            )


def _differences(
    before: Mapping[str, Any], now: Mapping[str, Any], prefix: str = ""
) -> list[tuple[str, Any, Any]]:
    """Return the differences of two nested tables: dotted keys with both values."""
    found: list[tuple[str, Any, Any]] = []
    for key in [*before, *(key for key in now if key not in before)]:
        old, new = before.get(key), now.get(key)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            found += _differences(old, new, f"{prefix}{key}.")
        elif old != new:
            found.append((prefix + key, old, new))
    return found
