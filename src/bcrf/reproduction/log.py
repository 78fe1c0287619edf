"""The log of all runs: one JSON object per line, only ever added to."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from .locking import lock

__all__ = ["Log", "LogError", "Row", "merge"]

Row = dict[str, Any]


class LogError(ValueError):
    """A log that cannot be read; the message begins with file and line."""


class Log:
    """A file of rows.

    A row is written whole or not at all, as far as later readers are concerned: a line without an
    end is what a process left that was killed, and counts as nothing.

    Args:
        path: of the file, which need not exist.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read: tuple[int, list[Row]] = (0, [])  # so many bytes of it, and what they hold

    def append(self, row: Mapping[str, Any]) -> None:
        """Add a row; it has reached the disk when this returns."""
        line = json.dumps(row, ensure_ascii=False, allow_nan=False).encode() + b"\n"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a+b", buffering=0) as file:
            lock(file, wait=True)  # several processes may share a log
            _cut_torn_line(file)
            if file.write(line) != len(line):
                raise OSError(f"{self.path}: the disk is full")
            os.fsync(file.fileno())

    def rows(self) -> list[Row]:
        size = self.path.stat().st_size if self.path.exists() else 0
        if size != self._read[0]:  # it only ever grows
            lines = self.path.read_bytes().split(b"\n")[:-1] if size else []
            rows = [self._row(line, number) for number, line in enumerate(lines, start=1)]
            self._read = (size, rows)
        return self._read[1]

    def find(self, key: Mapping[str, Any]) -> Row | None:
        """The row with that key; rows that were added to it later are merged into it."""
        return merge(row for row in self.rows() if _matches(row, key))

    def _row(self, line: bytes, number: int) -> Row:
        try:
            row = json.loads(line)
        except ValueError as error:
            raise LogError(f"{self.path}:{number}: is no JSON: {error}") from error
        if not isinstance(row, dict):
            raise LogError(f"{self.path}:{number}: expected a JSON object")
        return row


def merge(rows: Iterable[Row]) -> Row | None:
    """One row of several: nested tables are united, later values win."""
    found: Row | None = None
    for row in rows:
        found = row if found is None else _united(found, row)
    return found


def _united(lower: Row, upper: Row) -> Row:
    result = dict(lower)
    for key, value in upper.items():
        below = result.get(key)
        both = isinstance(value, dict) and isinstance(below, dict)
        result[key] = _united(below, value) if both else value  # type: ignore[arg-type]
    return result


def _matches(row: Row, key: Mapping[str, Any]) -> bool:
    return all(row.get(name) == value for name, value in key.items())


def _cut_torn_line(file: Any) -> None:
    """Remove what follows the last end of a line."""
    size = file.seek(0, os.SEEK_END)
    kept = size
    while kept:
        start = max(0, kept - (1 << 16))
        file.seek(start)
        place = file.read(kept - start).rfind(b"\n")
        if place >= 0:
            kept = start + place + 1
            break
        kept = start
    if kept < size:
        file.truncate(kept)
