"""Numbers of a run, one JSON object per line."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

__all__ = ["MetricsLog"]


class MetricsLog:
    """A file to which lines are added.

    Args:
        path: of the file.
        size: how many of its bytes count. What lies beyond was written by a process that stopped
            before it had saved its state, and is cut off; so is a line without an end.
    """

    def __init__(self, path: Path, size: int = 0) -> None:
        path.touch()
        self._file = path.open("r+b")
        self._file.truncate(self._file.read(size).rfind(b"\n") + 1)
        self._file.seek(0, os.SEEK_END)

    def add(self, event: str, values: dict[str, Any]) -> None:
        line = json.dumps({"event": event} | values, ensure_ascii=False)
        self._file.write(line.encode() + b"\n")
        self._file.flush()

    def size(self) -> int:
        """Bytes so far; they have reached the disk."""
        os.fsync(self._file.fileno())
        return self._file.tell()

    def close(self) -> None:
        self._file.close()
