"""`python -m campaign [PART ...] [--sample]`: run parts of the reliability campaign.

Each part is a module of this package with a function `run(sample: bool) -> PartOutcome`. A full run
appends a row for each finished part to `campaign/results/campaign.jsonl`, from which
`python -m campaign.report` makes `docs/reliability.md`. The exit code is 1 if anything failed.
"""

from __future__ import annotations

import argparse
import sys
import time
from importlib import import_module
from pathlib import Path

from bcrf.tagger.files import JsonlLog
from measurement.machine import provenance, source_commit

from .outcome import PartOutcome

PARTS: dict[str, str] = {
    "model_folders": "load tampered model folders, with a limit on time and memory",
    "crash_points": "let every disk operation of a training or a save fail, in every way",
    "writers": "let two trainings, or two savers and a reader, share a folder",
    "readers": "give mutated files to every reader",
    "chains": "solve random chains at scales 1e-30 to 1e30 on every backend",
}
"""Module of each part -> what it does."""

LOG = Path(__file__).parent / "results" / "campaign.jsonl"


def main() -> int:
    """Run the parts that the command line names, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m campaign", description=__doc__)
    parser.add_argument(
        "parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)} (default: all)"
    )
    parser.add_argument("--sample", action="store_true", help="run a small share of each part")
    parser.add_argument(
        "--log",
        type=Path,
        metavar="FILE",
        help="append the outcome to this file (default: results/campaign.jsonl; a sample is not "
        "logged)",
    )
    options = parser.parse_args()
    log = options.log or (None if options.sample else LOG)
    for name in options.parts:
        if name not in PARTS:
            parser.error(f"unknown part {name!r}; expected one of {', '.join(PARTS)}")
    source_commit()  # caches the commit now: a later commit does not change the code that runs
    failures = 0
    for name in options.parts or PARTS:
        failures += _run(name, options.sample, log)
    print(f"{failures} failures" if failures else "no failures")
    return 1 if failures else 0


def _run(name: str, sample: bool, log: Path | None) -> int:
    """Run one part, print and log its outcome, and return the number of failures."""
    start = time.perf_counter()
    outcome: PartOutcome = import_module(f".{name}", __package__).run(sample)
    seconds = time.perf_counter() - start
    counts = ", ".join(f"{count:,} {what}" for what, count in outcome.counts.items())
    print(f"{name}: {counts}; {len(outcome.failures)} failed ({seconds:.0f} s)", flush=True)
    for line in outcome.failures:
        print(f"  {line}")
    if log is not None:
        row = {
            **provenance("campaign"),
            "part": name,
            "sample": sample,
            "counts": dict(outcome.counts),
            "failures": outcome.failures,
            "seconds": round(seconds, 1),
        }
        JsonlLog(log).append(row)
    return len(outcome.failures)


if __name__ == "__main__":
    sys.exit(main())
