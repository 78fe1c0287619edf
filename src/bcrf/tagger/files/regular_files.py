"""Reading regular files with a limit, and their SHA-256."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

__all__ = [
    "open_regular",
    "read_limited",
    "sha256",
    "sha256_of_bytes",
    "sha256_of_parts",
    "sha256_of_stream",
]


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a regular file for reading.

    Raises OSError for a folder, a device, a pipe or a socket: reading a pipe without a writer would
    wait forever, and a device may have no end.
    """
    # Without O_NONBLOCK, opening a pipe would wait for a writer.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    if stat.S_ISREG(os.stat(path).st_mode):
        handle = os.open(path, flags)
        if stat.S_ISREG(os.fstat(handle).st_mode):  # the file at this path may have been replaced
            return os.fdopen(handle, "rb")
        os.close(handle)
    raise OSError(errno.EINVAL, "expected a regular file", os.fspath(path))


def read_limited(path: str | os.PathLike[str], limit: int) -> bytes:
    """Return the content of a regular file; raise OSError if it has more than `limit` bytes."""
    with open_regular(path) as stream:
        content = stream.read(limit + 1)
    if len(content) > limit:
        message = f"expected at most {limit:,} bytes, found more"
        raise OSError(errno.EFBIG, message, os.fspath(path))
    return content


def sha256(path: Path) -> str:
    """Return the SHA-256 of a regular file, in hexadecimal."""
    with open_regular(path) as stream:
        return sha256_of_stream(stream)


def sha256_of_stream(stream: BinaryIO) -> str:
    """Return the SHA-256 of the rest of a stream, in hexadecimal."""
    return sha256_of_parts(iter(lambda: stream.read(1 << 20), b""))


def sha256_of_parts(parts: Iterable[bytes]) -> str:
    """Return the SHA-256 of the concatenated parts, in hexadecimal.

    >>> sha256_of_parts([b"a", b"b"]) == sha256_of_bytes(b"ab")
    True
    """
    total = hashlib.sha256()
    for part in parts:
        total.update(part)
    return total.hexdigest()


def sha256_of_bytes(content: bytes) -> str:
    """Return the SHA-256 of `content`, in hexadecimal.

    >>> sha256_of_bytes(b"")[:8]
    'e3b0c442'
    """
    return sha256_of_parts([content])
