"""Measure `bcrf demo` with one and two threads, on an idle machine and beside busy processes.

python -m benchmarks.threads                 # nothing else should run
python -m benchmarks.threads --busy 2        # beside two busy processes

A waiting thread of OpenMP either spins, which is OpenMP's default, or sleeps, which is the default
of the command `bcrf` (see docs/cli.md). All variants run in turns; the table has the minimum and
the maximum of each.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time

# Name of the variant -> environment, options of `bcrf demo`.
VARIANTS: dict[str, tuple[dict[str, str], list[str]]] = {
    "one thread": ({}, ["--threads", "1"]),
    "two threads that sleep": ({}, ["--threads", "2"]),
    "two threads that spin": ({"GOMP_SPINCOUNT": "300000"}, ["--threads", "2"]),
}

# Environment variables that would change the number of threads, or how they wait.
_VARIABLES = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
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
    options = parser.parse_args()
    busy = [subprocess.Popen([sys.executable, "-c", "while 1: 0"]) for _ in range(options.busy)]
    try:
        seconds: dict[str, list[float]] = {name: [] for name in VARIANTS}
        for _ in range(options.rounds):
            for name, (environment, arguments) in VARIANTS.items():
                seconds[name].append(run_demo(environment, arguments, options.limit))
    finally:
        for process in busy:
            process.kill()
            process.wait()
    print(f"bcrf demo, {os.cpu_count()} cores, beside {options.busy} busy processes")
    for name, times in seconds.items():
        print(f"{name:24}{min(times):7.1f} to {max(times):.1f} s")
    return 0


def run_demo(environment: dict[str, str], arguments: list[str], limit: float) -> float:
    """Return the wall time of `bcrf demo`, or `limit` if the demo takes longer."""
    inherited = {name: text for name, text in os.environ.items() if name not in _VARIABLES}
    command = [sys.executable, "-m", "bcrf", "demo", *arguments]
    start = time.perf_counter()
    try:
        subprocess.run(
            command,
            env=inherited | environment,
            stdout=subprocess.DEVNULL,
            check=True,
            timeout=limit,
        )
    except subprocess.TimeoutExpired:
        return limit
    return time.perf_counter() - start


if __name__ == "__main__":
    sys.exit(main())
