"""Lock files, so that no two processes or threads write to the same place at once."""

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

# Seconds for which a caller that does not wait tries nevertheless: while another process removes
# its lock file, the file can be neither locked nor created.
_SECONDS = 0.3


class LockHeldError(OSError):
    """Somebody else holds a lock.

    Args:
        holder: who that is, in words.
    """

    def __init__(self, holder: str) -> None:
        super().__init__(f"the lock is held by {holder}")
        self.holder = holder


@contextmanager
def hold_lock(path: Path, *, wait: bool) -> Iterator[None]:
    """Hold the lock file `path` until the end of the block, and remove it then.

    The operating system releases the lock when the process ends, however it ends. A file that a
    killed process has left behind is not locked, and is used again.

    Args:
        path: in a folder that exists.
        wait: whether to wait for whoever holds the lock.

    Raises:
        LockHeldError: somebody holds the lock, and `wait` is False.
    """
    filelock = _filelock()
    # A generator may be closed by another thread than the one that started it.
    lock = filelock.FileLock(path, thread_local=False)
    try:
        lock.acquire(timeout=-1 if wait else _SECONDS, poll_interval=0.02)
    except filelock.Timeout as error:
        raise LockHeldError(_holder(path)) from error
    try:
        if not wait:  # then others do not wait either, and ask who holds the lock
            with suppress(OSError):  # on a full disk nobody learns it
                path.write_text(json.dumps(_own_description()), encoding="utf-8")
        yield
    finally:
        # Whoever waits for the removed file notices, and creates a new one. A file that cannot be
        # removed does no harm.
        with suppress(OSError):
            path.unlink()
        lock.release()


def _own_description() -> dict[str, Any]:
    started = datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
    return {"host": platform.node(), "process": os.getpid(), "started": started}


def _holder(path: Path) -> str:
    """Who holds the lock, as the lock file says."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return f"process {found['process']} on {found['host']} since {found['started']}"
    except (OSError, ValueError, LookupError, TypeError):
        return "another process"  # which has not written its description yet


def _filelock() -> Any:
    try:
        import filelock
    except ImportError as error:
        raise ImportError(
            "saving models needs the package filelock: pip install 'bcrf[tagger]'"
        ) from error
    return filelock
