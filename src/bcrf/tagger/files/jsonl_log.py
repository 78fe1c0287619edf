"""A log file with one JSON object per line, which is only ever appended to."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any

from .durability import make_folder, sync
from .locks import hold_lock
from .regular_files import open_regular

__all__ = ["JsonlError", "JsonlLog", "LogRow"]

LogRow = dict[str, Any]

# Bytes that are read at a time in the search for the last line end.
_CHUNK = 1 << 16


class JsonlError(ValueError):
    """A line of a log is not a JSON object; the message begins with `file:line`."""


class JsonlLog:
    """A file of rows, each a JSON object on a line of its own.

    If a process is killed while it writes, the last line of the file may have no line end. Readers
    ignore such a line, and the next writer removes it.

    Args:
        path: the file, which need not exist yet.
        shared: whether several processes may append at the same time. If so, each process holds a
            lock file beside the log while it writes. A caller that locks the whole folder passes
            False.

    Example:
        >>> import tempfile
        >>> folder = tempfile.TemporaryDirectory()
        >>> log = JsonlLog(Path(folder.name, "runs.jsonl"))
        >>> log.append({"run": 1, "score": 0.5}, {"run": 2, "score": 0.75})
        >>> [row["score"] for row in log.rows()]
        [0.5, 0.75]
        >>> folder.cleanup()
    """

    def __init__(self, path: str | os.PathLike[str], *, shared: bool = True) -> None:
        self.path = Path(path)
        self._shared = shared
        # The rows as last read, with the size and time of the file at that moment.
        self._cache: tuple[tuple[int, int] | None, list[LogRow]] = (None, [])

    def append(self, *rows: Mapping[str, Any], durable: bool = True) -> None:
        """Append rows: all of them, or none if an error is raised.

        Args:
            rows: the rows. NaN and infinite numbers raise ValueError, since JSON has none.
            durable: whether to wait until the rows have reached the disk.
        """
        lines = [json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n" for row in rows]
        make_folder(self.path.parent)
        with self._lock():
            is_new = not self.path.exists()
            # Unbuffered: after an error, closing the file must not write the rest of a buffer.
            with self.path.open("a+b", buffering=0) as file:
                _append(file, "".join(lines).encode())
                if durable:
                    os.fsync(file.fileno())
            if durable and is_new:
                sync(self.path.parent)

    def rows(self) -> list[LogRow]:
        """Return all complete rows; none if the file does not exist.

        Raises:
            JsonlError: a complete line is not a JSON object.
        """
        if not self.path.exists():
            return []
        status = self.path.stat()
        state = (status.st_size, status.st_mtime_ns)
        if self._cache[0] != state:
            with open_regular(self.path) as file:
                *lines, _ = file.read(status.st_size).split(b"\n")
            rows = [self._parse(line, number) for number, line in enumerate(lines, start=1)]
            self._cache = (state, rows)
        return list(self._cache[1])

    def first_row(self, limit: int = 1 << 20) -> LogRow | None:
        """Return the first row; None if the file has no complete line of at most `limit` bytes."""
        if not self.path.exists():
            return None
        with open_regular(self.path) as file:
            line = file.readline(limit)
        return self._parse(line, 1) if line.endswith(b"\n") else None

    def size(self) -> int:
        """Wait until the log has reached the disk; return its size in bytes."""
        if not self.path.exists():
            return 0
        sync(self.path)
        return self.path.stat().st_size

    def truncate(self, size: int) -> None:
        """Remove everything after the first `size` bytes; then also a last line without a line end.

        The file is created if it does not exist.
        """
        make_folder(self.path.parent)
        with self._lock(), self.path.open("a+b", buffering=0) as file:
            end = file.seek(0, os.SEEK_END)
            kept = _end_of_lines(file, min(size, end))
            if kept < end:
                file.truncate(kept)

    def _lock(self) -> AbstractContextManager[None]:
        if not self._shared:
            return nullcontext()
        return hold_lock(self.path.with_name(f".{self.path.name}.lock"), wait=True)

    def _parse(self, line: bytes, number: int) -> LogRow:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise JsonlError(f"{self.path}:{number}: expected JSON: {error}") from error
        if not isinstance(row, dict):
            raise JsonlError(f"{self.path}:{number}: expected a JSON object, got {row!r:.60}")
        return row


def _append(file: io.FileIO, content: bytes) -> None:
    """Append whole lines; if writing fails, restore the old end of the file."""
    end = file.seek(0, os.SEEK_END)
    kept = _end_of_lines(file, end)
    if kept < end:
        file.truncate(kept)
    rest = memoryview(content)
    try:
        while rest:  # a write may take only a part of the bytes
            rest = rest[file.write(rest) :]
    except OSError:
        with suppress(OSError):  # if this fails, readers ignore the incomplete line
            file.truncate(kept)
        raise


def _end_of_lines(file: io.FileIO, end: int) -> int:
    """Return the position after the last line end before the position `end`."""
    while end:
        start = max(0, end - _CHUNK)
        file.seek(start)
        found = file.read(end - start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0
