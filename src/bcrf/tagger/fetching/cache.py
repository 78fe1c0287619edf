"""The cache of fetched files: its folder, safe opening of its files, and their SHA-256 sums.

Other users may be able to write to the cache folder, and could put a symbolic link there that leads
to any file of the user. Therefore no file is written through a symbolic link.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import BinaryIO

from ..files import atomic_write, read_limited
from . import download_limits
from .errors import FetchError

__all__ = [
    "CHECKSUM_FILE",
    "cache_folder",
    "open_new",
    "open_to_append",
    "parse_checksums",
    "read_checksums",
    "read_small",
    "record_checksum",
    "refuse_link",
]

CHECKSUM_FILE = "SHA256SUMS"
"""Lists the SHA-256 of files, as the command `sha256sum` writes and checks it."""

_CHECKSUM_LINE = re.compile(r"([0-9A-Fa-f]{64}) [ *](.+)")


def cache_folder() -> Path:
    """Return `$BCRF_CACHE`, or else the folder `bcrf` in the user's cache folder.

    Example:
        >>> "bcrf" in str(cache_folder()) or "BCRF_CACHE" in os.environ
        True
    """
    own = os.environ.get("BCRF_CACHE")
    if own:
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bcrf"


# Files


def refuse_link(path: Path) -> Path:
    """Return `path`; raise FetchError if it is a symbolic link."""
    if path.is_symlink():
        raise FetchError(
            f"{path} is a symbolic link, which may lead anywhere; remove it, and try again"
        )
    return path


def read_small(path: Path) -> bytes:
    """Return the content of a regular file of at most `download_limits.MAX_SMALL_FILE` bytes."""
    try:
        return read_limited(path, download_limits.MAX_SMALL_FILE)
    except OSError as error:
        raise FetchError(f"{path}: cannot be read: {error.strerror or error}") from error


def open_to_append(path: Path) -> BinaryIO:
    """Open a regular file of the cache for appending; create it if it does not exist."""
    return _open(path, os.O_APPEND)


def open_new(path: Path) -> BinaryIO:
    """Create a file of the cache and open it for writing; an existing file is replaced."""
    refuse_link(path).unlink(missing_ok=True)
    return _open(path, os.O_EXCL)


def _open(path: Path, mode: int) -> BinaryIO:
    refuse_link(path)
    if path.exists() and not path.is_file():
        raise FetchError(f"{path} is not a regular file; remove it, and try again")
    # With O_NOFOLLOW, opening a link that was created after the check raises OSError.
    flags = os.O_WRONLY | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    return os.fdopen(os.open(path, flags | mode, 0o666), "ab")


# SHA-256 sums


def parse_checksums(text: str, origin: str) -> dict[str, str]:
    """Return file -> SHA-256 of all files that a checksum file lists.

    Args:
        text: the content of the checksum file.
        origin: the path or address of the checksum file, for messages.
    """
    checksums = {}
    for number, line in enumerate(text.split("\n"), start=1):
        line = line.removesuffix("\r")
        if not line.strip():
            continue
        match = _CHECKSUM_LINE.fullmatch(line)
        if match is None:
            raise FetchError(
                f"{origin}:{number}: expected '<SHA-256 in hexadecimal>  <file>', "
                f"found {line[:80]!r}"
            )
        checksums[match[2].removeprefix("./")] = match[1].lower()
    return checksums


def read_checksums(folder: Path) -> dict[str, str]:
    """Return the SHA-256 sums that were recorded in `folder`."""
    path = refuse_link(folder / CHECKSUM_FILE)
    if not path.exists():
        return {}
    return parse_checksums(read_small(path).decode("utf-8", "replace"), str(path))


def record_checksum(folder: Path, file: str, checksum: str) -> None:
    """Record the SHA-256 of a file of `folder`, so that `sha256sum -c` can check it too."""
    checksums = read_checksums(folder) | {file: checksum}
    with atomic_write(folder / CHECKSUM_FILE) as stream:
        stream.writelines(f"{value}  {name}\n" for name, value in sorted(checksums.items()))
