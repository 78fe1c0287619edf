"""Places that hold files: a folder, or an address of the web."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ..data import open_regular
from .cache import open_new, read_small
from .download import check_size, download, read_url
from .errors import FetchError, NotThere

__all__ = ["Place", "Progress", "place"]

Progress = Callable[[str, int, "int | None"], None]
"""Told the name of a file, how many bytes of it are there, and how many there will be if known."""


_CHUNK = 1 << 20


class Place(ABC):
    """Files by their path below some base."""

    @abstractmethod
    def read(self, path: str) -> bytes:
        """The content of a small file.

        Raises:
            NotThere: there is no such file.
        """

    @abstractmethod
    def fetch(self, path: str, part: Path, progress: Progress) -> None:
        """Bring the file `path` into `part`, going on with what an earlier attempt left there.

        Raises:
            NotThere: there is no such file.
        """


@dataclass(frozen=True)
class Folder(Place):
    base: Path

    def __str__(self) -> str:
        return str(self.base)

    def read(self, path: str) -> bytes:
        return read_small(self._existing(path))

    def fetch(self, path: str, part: Path, progress: Progress) -> None:
        source = self._existing(path)
        copied = 0
        with open_regular(source) as stream, open_new(part) as copy:
            size = os.fstat(stream.fileno()).st_size
            check_size(str(source), size)
            while chunk := stream.read(_CHUNK):
                copied += len(chunk)
                check_size(str(source), copied)
                copy.write(chunk)
                progress(source.name, copied, max(size, copied))

    def _existing(self, path: str) -> Path:
        source = self.base / path
        if not source.exists():
            raise NotThere(f"{source} does not exist")
        if not source.is_file():
            raise FetchError(
                f"{source} is no regular file; expected a file or nothing of that name"
            )
        return source


@dataclass(frozen=True)
class Web(Place):
    base: str

    def __str__(self) -> str:
        return self.base

    def read(self, path: str) -> bytes:
        return read_url(f"{self.base}/{path}")

    def fetch(self, path: str, part: Path, progress: Progress) -> None:
        file = path.rpartition("/")[2]
        download(f"{self.base}/{path}", part, lambda done, size: progress(file, done, size))


def place(base: str | os.PathLike[str]) -> Place:
    """The folder or http(s) address `base`."""
    text = os.fspath(base)
    if text.startswith(("http://", "https://")):
        return Web(text.rstrip("/"))
    if Path(text).is_dir():
        return Folder(Path(text))
    raise FetchError(f"{text} is neither a folder nor an address that starts with http(s)://")
