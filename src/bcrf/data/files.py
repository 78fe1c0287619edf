"""Files: written whole or not at all, opened only if they are regular, and their digests."""

from __future__ import annotations

import errno
import hashlib
import io
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, TextIO

__all__ = [
    "atomic_write",
    "atomic_write_bytes",
    "open_regular",
    "read_limited",
    "sha256",
    "sha256_of_stream",
    "sync",
]


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a regular file for reading.

    A folder, a device, a pipe or a socket raises OSError instead: a pipe without a writer would
    make the caller wait forever, and a device may have no end.
    """
    # Without O_NONBLOCK, opening a pipe waits for its writer.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    if stat.S_ISREG(os.stat(path).st_mode):
        handle = os.open(path, flags)
        if stat.S_ISREG(os.fstat(handle).st_mode):  # the path may have changed in between
            return os.fdopen(handle, "rb")
        os.close(handle)
    raise OSError(errno.EINVAL, "expected a regular file", os.fspath(path))


def read_limited(path: str | os.PathLike[str], limit: int) -> bytes:
    """Return the content of a regular file of at most `limit` bytes; a larger one is an OSError."""
    with open_regular(path) as stream:
        content = stream.read(limit + 1)
    if len(content) > limit:
        message = f"expected at most {limit:,} bytes, found more"
        raise OSError(errno.EFBIG, message, os.fspath(path))
    return content


@contextmanager
def atomic_write_bytes(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open `path` for writing; what was there stays until the block has ended without an error.

    The bytes go to a temporary file in the same folder, reach the disk, and take the place of
    `path` in one step. If the block raises, or the machine stops, `path` is as it was before. A
    symbolic link is followed; what is no regular file (a terminal, a pipe) is written directly.
    """
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise IsADirectoryError(f"{os.fspath(path)} is a folder; expected the path of a file")
    if not target.parent.is_dir():
        raise FileNotFoundError(f"{os.fspath(path)}: there is no folder {target.parent}")
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
    sync(target.parent)  # so that the renaming itself survives a power cut


@contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[TextIO]:
    """`atomic_write_bytes` for text, in UTF-8, with line ends as they are given."""
    with atomic_write_bytes(path) as raw:
        text = io.TextIOWrapper(raw, encoding="utf-8", newline="")
        try:
            yield text
        finally:
            text.detach()  # flushes; the bytes below are closed by their own block


def sha256(path: Path) -> str:
    """SHA-256 of a regular file, in hexadecimal."""
    with open_regular(path) as stream:
        return sha256_of_stream(stream)


def sha256_of_stream(stream: BinaryIO) -> str:
    """SHA-256 of the rest of a stream, in hexadecimal."""
    total = hashlib.sha256()
    while part := stream.read(1 << 20):
        total.update(part)
    return total.hexdigest()


def _mode(target: Path) -> int:
    """The permissions of the file to be replaced, or those of any new file."""
    if target.exists():
        return target.stat().st_mode & 0o777
    umask = os.umask(0)
    os.umask(umask)
    return 0o666 & ~umask


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, have reached the disk."""
    if os.name != "posix":  # elsewhere folders cannot be opened
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
