"""Measure `bcrf demo` with one and two threads, on an idle machine and beside busy processes.

python -m benchmarks.threads                 # nothing else should run
python -m benchmarks.threads --busy 2        # beside two busy processes

A waiting thread of OpenMP either spins, which is OpenMP's default, or sleeps, which is the default
of `bcrf` (see docs/cli.md). Every round runs all variants, in a new random order. The log has a row
for each variant; the command prints the table of docs/cli.md.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import subprocess
import sys
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path

from bcrf.cli.main import WAIT_VARIABLES
from measurement.machine import hardware, load, software
from measurement.markdown import table
from measurement.timer import SamplingPlan, interleave

from .log import BenchmarkLog, Row

__all__ = ["VARIANTS", "main", "measure", "rendered"]

LOG = Path(__file__).resolve().parent / "results" / "threads.jsonl"

# Name of the variant -> environment, options of `bcrf demo`.
VARIANTS: dict[str, tuple[dict[str, str], list[str]]] = {
    "one": ({}, ["--threads", "1"]),
    "two that sleep while they wait": ({}, ["--threads", "2"]),
    "two that spin while they wait": ({"GOMP_SPINCOUNT": "300000"}, ["--threads", "2"]),
}

# Environment variables that would change the number of threads, or how they wait.
_VARIABLES = ("OMP_NUM_THREADS", *WAIT_VARIABLES)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        "python -m benchmarks.threads", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument(
        "--busy",
        type=int,
        default=0,
        metavar="N",
        help="number of busy processes that run beside the demo",
    )
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="runs of each variant")
    parser.add_argument(
        "--limit", type=float, default=240, metavar="S", help="stop a run after S seconds"
    )
    parser.add_argument("--log", type=Path, default=LOG, help="/".join(LOG.parts[-3:]))
    options = parser.parse_args(arguments)
    log = BenchmarkLog(options.log, "benchmarks.threads")
    print(rendered(log.rows(measure(log, options.busy, options.rounds, options.limit))))


def measure(log: BenchmarkLog, busy: int, rounds: int, limit: float) -> str:
    """Measure all variants beside `busy` processes, log the rows, and return the run's name."""
    run = datetime.now(timezone.utc).strftime("%Y%m%d-%H%M%S")
    # The load before the run shows what else the machine does.
    about = {"machine": hardware(), "software": software(), "busy": busy, "load": load()}
    log.append(run, "start", [{**about, "limit": limit}])
    processes = [subprocess.Popen([sys.executable, "-c", "while 1: 0"]) for _ in range(busy)]
    try:
        # A demo is slow for the plan: its first run counts, and it runs `rounds` times.
        plan = SamplingPlan(budget=0.0, least=rounds + 1, slow=((0.0, rounds),))
        found = interleave(
            {
                name: functools.partial(run_demo, environment, options, limit)
                for name, (environment, options) in VARIANTS.items()
            },
            plan,
        )
    finally:
        for process in processes:
            process.kill()
            process.wait()
    for timing in found.values():
        if timing.error is not None:
            raise timing.error
    samples = {name: [round(x, 2) for x in timing.samples] for name, timing in found.items()}
    log.append(run, "threads", [{"variant": name, "samples": x} for name, x in samples.items()])
    log.append(run, "end", [{"load": load()}])
    return run


def rendered(rows: Sequence[Row]) -> str:
    """Return the times of a run as a table: the minimum and the maximum of each variant."""
    limit = rows[0]["limit"]
    measured = {row["variant"]: row["samples"] for row in rows if row["row"] == "threads"}
    return table(["threads", "time"], ([name, _range(x, limit)] for name, x in measured.items()))


def _range(samples: Sequence[float], limit: float) -> str:
    """Return "31 to 37 s", with the number of runs that were stopped."""
    stopped = sum(x >= limit for x in samples)
    times = f"{min(samples):.0f} to {max(samples):.0f} s"
    return f"{times}; {stopped} of {len(samples)} runs stopped" if stopped else times


def run_demo(environment: dict[str, str], options: list[str], limit: float) -> None:
    """Run `bcrf demo`, and stop it after `limit` seconds."""
    inherited = {name: text for name, text in os.environ.items() if name not in _VARIABLES}
    with contextlib.suppress(subprocess.TimeoutExpired):
        subprocess.run(
            [sys.executable, "-m", "bcrf", "demo", *options],
            env=inherited | environment,
            stdout=subprocess.DEVNULL,
            check=True,
            timeout=limit,
        )


if __name__ == "__main__":
    main()
