"""Measure the peak memory of one long batch, and how time grows when chains are longer.

    python -m benchmarks.memory "crf"      # measure one system; prints bytes

Peak memory is a property of a process, so every system is measured in a new process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from measurement.process_memory import peak_memory, reset_peak
from measurement.timer import SamplingPlan, Timing, interleave, torch_threads

from .cases import LINEAR, BenchmarkCase, make_problem
from .systems import SYSTEMS, brief

__all__ = ["LINEAR_SYSTEMS", "LONG", "MEMORY_SYSTEMS", "growth", "memory", "peak_added"]

LONG = BenchmarkCase(8, 4096, 64)
MEMORY_SYSTEMS = ("crf", "crf torch", "bregman-10", "bregman-10 torch", "pytorch-crf")
LINEAR_SYSTEMS = {"crf": "loss", "bregman-10": "loss", "viterbi": "normal"}

# With this setting glibc returns freed blocks to the system at once. The peak is then the memory
# that a call needs, without freed memory that the allocator keeps.
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": "131072"}


def peak_added(system: str, case: BenchmarkCase = LONG) -> int:
    """Return the bytes that one loss + gradient adds to the peak of this process."""
    # We run a small problem first, which loads libraries and kernels and starts threads.
    small = BenchmarkCase(2, 8, case.tags)
    for problem in (make_problem(small, "shared"), make_problem(case, "shared")):
        call = SYSTEMS[system].prepare(problem, "loss")
        if not callable(call):
            raise RuntimeError(call)
        before = reset_peak()
        call()
    return max(0, peak_memory() - before)


def memory(systems: tuple[str, ...] = MEMORY_SYSTEMS) -> Iterator[dict[str, Any]]:
    """Yield a row for each system: its bytes, or an error."""
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


def growth(plan: SamplingPlan, counts: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Yield a row for each system: its seconds at both lengths, with shared transitions."""
    calls, errors = {}, {}
    for name, task in LINEAR_SYSTEMS.items():
        for case in LINEAR:
            call = SYSTEMS[name].prepare(make_problem(case, "shared", task), task)
            if callable(call):
                calls[f"{name} {case.name}"] = call
            else:
                errors[name] = str(call)
    for count in counts:
        with torch_threads(count):
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
