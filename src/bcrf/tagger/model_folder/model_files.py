"""Open files of a model: only regular files inside its folder, of limited size."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from ..files import open_regular

__all__ = ["ModelError", "is_inside", "open_model_file", "parse_json", "read_bytes"]


class ModelError(ValueError):
    """A model cannot be read; the message begins with the path of the file.

    Example:
        >>> from bcrf.tagger import ModelError, Tagger
        >>> try:
        ...     Tagger.load("no-model-here", device="cpu")
        ... except ModelError as error:
        ...     print(error)
        no-model-here: ...
    """


def is_inside(name: str) -> bool:
    """Return whether a relative path in POSIX notation stays inside its folder."""
    path = PurePosixPath(name)
    return (
        bool(path.parts)
        and path.as_posix() == name
        and not path.is_absolute()
        and ".." not in path.parts
        and not set(name) & set("\\:\0")  # separators and drives of Windows
    )


@contextmanager
def open_model_file(folder: Path, name: str, limit: int) -> Iterator[BinaryIO]:
    """Open the file `name` of a model's folder for reading.

    Raises:
        ModelError: the file is missing, lies outside of the folder, is a link, a device, a pipe or
            a folder, or has more than `limit` bytes.
    """
    path = folder / name
    if not is_inside(name):
        raise ModelError(f"{path}: is not inside the folder of the model")
    _refuse_links(folder, name)
    try:
        stream = open_regular(path)
    except FileNotFoundError as error:
        raise ModelError(f"{path}: is missing; copy the whole folder of the model") from error
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}") from error
    with stream:
        size = os.fstat(stream.fileno()).st_size
        if size > limit:
            raise ModelError(f"{path}: has {size:,} bytes; expected at most {limit:,} in this file")
        yield stream


def read_bytes(folder: Path, name: str, limit: int) -> bytes:
    """Return the content of a file of a model; raise as `open_model_file` does."""
    with open_model_file(folder, name, limit) as stream:
        return stream.read(limit)


def parse_json(path: Path, content: bytes) -> dict[str, Any]:
    """Return the JSON object in the `content` of the file `path`."""
    try:
        document = json.loads(content.decode("utf-8"))
        # JSON can escape a lone surrogate, which could not be written to a file later.
        json.dumps(document, ensure_ascii=False).encode()
    except RecursionError as error:
        raise ModelError(f"{path}: is damaged: its JSON is nested too deeply") from error
    except ValueError as error:
        raise ModelError(f"{path}: is damaged, not JSON: {error}") from error
    if not isinstance(document, dict):
        raise ModelError(f"{path}: is damaged: expected a JSON object")
    return document


def _refuse_links(folder: Path, name: str) -> None:
    """Raise if the file, or a folder on the way to it, is a symbolic link: it may lead outside."""
    path = folder
    for part in PurePosixPath(name).parts:
        path = path / part
        if path.is_symlink():
            raise ModelError(
                f"{path}: is a symbolic link, which may lead outside of the model's folder; copy "
                "the folder with the files that its links point to (cp -rL)"
            )
