"""Where fetched data are kept, one process at a time, and how files there are opened.

Others may be able to write to the folder of the cache, so that no file there is written through a
symbolic link: the link might lead to any file of the user.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from ..data import read_limited
from . import limits
from .errors import FetchError

__all__ = [
    "cache_folder",
    "locked",
    "open_new",
    "open_to_append",
    "read_small",
    "without_link",
]


def cache_folder() -> Path:
    """`$BCRF_CACHE`, else `bcrf` in the user's cache folder."""
    own = os.environ.get("BCRF_CACHE")
    if own:
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bcrf"


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Wait until no other process works in `folder`, where the system has locks (not Windows)."""
    if os.name != "posix":
        yield
        return
    import fcntl

    with open_to_append(folder / ".lock") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)  # given back when the file is closed
        yield


def without_link(path: Path) -> Path:
    """Return a path of the cache; a symbolic link there is a FetchError."""
    if path.is_symlink():
        raise FetchError(f"{path} is a symbolic link, which is not followed; remove it, try again")
    return path


def read_small(path: Path) -> bytes:
    """Return the content of a regular file of at most `limits.MAX_SMALL_FILE` bytes."""
    try:
        return read_limited(path, limits.MAX_SMALL_FILE)
    except OSError as error:
        raise FetchError(f"{path}: cannot be read: {error.strerror or error}") from error


def open_to_append(path: Path) -> BinaryIO:
    """Open a regular file of the cache for appending; it is created if it is missing."""
    return _open(path, os.O_APPEND)


def open_new(path: Path) -> BinaryIO:
    """Create a file of the cache; one that is there is removed."""
    without_link(path).unlink(missing_ok=True)
    return _open(path, os.O_EXCL)


def _open(path: Path, how: int) -> BinaryIO:
    without_link(path)
    if path.exists() and not path.is_file():
        raise FetchError(f"{path} is no regular file; remove it, try again")
    # O_NOFOLLOW: should a link appear after the check, opening it is an OSError.
    flags = os.O_WRONLY | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    return os.fdopen(os.open(path, flags | how, 0o666), "ab")
