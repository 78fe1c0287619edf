"""Run each trial in a forked process of its own, so that torch is imported only once."""

from __future__ import annotations

import os
import resource
import select
import signal
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["Child", "folder_in_memory", "limit_memory"]


class Child:
    """A function that runs in a forked process.

    Args:
        work: the function; it returns the exit code, or None for 0.
    """

    def __init__(self, work: Callable[[], int | None]) -> None:
        reading, writing = os.pipe()
        self.process = os.fork()
        if self.process == 0:
            os.close(reading)
            _work(work, writing)
        os.close(writing)
        self._pipe = reading

    def wait(self, seconds: float | None = None) -> tuple[int, str]:
        """Wait until the child ends; return its exit code, and its error as one line.

        A child that takes longer than `seconds` is killed. The exit code of a killed child is minus
        the number of the signal.
        """
        with os.fdopen(self._pipe, "rb") as pipe:
            # A child writes only when it ends, so the pipe becomes readable when the child ends.
            if not select.select([pipe], [], [], seconds)[0]:
                os.kill(self.process, signal.SIGKILL)
            text = " ".join(pipe.read().decode(errors="replace").split())
        return os.waitstatus_to_exitcode(os.waitpid(self.process, 0)[1]), text


def limit_memory(more: int) -> None:
    """Limit the address space of this process to its present size plus `more` bytes."""
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[0])
    limit = pages * os.sysconf("SC_PAGE_SIZE") + more
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _work(work: Callable[[], int | None], pipe: int) -> None:
    """Run the function, then end this process, even if the function raises an exception."""
    code = 1
    try:
        code = work() or 0
    except BaseException as error:
        line = traceback.extract_tb(error.__traceback__)[-1]
        text = f"{type(error).__name__}: {error} ({Path(line.filename).name}:{line.lineno})"
        os.write(pipe, text.encode()[:2000])
    finally:
        os._exit(code)


@contextmanager
def folder_in_memory(prefix: str) -> Iterator[Path]:
    """Yield a temporary folder. It is in memory if possible, because syncing is then free."""
    shared = Path("/dev/shm")
    parent = shared if os.access(shared, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix=prefix, dir=parent) as name:
        yield Path(name)
