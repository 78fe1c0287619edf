"""Files and folders that one process works on at a time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

__all__ = ["hold", "lock"]


@contextmanager
def hold(folder: Path) -> Iterator[bool]:
    """Whether this process has the folder to itself, until the end of the block."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as file:
        yield lock(file, wait=False)


def lock(file: IO[Any], wait: bool) -> bool:
    """Whether this process has the file to itself, until it is closed.

    The system gives it free when a process ends, however it ends. Where files cannot be locked
    (Windows), the answer is always yes.
    """
    if os.name != "posix":
        return True
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
