"""How cost grows: peak memory of one long batch, and time of a chain eight times as long.

    python -m benchmarks.memory "crf"      # one system, in a process of its own: prints bytes

Peak memory is a property of a process, so every system gets a fresh one.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from .cases import LINEAR, Case, make
from .systems import SYSTEMS, brief
from .timing import Plan, Timing, interleave, threads

__all__ = ["LINEAR_SYSTEMS", "LONG", "MEMORY_SYSTEMS", "growth", "memory", "peak_added"]

LONG = Case(8, 4096, 64)
MEMORY_SYSTEMS = ("crf", "crf torch", "bregman-10", "bregman-10 torch", "pytorch-crf")
LINEAR_SYSTEMS = {"crf": "loss", "bregman-10": "loss", "viterbi": "normal"}

# Freed blocks go back to the system (glibc): what a call needs, not what the allocator keeps.
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": "131072"}
STATUS = Path("/proc/self/status")


def peak_added(system: str, case: Case = LONG) -> int:
    """Bytes by which one loss + gradient raises the peak of this process, inputs not counted."""
    # Libraries, threads and kernels are loaded by a small problem first.
    for problem in (make(Case(2, 8, case.tags), "shared"), make(case, "shared")):
        call = SYSTEMS[system].prepare(problem, "loss")
        if not callable(call):
            raise RuntimeError(call)
        before = _reset()
        call()
    return max(0, _peak() - before)


def _reset() -> int:
    """Make the present size of the process its peak, where the system can, and return the peak."""
    gc.collect()
    # What was freed but kept would be used again, unseen.
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    return _peak()


def _peak() -> int:
    if STATUS.exists():
        words = dict(line.split(":", 1) for line in STATUS.read_text().splitlines() if ":" in line)
        return int(words["VmHWM"].split()[0]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def memory(systems: tuple[str, ...] = MEMORY_SYSTEMS) -> Iterator[dict[str, Any]]:
    """Rows for the log: system and bytes, or an error."""
    for name in systems:
        command = [sys.executable, "-W", "ignore", "-m", "benchmarks.memory", name]
        root = Path(__file__).parent.parent
        done = subprocess.run(
            command, capture_output=True, text=True, cwd=root, env={**os.environ, **ALLOCATOR}
        )
        row = {"system": name, "case": LONG.name}
        if done.returncode == 0:
            yield {**row, "bytes": json.loads(done.stdout.splitlines()[-1])}
        else:
            last = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
            yield {**row, "error": brief(last[-1])}


def growth(plan: Plan, counts: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Rows for the log: seconds at both lengths, shared transitions, interleaved."""
    calls, errors = {}, {}
    for name, task in LINEAR_SYSTEMS.items():
        for case in LINEAR:
            call = SYSTEMS[name].prepare(make(case, "shared", task), task)
            if callable(call):
                calls[f"{name} {case.name}"] = call
            else:
                errors[name] = str(call)
    for count in counts:
        with threads(count):
            found = interleave(calls, plan)
        for name, task in LINEAR_SYSTEMS.items():
            timings = [found.get(f"{name} {case.name}", Timing()) for case in LINEAR]
            row = {"system": name, "task": task, "threads": count}
            row["cases"] = [case.name for case in LINEAR]
            if name not in errors and all(timing.samples for timing in timings):
                yield {**row, "seconds": [float(f"{t.median:.4g}") for t in timings]}
            else:
                yield {**row, "error": errors.get(name, "failed while it was timed")}


if __name__ == "__main__":
    print(json.dumps(peak_added(sys.argv[1])))
