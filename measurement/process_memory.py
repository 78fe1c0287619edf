"""Measure the memory of this process. This module needs the standard library only."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import resource
import sys
from pathlib import Path

__all__ = ["peak_memory", "reset_peak"]

_STATUS = Path("/proc/self/status")


def peak_memory() -> int:
    """Return the peak of the resident memory of this process, in bytes.

    On Linux, the peak is that of the running program. The value of `getrusage` may be that of the
    process that started it.
    """
    if _STATUS.exists():
        words = dict(line.split(":", 1) for line in _STATUS.read_text().splitlines() if ":" in line)
        return int(words["VmHWM"].split()[0]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def reset_peak() -> int:
    """Reset the peak to the present size of the process, if the system can; return the peak."""
    gc.collect()
    # Memory that was freed but kept by the allocator would be reused without raising the peak.
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    return peak_memory()
