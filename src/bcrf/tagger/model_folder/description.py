"""The files of a model: `model.safetensors` holds the weights, `model.json` everything else.

If the model has a pretrained encoder, the folder `encoder/` holds its configuration and tokenizer.
If a tagger has a tokenizer for raw text, the folder `tokenizer/` holds this model.
`model.json` holds the SHA-256 of every other file, and of its own values, so that damage is
noticed. Files that `model.json` does not name are not read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path, PurePosixPath
from typing import Any, Final, NamedTuple, cast

from torch import Tensor

from ..files import sha256, sha256_of_bytes, sha256_of_stream
from .limits import (
    MAX_DESCRIPTION_BYTES,
    MAX_ENCODER_FILE_BYTES,
    MAX_ENCODER_FILES,
    MAX_WEIGHTS_BYTES,
)
from .model_files import ModelError, is_inside, open_model_file, parse_json, read_bytes
from .tensors import TensorInfo, load_tensors, save_tensors, tensor_infos
from .weight_storage import WeightStorage, check_storage, compress, expand

__all__ = [
    "DESCRIPTION",
    "ENCODER",
    "TOKENIZER",
    "VERSION",
    "Description",
    "check_replaceable",
    "load_json",
    "read_description",
    "read_encoder_file",
    "read_weights",
    "verify",
    "weight_infos",
    "write_description",
    "write_weights",
]

VERSION = 1
"""Version of the layout; it grows when older versions of the library cannot read a new folder."""

DESCRIPTION = "model.json"
"""The file that a folder has if and only if it holds a model."""

WEIGHTS, ENCODER = "model.safetensors", "encoder"

TOKENIZER = "tokenizer"
"""Folder of a tokenizer in the folder of a tagger. It is the folder of a model, too."""

# Additional files in the last state of a training run.
_TRAINING_FILES = ("optimizer.safetensors", "training.json")

_TOKENIZER_FILES = (f"{TOKENIZER}/{DESCRIPTION}", f"{TOKENIZER}/{WEIGHTS}")

# Names that the folder of a model may contain. A folder with other names is not replaced.
_MODEL_FILES = {DESCRIPTION, WEIGHTS, ENCODER, TOKENIZER, *_TRAINING_FILES}

# The keys of `model.json`, except the checksums, with the types of their values.
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

# A key that `model.json` may lack, with the limits of its value.
_TEMPERATURE, _LEAST_TEMPERATURE, _MOST_TEMPERATURE = "probability_temperature", 1e-3, 1e3

# Another one: how the weights are stored.
_STORAGE: Final = "storage"

# File types of configurations and tokenizers. They are data, never code or pickles.
_ENCODER_SUFFIXES = (".json", ".txt", ".model", ".jinja")

_DIGEST = re.compile(r"[0-9a-f]{64}")


class Description(NamedTuple):
    """The content of `model.json`.

    Args:
        values: the values that were passed to `write_description`.
        files: path (in POSIX notation) -> SHA-256 of every other file of the model.
    """

    values: dict[str, Any]
    files: dict[str, str]

    @property
    def identity(self) -> str:
        """A checksum; models with the same checksum have the same weights and values."""
        return _own_digest({**self.values, "files": self.files})

    @property
    def storage(self) -> WeightStorage:
        """How the weights are stored."""
        return cast(WeightStorage, self.values.get(_STORAGE, "float32"))

    @property
    def encoder_files(self) -> list[str]:
        """The paths of the files of the pretrained encoder."""
        return [name for name in self.files if name.startswith(f"{ENCODER}/")]

    @property
    def has_tokenizer(self) -> bool:
        """Whether the folder holds a tokenizer."""
        return any(name in self.files for name in _TOKENIZER_FILES)


def check_replaceable(path: Path) -> None:
    """Raise unless `path` is free, an empty folder, or a folder that holds only a model."""
    if not path.exists():
        return
    if not path.is_dir():
        raise FileExistsError(f"{path} is a file; expected a folder, or a path that does not exist")
    names = {entry.name for entry in path.iterdir()}
    foreign = sorted(names - _MODEL_FILES)
    if foreign or (names and DESCRIPTION not in names):
        raise FileExistsError(
            f"{path} holds files that do not belong to a model "
            f"({', '.join(foreign or sorted(names))[:60]}); choose another folder"
        )


# Writing


def write_weights(
    folder: Path, weights: Mapping[str, Tensor], storage: WeightStorage = "float32"
) -> None:
    """Write `model.safetensors`."""
    save_tensors(folder / WEIGHTS, compress(weights, storage))


def write_description(folder: Path, values: Mapping[str, Any]) -> None:
    """Write `model.json`; all other files must be there already.

    Raises:
        ModelError: `read_description` would refuse the result.
    """
    document = {"format": "bcrf tagger", "version": VERSION, "bcrf": _library_version()}
    document |= values
    for key, usual in ((_TEMPERATURE, 1), (_STORAGE, "float32")):
        if document.get(key) == usual:  # without the key, older versions can read the folder
            del document[key]
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    document["files"] = {path.relative_to(folder).as_posix(): sha256(path) for path in files}
    path = folder / DESCRIPTION
    _check_schema(path, document)
    document["sha256"] = _own_digest(document)
    content = _one_line_per_key(document).encode()
    if len(content) > MAX_DESCRIPTION_BYTES:
        raise ModelError(
            f"{path}: would have {len(content):,} bytes, but loading a model accepts at most "
            f"{MAX_DESCRIPTION_BYTES:,}; raise data.min_count to keep fewer words"
        )
    path.write_bytes(content)


def _one_line_per_key(document: Mapping[str, Any]) -> str:
    """Return JSON with a line for each key; indented vocabularies would take a third more bytes."""
    lines = (
        f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False, separators=(',', ':'))}"
        for key, value in document.items()
    )
    return "{\n" + ",\n".join(lines) + "\n}\n"


# Reading


def read_description(folder: Path) -> Description:
    """Read `model.json` and check it; `verify` then checks the other files."""
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
    """Compare every file of the model with its checksum.

    Raises:
        ModelError: a file is missing, damaged, too long or not a regular file, or the folder holds
            Python code.
    """
    refuse_python(folder)
    for name, expected in description.files.items():
        with open_model_file(folder, name, _limit(name)) as stream:
            _check_digest(folder / name, sha256_of_stream(stream), expected)


def refuse_python(folder: Path) -> None:
    """Raise if the folder of a model holds Python code, which someone might run by accident."""
    for place in (folder, folder / ENCODER):
        for path in place.glob("*.py*"):
            raise ModelError(
                f"{path}: is Python code; remove it, because a model folder holds only data"
            )


def read_encoder_file(folder: Path, name: str, expected: str) -> bytes:
    """Return the content of a file of the pretrained encoder; `expected` is its SHA-256."""
    content = read_bytes(folder, name, _limit(name))
    _check_digest(folder / name, sha256_of_bytes(content), expected)
    return content


def weight_infos(folder: Path) -> dict[str, TensorInfo]:
    """Return types and shapes of the weights, read from the header of their file."""
    return tensor_infos(folder, WEIGHTS)


def read_weights(folder: Path) -> dict[str, Tensor]:
    """Return the weights of a model, on the CPU; compressed ones are expanded to float32."""
    return expand(load_tensors(folder / WEIGHTS))


def load_json(folder: Path, name: str) -> dict[str, Any]:
    """Return the JSON object in a file of a model."""
    return parse_json(folder / name, read_bytes(folder, name, MAX_DESCRIPTION_BYTES))


def _limit(name: str) -> int:
    """Return the largest permitted size of a file, in bytes."""
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
    """Return the SHA-256 of the values of `model.json`; it does not depend on line breaks."""
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return sha256_of_bytes(text.encode())


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
    """Raise unless the document has exactly the expected keys, with values of the right types."""
    for key, kind in (*_VALUES.items(), ("files", dict)):
        if key not in document:
            raise ModelError(f"{path}: {key!r} is missing")
        if not isinstance(document[key], kind):
            found = type(document[key]).__name__
            raise ModelError(f"{path}: {key!r} must be a {kind.__name__}, found a {found}")
    temperature = document.get(_TEMPERATURE, 1.0)
    is_number = isinstance(temperature, int | float) and not isinstance(temperature, bool)
    if not (is_number and _LEAST_TEMPERATURE <= temperature <= _MOST_TEMPERATURE):
        raise ModelError(
            f"{path}: {_TEMPERATURE!r} must be a number from {_LEAST_TEMPERATURE} to "
            f"{_MOST_TEMPERATURE:.0f}, found {temperature!r:.60}"
        )
    try:
        check_storage(document.get(_STORAGE, "float32"))
    except ValueError as error:
        raise ModelError(f"{path}: {error}") from error
    unknown = sorted(set(document) - set(_VALUES) - {"files", _TEMPERATURE, _STORAGE})
    if unknown:
        raise ModelError(f"{path}: unknown key {unknown[0]!r:.60}")
    files = document["files"]
    for name, found in files.items():
        if not _is_model_file(name):
            raise ModelError(f"{path}: {name!r:.60} is not the name of a file of a model")
        if not (isinstance(found, str) and _DIGEST.fullmatch(found)):
            raise ModelError(f"{path}: expected the SHA-256 of {name!r:.60}, found {found!r:.60}")
    if WEIGHTS not in files:
        raise ModelError(f"{path}: its list of files lacks {WEIGHTS}")
    count = sum(name.startswith(f"{ENCODER}/") for name in files)
    if count > MAX_ENCODER_FILES:
        raise ModelError(
            f"{path}: lists {count} files of an encoder; expected at most {MAX_ENCODER_FILES}"
        )


def _is_model_file(name: str) -> bool:
    """Return whether a file with this path can be part of a model (other than `model.json`)."""
    if name in (WEIGHTS, *_TRAINING_FILES, *_TOKENIZER_FILES):
        return True
    path = PurePosixPath(name)
    in_encoder = is_inside(name) and len(path.parts) == 2 and path.parts[0] == ENCODER
    return in_encoder and path.suffix in _ENCODER_SUFFIXES


def _library_version() -> str:
    try:
        return metadata.version("bcrf")
    except metadata.PackageNotFoundError:
        return "(not installed)"
