"""Measure `bcrf demo` with one and two threads, on an idle machine and beside busy processes.

python -m benchmarks.threads                 # nothing else should run
python -m benchmarks.threads --busy 2        # beside two busy processes

A waiting thread of OpenMP either spins, which is OpenMP's default, or sleeps, which is the default
of the command `bcrf` (see docs/cli.md). Every round runs all variants, in a new random order; the
table has the minimum and the maximum of each.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import subprocess
import sys

from measurement.timer import SamplingPlan, interleave

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
        # A demo is slow for the plan: its first run counts, and it runs `rounds` times.
        plan = SamplingPlan(budget=0.0, least=options.rounds + 1, slow=((0.0, options.rounds),))
        found = interleave(
            {
                name: functools.partial(run_demo, environment, arguments, options.limit)
                for name, (environment, arguments) in VARIANTS.items()
            },
            plan,
        )
    finally:
        for process in busy:
            process.kill()
            process.wait()
    print(f"bcrf demo, {os.cpu_count()} cores, beside {options.busy} busy processes")
    for name, timing in found.items():
        if timing.error is not None:
            raise timing.error
        print(f"{name:24}{min(timing.samples):7.1f} to {max(timing.samples):.1f} s")
    return 0


def run_demo(environment: dict[str, str], arguments: list[str], limit: float) -> None:
    """Run `bcrf demo`, and stop it after `limit` seconds."""
    inherited = {name: text for name, text in os.environ.items() if name not in _VARIABLES}
    command = [sys.executable, "-m", "bcrf", "demo", *arguments]
    with contextlib.suppress(subprocess.TimeoutExpired):
        subprocess.run(
            command,
            env=inherited | environment,
            stdout=subprocess.DEVNULL,
            check=True,
            timeout=limit,
        )


if __name__ == "__main__":
    sys.exit(main())
