"""A model as a folder: `model.safetensors` (weights) and `model.json` (all else).

A pretrained encoder adds its own configuration and tokenizer in `encoder/`. The JSON holds the
SHA-256 of every other file, and of itself, so that no damage goes unnoticed. A file that it does
not name is not read.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from torch import Tensor

from ..data import sha256, sha256_of_stream
from .atomic_folder import current_path
from .errors import ModelError
from .limits import (
    MAX_DESCRIPTION_BYTES,
    MAX_ENCODER_FILE_BYTES,
    MAX_ENCODER_FILES,
    MAX_WEIGHTS_BYTES,
)
from .model_files import is_inside, open_model_file, parse_json, read_bytes
from .tensors import TensorInfo, load_tensors, save_tensors, tensor_infos

__all__ = [
    "ENCODER",
    "VERSION",
    "Description",
    "check_replaceable",
    "load_json",
    "locate",
    "read_description",
    "read_encoder_file",
    "read_weights",
    "verify",
    "weight_infos",
    "write_description",
    "write_weights",
]

VERSION = 1
"""Of the folder's layout. It grows whenever older versions of the library cannot read it."""

DESCRIPTION, WEIGHTS, ENCODER = "model.json", "model.safetensors", "encoder"

# The files of a training run that lie beside those of its last model.
_TRAINING_FILES = ("optimizer.safetensors", "training.json")

# What may be in a model's folder, and so may be replaced.
_OWN = {DESCRIPTION, WEIGHTS, ENCODER, *_TRAINING_FILES}

# What `model.json` says, besides its digests.
_VALUES: dict[str, type] = {
    "format": str,
    "version": int,
    "bcrf": str,
    "task": dict,
    "model": dict,
    "vocabularies": dict,
    "decoder": str,
    "repair": str,
    "info": dict,
}

# The kinds of files that configurations and tokenizers consist of: data, never code or pickles.
_ENCODER_SUFFIXES = (".json", ".txt", ".model", ".jinja")

_DIGEST = re.compile(r"[0-9a-f]{64}")


class Description(NamedTuple):
    """What `model.json` says.

    Args:
        values: about the model, as `write_description` was given them.
        files: the SHA-256 of every other file of the model, by its path in POSIX notation.
    """

    values: dict[str, Any]
    files: dict[str, str]

    @property
    def encoder_files(self) -> list[str]:
        """The files of the pretrained encoder."""
        return [name for name in self.files if name.startswith(f"{ENCODER}/")]


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


# Writing


def write_weights(folder: Path, weights: Mapping[str, Tensor]) -> None:
    save_tensors(folder / WEIGHTS, weights)


def write_description(folder: Path, values: Mapping[str, Any]) -> None:
    """Write `model.json`, once all other files are there.

    Raises:
        ModelError: `read_description` would refuse what is there.
    """
    document = {"format": "bcrf tagger", "version": VERSION, "bcrf": _library_version()}
    document |= values
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    document["files"] = {path.relative_to(folder).as_posix(): sha256(path) for path in files}
    path = folder / DESCRIPTION
    _check_schema(path, document)
    document["sha256"] = _own_digest(document)
    content = json.dumps(document, ensure_ascii=False, indent=1).encode() + b"\n"
    if len(content) > MAX_DESCRIPTION_BYTES:
        raise ModelError(
            f"{path}: would have {len(content):,} bytes; at most {MAX_DESCRIPTION_BYTES:,} can be "
            "read again. Raise data.min_count to keep fewer words"
        )
    path.write_bytes(content)


# Reading


def read_description(folder: Path) -> Description:
    """What `write_description` was given. No other file has been looked at yet: see `verify`."""
    path = folder / DESCRIPTION
    document = load_json(folder, DESCRIPTION)
    if document.get("format") != "bcrf tagger":
        raise ModelError(f"{path}: does not describe a model of bcrf")
    _check_version(path, document.get("version"))
    if document.pop("sha256", None) != _own_digest(document):
        raise ModelError(f"{path}: has been changed since it was written, or damaged")
    _check_schema(path, document)
    return Description(document, document.pop("files"))


def verify(folder: Path, description: Description) -> None:
    """Compare every file of the model with its digest.

    Raises:
        ModelError: a file is missing, damaged, no regular file or too long, or there is code.
    """
    refuse_python(folder)
    for name, expected in description.files.items():
        with open_model_file(folder, name, _limit(name)) as stream:
            _check_digest(folder / name, sha256_of_stream(stream), expected)


def refuse_python(folder: Path) -> None:
    """Raise if there is Python code in the folder of a model: nobody should run it unawares."""
    for place in (folder, folder / ENCODER):
        for path in place.glob("*.py*"):
            raise ModelError(f"{path}: is Python code; the folder of a model holds none")


def read_encoder_file(folder: Path, name: str, expected: str) -> bytes:
    """The content of a file of the pretrained encoder, which has that SHA-256."""
    content = read_bytes(folder, name, _limit(name))
    _check_digest(folder / name, hashlib.sha256(content).hexdigest(), expected)
    return content


def weight_infos(folder: Path) -> dict[str, TensorInfo]:
    """Types and shapes of the weights, from the header of their file alone."""
    return tensor_infos(folder, WEIGHTS)


def read_weights(folder: Path) -> dict[str, Tensor]:
    return load_tensors(folder / WEIGHTS)


def load_json(folder: Path, name: str) -> dict[str, Any]:
    """The JSON object in a file of a model."""
    return parse_json(folder / name, read_bytes(folder, name, MAX_DESCRIPTION_BYTES))


def _limit(name: str) -> int:
    """The most bytes that a file of a model may have."""
    if name.startswith(f"{ENCODER}/"):
        return MAX_ENCODER_FILE_BYTES
    return MAX_WEIGHTS_BYTES if name.endswith(".safetensors") else MAX_DESCRIPTION_BYTES


def _check_digest(path: Path, found: str, expected: str) -> None:
    if found != expected:
        raise ModelError(
            f"{path}: has been changed since it was written, or damaged: its SHA-256 is not "
            f"that in {DESCRIPTION}"
        )


def _own_digest(document: Mapping[str, Any]) -> str:
    """SHA-256 of the values, however they are laid out."""
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _check_version(path: Path, version: object) -> None:
    if isinstance(version, bool) or not isinstance(version, int):
        raise ModelError(f"{path}: expected the format version {VERSION}, found {version!r}")
    if version == VERSION:
        return
    older = version < VERSION
    advice = "train it again, or use the older bcrf" if older else "install a newer bcrf"
    raise ModelError(
        f"{path}: has format version {version}, {'older' if older else 'newer'} than {VERSION}, "
        f"which bcrf {_library_version()} reads: {advice}"
    )


def _check_schema(path: Path, document: Mapping[str, Any]) -> None:
    """Raise unless the document has just the expected keys, with values of the expected types."""
    for key, kind in (*_VALUES.items(), ("files", dict)):
        if key not in document:
            raise ModelError(f"{path}: {key!r} is missing")
        if not isinstance(document[key], kind):
            found = type(document[key]).__name__
            raise ModelError(f"{path}: {key!r} must be a {kind.__name__}, found a {found}")
    unknown = sorted(set(document) - set(_VALUES) - {"files"})
    if unknown:
        raise ModelError(f"{path}: unknown key {unknown[0]!r:.60}")
    files = document["files"]
    for name, found in files.items():
        if not _may_belong(name):
            raise ModelError(f"{path}: {name!r:.60} cannot be a file of a model")
        if not (isinstance(found, str) and _DIGEST.fullmatch(found)):
            raise ModelError(f"{path}: expected the SHA-256 of {name!r:.60}, found {found!r:.60}")
    if WEIGHTS not in files:
        raise ModelError(f"{path}: does not name {WEIGHTS} among the files of the model")
    count = sum(name.startswith(f"{ENCODER}/") for name in files)
    if count > MAX_ENCODER_FILES:
        raise ModelError(
            f"{path}: names {count} files of an encoder; at most {MAX_ENCODER_FILES} are read"
        )


def _may_belong(name: str) -> bool:
    """Whether a file of this name can be part of a model, besides `model.json`."""
    if name in (WEIGHTS, *_TRAINING_FILES):
        return True
    path = PurePosixPath(name)
    in_encoder = is_inside(name) and len(path.parts) == 2 and path.parts[0] == ENCODER
    return in_encoder and path.suffix in _ENCODER_SUFFIXES


def _library_version() -> str:
    try:
        return metadata.version("bcrf")
    except metadata.PackageNotFoundError:
        return "(not installed)"
