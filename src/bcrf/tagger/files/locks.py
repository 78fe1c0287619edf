"""Lock files (package filelock), which let one process or thread at a time write."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

__all__ = ["LockHeldError", "hold_lock"]

# A caller that does not wait still tries for this many seconds: for a moment, while another process
# removes its lock file, the file can be neither locked nor created.
_SECONDS = 0.3


class LockHeldError(OSError):
    """Another process or thread holds a lock.

    Args:
        holder: a description of that process.
    """

    def __init__(self, holder: str) -> None:
        super().__init__(f"the lock is held by {holder}")
        self.holder = holder


@contextmanager
def hold_lock(path: Path, *, wait: bool) -> Iterator[None]:
    """Hold the lock file `path` within the block; remove the file at its end.

    The operating system releases the lock when the process ends, even if it crashes or is killed.
    The file that a killed process leaves is not locked; the next process uses it.

    Args:
        path: the lock file; its folder must exist.
        wait: whether to wait until the lock is free.

    Raises:
        LockHeldError: the lock is held elsewhere, and `wait` is False.
    """
    filelock = _filelock()
    # The thread that closes a generator may differ from the one that started it.
    lock = filelock.FileLock(path, thread_local=False)
    try:
        lock.acquire(timeout=-1 if wait else _SECONDS, poll_interval=0.02)
    except filelock.Timeout as error:
        raise LockHeldError(_holder(path)) from error
    try:
        if not wait:  # other callers do not wait either; their error names the holder
            with suppress(OSError):  # on a full disk the holder remains unknown
                path.write_text(json.dumps(_own_description()), encoding="utf-8")
        yield
    finally:
        # A process that waits for the lock notices that the file was removed, and creates a new
        # one. A file that cannot be removed does no harm.
        with suppress(OSError):
            path.unlink()
        lock.release()


def _own_description() -> dict[str, Any]:
    started = datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
    return {"host": platform.node(), "process": os.getpid(), "started": started}


def _holder(path: Path) -> str:
    """Return a description of the process that holds the lock, read from the lock file."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return f"process {found['process']} on {found['host']} since {found['started']}"
    except (OSError, ValueError, LookupError, TypeError):
        return "another process"  # the holder has not written its description yet


def _filelock() -> Any:
    try:
        import filelock
    except ImportError as error:
        raise ImportError(
            "saving models needs the package filelock: pip install '.[tagger]'"
        ) from error
    return filelock
