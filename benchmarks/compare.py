"""Compare the speed of two source trees: how many times faster is AFTER than BEFORE?

    python -m benchmarks.compare BEFORE AFTER
    python -m benchmarks.compare /old/.venv/bin/python .venv/bin/python --minutes 3 --cases 32x64x17

BEFORE and AFTER are Python interpreters, or folders whose `.venv/bin/python` is one. Each has one
version of bcrf installed. Both run the same calls on the same inputs, in two processes that take
turns: every round, both time the same call one right after the other. A disturbance of the machine
therefore slows down both alike.

A line of the output is one call: its median times, the ratio before / after (above 1: AFTER is
faster), and the quartiles of the ratio over the rounds. The exit code is 1 if a call has become
slower by more than `--tolerance` (5 %) beyond the spread: the upper quartile of its ratio is below
0.95.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from measurement.markdown import count_threads
from measurement.timer import quartiles

from .cases import CASES
from .run_results import duration

__all__ = ["Ratio", "Worker", "main"]

ROOT = Path(__file__).parents[1]
MINUTES = 5.0
ROUNDS = 7
"""Minimum number of rounds in which each call is timed."""
SYSTEMS = (
    *("crf", "crf scan", "bregman-10", "bregman-10 paper", "mean field-10", "unstructured"),
    *("crf torch", "bregman-10 torch", "viterbi", "certified-10", "bregman-10 MBR"),
    *("bcrf.CRF", "bcrf.CRF, mask", "bcrf.BregmanCRF", "bcrf.BregmanCRF, mask"),
)


class Ratio:
    """The times of one call in both trees.

    Args:
        name: name of the call.
        before, after: seconds in each round; the ratio compares times of the same round.
    """

    def __init__(self, name: str, before: Sequence[float], after: Sequence[float]) -> None:
        self.name = name
        self.before, self.after = quartiles(before)[1], quartiles(after)[1]
        rounds = [b / a for b, a in zip(before, after, strict=True)]
        self.low, self.median, self.high = quartiles(rounds)

    def is_slower(self, tolerance: float) -> bool:
        """Whether AFTER is slower by more than the tolerance, beyond the spread."""
        return self.high < 1 - tolerance

    def line(self, tolerance: float) -> str:
        """Return the line that the output shows for this call."""
        times = f"{duration(self.before):>10} {duration(self.after):>10}"
        mark = "  SLOWER" if self.is_slower(tolerance) else ""
        ratio = f"{self.median:6.3f} [{self.low:.3f}, {self.high:.3f}]"
        return f"{self.name:55} {times} {ratio}{mark}"


class Worker:
    """A process that times calls with one version of bcrf.

    Args:
        python: the interpreter.
        arguments: command-line arguments of `benchmarks.compare_worker`.
    """

    def __init__(self, python: str, arguments: Sequence[str]) -> None:
        # The benchmark's modules come from this tree; bcrf is the version installed for `python`.
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
        self.process = subprocess.Popen(
            [python, "-m", "benchmarks.compare_worker", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            cwd=ROOT,
        )
        self.about: dict[str, Any] = self._receive()

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Send a request, and return the answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return self._receive()

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()

    def _receive(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(
                f"{self.process.args[0]}: the worker ended with code {self.process.wait()}"
            )  # type: ignore[index]
        found: dict[str, Any] = json.loads(line)
        return found


def compare(options: argparse.Namespace) -> int:
    """Time both trees, print a line for each call, and return the exit code."""
    shared = ["--threads", str(options.threads), "--cases", *options.cases]
    shared += ["--systems", *options.systems]
    pythons = [_python(path) for path in (options.before, options.after)]
    workers = [Worker(python, shared) for python in pythons]
    for role, worker in zip(("before", "after"), workers, strict=True):
        print(f"{role}: {worker.about['bcrf']}, native kernels: {worker.about['native']}")
    names = [name for name in workers[0].about["calls"] if name in workers[1].about["calls"]]
    for role, mine, other in (("before", *workers), ("after", *workers[::-1])):
        for name in mine.about["calls"]:
            if name not in other.about["calls"]:
                print(f"only {role}: {name}")
    repeats = {name: max(w.ask({"name": name})["repeats"] for w in workers) for name in names}
    seconds: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in names}
    order = random.Random(0)
    spent = dict.fromkeys(names, 0.0)
    share = 60 * options.minutes / max(1, len(names))
    # `measurement.timer.interleave` cannot serve here. It times functions of its own process, while
    # this loop asks two processes, and pairs their times by round. It gives all functions one
    # budget; here every call gets the same share of the time, so a fast call has more rounds than a
    # slow one.
    while due := [n for n in names if len(seconds[n][0]) < ROUNDS or spent[n] < share]:
        for name in order.sample(due, len(due)):
            started = time.monotonic()
            for number in order.sample((0, 1), 2):
                request = {"name": name, "repeats": repeats[name]}
                seconds[name][number].append(workers[number].ask(request)["seconds"])
            spent[name] += time.monotonic() - started
    for worker in workers:
        worker.close()
    ratios = [Ratio(name, *both) for name, both in seconds.items()]
    print(f"{count_threads(options.threads)}; before, after, ratio before / after [quartiles]")
    for ratio in ratios:
        print(ratio.line(options.tolerance))
    slower = [ratio for ratio in ratios if ratio.is_slower(options.tolerance)]
    middle = quartiles([ratio.median for ratio in ratios])[1]
    print(
        f"{len(slower)} of {len(ratios)} calls are slower by more than {options.tolerance:.0%} "
        f"beyond the spread; median ratio {middle:.3f}"
    )
    return 1 if slower else 0


def _python(path: str) -> str:
    """Return the interpreter in a folder's `.venv`, or the path itself if it is an interpreter."""
    inside = Path(path) / ".venv" / "bin" / "python"
    return str(inside if inside.exists() else Path(path))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return the exit code."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.compare",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("before", metavar="BEFORE", help="interpreter or folder")
    parser.add_argument("after", metavar="AFTER", help="interpreter or folder")
    choice: dict[str, Any] = {"nargs": "+", "metavar": "NAME"}
    parser.add_argument("--cases", choices=CASES, default=list(CASES), **choice, help="shapes")
    parser.add_argument("--systems", default=list(SYSTEMS), **choice, help="names of systems")
    parser.add_argument("--threads", type=int, default=1, help="default: %(default)s")
    parser.add_argument(
        "--minutes", type=float, default=MINUTES, help="time for all calls (default: %(default)g)"
    )
    parser.add_argument(
        "--tolerance", type=float, default=0.05, help="accepted slowdown (default: %(default)g)"
    )
    return compare(parser.parse_args(arguments))


if __name__ == "__main__":
    sys.exit(main())
