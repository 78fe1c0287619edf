"""A model as a folder: `model.safetensors` (weights) and `model.json` (all else).

A pretrained encoder adds its own configuration and tokenizer in `encoder/`. The JSON holds the
SHA-256 of every other file, and of itself, so that no damage goes unnoticed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from torch import Tensor

from .atomic_folder import current_path
from .tensors import load_tensors, save_tensors

__all__ = [
    "ENCODER",
    "VERSION",
    "ModelError",
    "check_replaceable",
    "digest",
    "load_json",
    "locate",
    "read_description",
    "read_weights",
    "write_description",
    "write_weights",
]

VERSION = 1
"""Of the folder's layout. It grows whenever older versions of the library cannot read it."""

DESCRIPTION, WEIGHTS, ENCODER = "model.json", "model.safetensors", "encoder"

# What may be in a model's folder, and so may be replaced; the last two are of a training run.
_OWN = {DESCRIPTION, WEIGHTS, ENCODER, "optimizer.safetensors", "training.json"}


class ModelError(ValueError):
    """A model that cannot be read; the message begins with the file."""


def locate(path: Path) -> Path:
    """The model's folder: `path`, or its best model, if it is the folder of a training run."""
    for folder in (current_path(path), current_path(path / "best")):
        if (folder / DESCRIPTION).is_file():
            return folder
    if not path.exists():
        raise ModelError(f"{path}: there is no such folder; expected one with {DESCRIPTION}")
    if not path.is_dir():
        raise ModelError(f"{path}: expected the folder of a model, found a file")
    raise ModelError(f"{path}: holds no model; expected {DESCRIPTION} in it, or best/{DESCRIPTION}")


def check_replaceable(path: Path) -> None:
    """Raise unless `path` is free, empty or the folder of a model, and nothing else."""
    if not path.exists():
        return
    if not path.is_dir():
        raise FileExistsError(f"{path} is a file; expected a folder, or nothing yet")
    names = {entry.name for entry in path.iterdir()}
    foreign = sorted(names - _OWN)
    if foreign or (names and DESCRIPTION not in names):
        raise FileExistsError(
            f"{path} holds other things than a model ({', '.join(foreign or sorted(names))[:60]}); "
            "choose another folder"
        )


def write_weights(folder: Path, weights: Mapping[str, Tensor]) -> None:
    save_tensors(folder / WEIGHTS, weights)


def write_description(folder: Path, values: Mapping[str, Any]) -> None:
    """Write `model.json`, once all other files are there."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    document = {"format": "bcrf tagger", "version": VERSION, "bcrf": _library_version()}
    document |= values
    document["files"] = {path.relative_to(folder).as_posix(): digest(path) for path in files}
    document["sha256"] = _own_digest(document)
    text = json.dumps(document, ensure_ascii=False, indent=1)
    (folder / DESCRIPTION).write_text(text + "\n", encoding="utf-8")


def read_description(folder: Path) -> dict[str, Any]:
    """What `write_description` was given, after all files have been checked."""
    path = folder / DESCRIPTION
    document = load_json(path)
    if document.get("format") != "bcrf tagger":
        raise ModelError(f"{path}: does not describe a model of bcrf")
    _check_version(path, document.get("version"))
    if document.pop("sha256", None) != _own_digest(document):
        raise ModelError(f"{path}: has been changed since it was written, or damaged")
    for name, expected in document.pop("files").items():
        file = folder / name
        if not file.is_file():
            raise ModelError(f"{file}: is missing; {DESCRIPTION} names it as a part of the model")
        if digest(file) != expected:
            raise ModelError(
                f"{file}: has been changed since it was written, or damaged: its SHA-256 is not "
                f"that in {DESCRIPTION}"
            )
    return document


def read_weights(folder: Path) -> dict[str, Tensor]:
    return load_tensors(folder / WEIGHTS)


def load_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file of a model."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(f"{path}: is damaged, no JSON: {error}") from error
    if not isinstance(document, dict):
        raise ModelError(f"{path}: is damaged: expected a JSON object")
    return document


def digest(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    total = hashlib.sha256()
    with path.open("rb") as stream:
        while part := stream.read(1 << 20):
            total.update(part)
    return total.hexdigest()


def _own_digest(document: Mapping[str, Any]) -> str:
    """SHA-256 of the values, however they are laid out."""
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _check_version(path: Path, version: object) -> None:
    if version == VERSION:
        return
    if not isinstance(version, int):
        raise ModelError(f"{path}: expected the format version {VERSION}, found {version!r}")
    older = version < VERSION
    advice = "train it again, or use the older bcrf" if older else "install a newer bcrf"
    raise ModelError(
        f"{path}: has format version {version}, {'older' if older else 'newer'} than {VERSION}, "
        f"which bcrf {_library_version()} reads: {advice}"
    )


def _library_version() -> str:
    try:
        return metadata.version("bcrf")
    except metadata.PackageNotFoundError:
        return "(not installed)"
