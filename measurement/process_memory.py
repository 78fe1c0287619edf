"""Measure the memory of this process. This module needs the standard library only."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

__all__ = ["peak_memory"]

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
