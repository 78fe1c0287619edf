"""Sources of files: a folder, or a web address."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ..files import open_regular
from .cache import open_new, read_small
from .download import ResumableDownload, check_size, read_url
from .errors import FetchError, FileMissing

__all__ = ["Downloader", "FolderSource", "ReportBytes", "Source", "WebSource", "open_source"]

ReportBytes = Callable[[str, int, "int | None"], None]
"""Called with the name of a file, the number of bytes so far, and its size (None if unknown)."""

Downloader = Callable[[str, str, object], None]
"""A downloader of pooch: writes the file at an address (first argument) to a path (second)."""

_CHUNK = 1 << 20


class Source(ABC):
    """A folder or an address with files, which are named by their relative paths."""

    @abstractmethod
    def read(self, path: str) -> bytes:
        """Return the content of a small file.

        Raises:
            FileMissing: the source has no such file.
        """

    @abstractmethod
    def downloader(self, part: Path, progress: ReportBytes) -> Downloader:
        """Return a downloader for pooch. It raises FileMissing if the source has no such file.

        Args:
            part: the file that holds the bytes until they are complete.
            progress: called while the file is downloaded.
        """


@dataclass(frozen=True)
class FolderSource(Source):
    """A local folder."""

    base: Path

    def __str__(self) -> str:
        return str(self.base)

    def read(self, path: str) -> bytes:
        return read_small(_existing_file(self.base / path))

    def downloader(self, part: Path, progress: ReportBytes) -> Downloader:
        def copy(path: str, output_file: str, pooch: object = None) -> None:
            source = _existing_file(Path(path))
            copied = 0
            with open_regular(source) as stream, open_new(part) as target:
                size = os.fstat(stream.fileno()).st_size
                check_size(str(source), size)
                while chunk := stream.read(_CHUNK):
                    copied += len(chunk)
                    check_size(str(source), copied)  # the source may grow while it is copied
                    target.write(chunk)
                    progress(source.name, copied, max(size, copied))
            os.replace(part, output_file)

        return copy


@dataclass(frozen=True)
class WebSource(Source):
    """An http or https address."""

    base: str

    def __str__(self) -> str:
        return self.base

    def read(self, path: str) -> bytes:
        return read_url(f"{self.base}/{path}")

    def downloader(self, part: Path, progress: ReportBytes) -> Downloader:
        file = part.name.removesuffix(".part")
        return ResumableDownload(part, lambda done, size: progress(file, done, size))


def open_source(base: str | os.PathLike[str]) -> Source:
    """Return the source at a folder or an http(s) address."""
    text = os.fspath(base)
    if text.startswith(("http://", "https://")):
        return WebSource(text.rstrip("/"))
    if Path(text).is_dir():
        return FolderSource(Path(text))
    raise FetchError(f"{text} is neither a folder nor an address that starts with http(s)://")


def _existing_file(path: Path) -> Path:
    if not path.exists():
        raise FileMissing(f"{path} does not exist")
    if not path.is_file():
        raise FetchError(f"{path} is not a regular file; expected a regular file, or no file")
    return path
