"""Atomic writing of one file: readers find the old content or the new one, never a part of it."""

from __future__ import annotations

import glob
import io
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, TextIO

from .durability import sync

__all__ = ["atomic_write", "atomic_write_bytes", "remove_temporary_files"]

# A temporary file is named `.NAME.` and as many letters, as `tempfile` names it.
_RANDOM_LETTERS = 8


@contextmanager
def atomic_write_bytes(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open `path` for writing; replace the old file when the block ends without an error.

    The bytes go to a temporary file in the same folder. When the block ends, they are synced to the
    disk, and the temporary file is renamed to `path`. If the block raises, or the machine stops,
    `path` is unchanged. A symbolic link is followed. A terminal, a pipe or a device is written to
    directly. A new file gets the mode that the umask permits. A replaced file keeps its mode.
    """
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise IsADirectoryError(f"{os.fspath(path)} is a folder; expected the path of a file")
    if not target.parent.is_dir():
        raise FileNotFoundError(
            f"{os.fspath(path)}: there is no folder {target.parent}; create it first"
        )
    if target.exists() and not target.is_file():
        with target.open("wb") as stream:
            yield stream
        return
    handle, temporary = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    try:
        with os.fdopen(handle, "wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(temporary, _mode(target))
        os.replace(temporary, target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    sync(target.parent)  # so that the rename itself survives a power cut


@contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[TextIO]:
    """Open `path` like `atomic_write_bytes`, for text in UTF-8; line ends are not translated."""
    with atomic_write_bytes(path) as raw:
        text = io.TextIOWrapper(raw, encoding="utf-8", newline="")
        try:
            yield text
        finally:
            text.detach()  # flushes; `atomic_write_bytes` closes the binary stream


def remove_temporary_files(path: str | os.PathLike[str]) -> None:
    """Remove the temporary files that killed writers of `path` have left in its folder.

    The caller makes sure that nobody writes the file now.
    """
    target = Path(os.path.realpath(path))
    pattern = f".{glob.escape(target.name)}.{'?' * _RANDOM_LETTERS}"
    for temporary in target.parent.glob(pattern):
        temporary.unlink(missing_ok=True)


def _mode(target: Path) -> int:
    """Return the mode of the file to be replaced, or the mode that the umask permits."""
    if target.exists():
        return target.stat().st_mode & 0o777
    umask = os.umask(0)
    os.umask(umask)
    return 0o666 & ~umask
