"""Numbers of a run, one JSON object per line."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

__all__ = ["MetricsLog", "logged_threads"]

# The longest first line that is looked at, in bytes; it holds the config.
_FIRST_LINE = 1 << 20


class MetricsLog:
    """A file to which lines are added.

    Args:
        path: of the file.
        size: how many of its bytes count. What lies beyond was written by a process that stopped
            before it had saved its state, and is cut off; so is a line without an end.
    """

    def __init__(self, path: Path, size: int = 0) -> None:
        path.touch()
        # Without a buffer: after an error no rest is left that closing the file would write.
        self._file = path.open("r+b", buffering=0)
        kept = self._file.read(min(size, path.stat().st_size))
        self._file.truncate(kept.rfind(b"\n") + 1)
        self._file.seek(0, os.SEEK_END)

    def add(self, event: str, values: dict[str, Any]) -> None:
        line = json.dumps({"event": event} | values, ensure_ascii=False)
        rest = memoryview(line.encode() + b"\n")
        while rest:
            rest = rest[self._file.write(rest) :]

    def size(self) -> int:
        """Bytes so far; they have reached the disk."""
        os.fsync(self._file.fileno())
        return self._file.tell()

    def close(self) -> None:
        self._file.close()


def logged_threads(path: Path) -> int | None:
    """The number of threads that a run began with; None if its log does not say."""
    try:
        with path.open("rb") as file:
            start = json.loads(file.readline(_FIRST_LINE))
        threads = start["threads"]
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None
    return threads if isinstance(threads, int) else None
