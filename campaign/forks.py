"""Run a function in a forked process that may take only so much time and memory."""

from __future__ import annotations

import os
import resource
import select
import signal
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Ended", "in_fork"]


@dataclass(frozen=True)
class Ended:
    """How a forked process ended.

    Args:
        text: what the function returned; or the traceback, if it raised.
        raised: whether it raised.
        signal: the number of the signal that killed it; None: it ended by itself.
        timed_out: whether it was killed because its time was over.
    """

    text: str
    raised: bool
    signal: int | None
    timed_out: bool


def in_fork(function: Callable[[], str], seconds: float, extra_memory: int) -> Ended:
    """Call `function` in a child of this process.

    Args:
        function: its result is sent back.
        seconds: after which the child is killed.
        extra_memory: bytes of address space that the child may take beyond those it starts with.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _run_child(function, writing, extra_memory)
    os.close(writing)
    with os.fdopen(reading, "rb") as stream:
        content, timed_out = _receive(stream.fileno(), time.monotonic() + seconds)
    if timed_out:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    text = content[1:].decode(errors="replace")
    killed_by = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
    return Ended(text, content[:1] == b"!", killed_by, timed_out)


def _run_child(function: Callable[[], str], writing: int, extra_memory: int) -> None:
    """Call the function, write its result, and end the process without any clean-up."""
    try:
        limit = _address_space() + extra_memory
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        content = "=" + function()
    except BaseException:  # also what is no Exception: a panic in Rust, SystemExit
        content = "!" + traceback.format_exc()
    with os.fdopen(writing, "wb") as stream:
        stream.write(content.encode(errors="replace"))
    os._exit(0)


def _receive(handle: int, deadline: float) -> tuple[bytes, bool]:
    """All that the child writes, and whether the deadline came first."""
    content = b""
    while True:
        ready, _, _ = select.select([handle], [], [], max(deadline - time.monotonic(), 0))
        if not ready:
            return content, True
        part = os.read(handle, 1 << 16)
        if not part:
            return content, False
        content += part


def _address_space() -> int:
    """Bytes of address space that this process has."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
