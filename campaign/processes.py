"""Forked processes for parts of the campaign: torch is imported once, and each try has its own."""

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
    """Work in a forked process.

    Args:
        work: returns the exit code; None: 0.
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
        """Wait until it ends; its exit code, and the error that it ended with, in one line.

        A child that takes longer than `seconds` is killed. The exit code of a child that was killed
        is the negative number of the signal.
        """
        with os.fdopen(self._pipe, "rb") as pipe:
            # A child writes at its end only, so that the pipe is ready when the child has ended.
            if not select.select([pipe], [], [], seconds)[0]:
                os.kill(self.process, signal.SIGKILL)
            text = " ".join(pipe.read().decode(errors="replace").split())
        return os.waitstatus_to_exitcode(os.waitpid(self.process, 0)[1]), text


def limit_memory(more: int) -> None:
    """Let this process take at most `more` bytes of address space beyond what it has."""
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[0])
    limit = pages * os.sysconf("SC_PAGE_SIZE") + more
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _work(work: Callable[[], int | None], pipe: int) -> None:
    """Do the work, and end this process, whatever happens."""
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
    """A temporary folder, in memory if possible: syncing costs nothing there."""
    shared = Path("/dev/shm")
    parent = shared if os.access(shared, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix=prefix, dir=parent) as name:
        yield Path(name)
