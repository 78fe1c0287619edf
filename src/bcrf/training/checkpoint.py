"""The state of a run at the end of an epoch, from which it can go on.

It is a model's folder with two files more: the optimiser's moments, and how far the run has come.
Nothing else is needed: batches, dropout and learning rates are functions of seed, epoch and step.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..tagging import ModelError, Tagger
from ..tagging.atomic_folder import replace_folder
from ..tagging.folder import load_json, read_description, read_weights, verify
from ..tagging.tensors import load_tensors, save_tensors
from .config import Config
from .optimization import Optimization

__all__ = ["REASONS", "Checkpoint", "Progress", "load_checkpoint", "save_checkpoint"]

_STATE, _MOMENTS = "training.json", "optimizer.safetensors"

REASONS = ("done", "early stopping")
"""Why a run is over."""

# What may differ when a run goes on: it decides where things are, not what is computed.
_FREE = ("output", "data.train", "data.dev", "training.device", "training.log_every")


@dataclass(frozen=True)
class Progress:
    """How far a run has come.

    Args:
        epoch: the last one that is done; 0: none.
        best_epoch, best_score: of the best model.
        log_size: bytes of metrics.jsonl by then.
        reason: why it is over; None: it is not.
    """

    epoch: int = 0
    best_epoch: int = 0
    best_score: float | None = None
    log_size: int = 0
    reason: str | None = None


@dataclass(frozen=True)
class Checkpoint:
    """A folder from which to go on, and how far it is."""

    folder: Path
    progress: Progress

    def restore(self, tagger: Tagger, optimization: Optimization, steps: int) -> None:
        """Bring network and optimiser to where they were after this number of steps.

        Raises:
            ModelError: the tensors are not those of this network.
        """
        try:
            tagger.model.load_state_dict(read_weights(self.folder))
        except RuntimeError as error:
            reason = " ".join(str(error).split())
            raise ModelError(
                f"{self.folder}: does not fit the network of the run: {reason}"
            ) from error
        path = self.folder / _MOMENTS
        if not path.is_file():
            raise ModelError(f"{path}: is missing; expected the state of the optimiser")
        try:
            optimization.load_state(load_tensors(path), steps)
        except ValueError as error:
            raise ModelError(f"{path}: {error}") from error


def save_checkpoint(
    folder: Path,
    tagger: Tagger,
    optimization: Optimization,
    progress: Progress,
    config: Config,
    fingerprint: str,
) -> None:
    """Replace the folder by the present state; it is there whole, old or new, at any time."""
    state = {
        "progress": dataclasses.asdict(progress),
        "config": config.to_dict(),
        "fingerprint": fingerprint,
    }
    with replace_folder(folder) as fresh:
        save_tensors(fresh / _MOMENTS, optimization.state())
        (fresh / _STATE).write_text(json.dumps(state, indent=1) + "\n", encoding="utf-8")
        tagger.write(fresh)  # last: it takes the digests of all files


def load_checkpoint(folder: Path, config: Config, fingerprint: str) -> Checkpoint | None:
    """The state in that folder, after all has been checked; None if there is none.

    Raises:
        ModelError: a file is missing or damaged.
        ValueError: the state is that of a run with another config, or on other data.
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
    for key, before, now in _differences(state["config"], config.to_dict()):
        if key not in _FREE:
            raise ValueError(
                f"{folder} is a run with {key} = {before!r:.60}, now it is {now!r}; to resume, "
                "leave it as it was"
            )
    if state["fingerprint"] != fingerprint:
        files = " and ".join(filter(None, (config.data.train, config.data.dev)))
        raise ValueError(f"{folder} is a run on other data than there are now in {files}")
    return Checkpoint(folder, _read_progress(path, state["progress"], config))


def _read_progress(path: Path, values: dict[str, Any], config: Config) -> Progress:
    """The progress in `training.json`, checked against the config."""
    _check_keys(path, "progress.", values, [field.name for field in dataclasses.fields(Progress)])
    has_dev = config.data.dev is not None
    score_form = "a number from 0 to 1" if has_dev else "null, as there are no dev sentences"

    def check(key: str, valid: bool, form: str) -> None:
        if not valid:
            raise ModelError(f"{path}: progress.{key} must be {form}, found {values[key]!r:.60}")

    def check_count(key: str, least: int, most: float) -> None:
        value = values[key]
        valid = type(value) is int and least <= value <= most
        check(key, valid, f"a whole number from {least} to {most}")

    check_count("epoch", 1, config.training.epochs)
    check_count("best_epoch", 1, values["epoch"])
    check_count("log_size", 0, math.inf)
    score = values["best_score"]
    is_score = type(score) in (int, float) and 0 <= score <= 1
    check("best_score", is_score if has_dev else score is None, score_form)
    done, stopped = REASONS
    reasons: list[str | None] = [done]
    if values["epoch"] < config.training.epochs:
        reasons = [None] if config.training.patience is None else [None, stopped]
    check("reason", values["reason"] in reasons, " or ".join(map(json.dumps, reasons)))
    return Progress(**values)


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
    """Dotted keys of two nested tables whose values differ, with both values."""
    found: list[tuple[str, Any, Any]] = []
    for key in [*before, *(key for key in now if key not in before)]:
        old, new = before.get(key), now.get(key)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            found += _differences(old, new, f"{prefix}{key}.")
        elif old != new:
            found.append((prefix + key, old, new))
    return found
