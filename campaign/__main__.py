"""`python -m campaign [PART ...] [--sample]`: run parts of the reliability campaign.

Each part is a module of this package with `run(sample: bool) -> Tally`. Every finished part of a
full run is a line in `campaign/results/campaign.jsonl`; `python -m campaign.report` makes
`docs/reliability.md` from it. The exit code is 1 if anything failed.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import time
from datetime import datetime, timezone
from importlib import import_module
from pathlib import Path

from .tally import Tally

PARTS: dict[str, str] = {
    "model_folders": "tampered model folders, loaded with a limit on time and memory",
    "crash_points": "every operation on the disk fails, in every way, while runs are written",
    "writers": "two trainings, or two savers and a reader, share a folder",
    "readers": "mutated inputs of every reader",
    "chains": "random chains across backends at scales 1e-30 to 1e30",
}
"""Name of each part's module -> what it tries."""

LOG = Path(__file__).parent / "results" / "campaign.jsonl"


def main() -> int:
    """Run the parts that the command line names; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m campaign", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--sample", action="store_true", help="run a small share of each part")
    parser.add_argument(
        "--log",
        type=Path,
        metavar="FILE",
        help="append the counts to this file (default: that of the page; none for a sample)",
    )
    options = parser.parse_args()
    log = options.log or (None if options.sample else LOG)
    for name in options.parts:
        if name not in PARTS:
            parser.error(f"unknown part {name!r}; expected one of {', '.join(PARTS)}")
    commit = _commit()  # of the code that is running, whatever is committed meanwhile
    failures = 0
    for name in options.parts or PARTS:
        failures += _run(name, options.sample, log, commit)
    print(f"{failures} failures" if failures else "no failures")
    return 1 if failures else 0


def _run(name: str, sample: bool, log: Path | None, commit: str) -> int:
    """Run one part, print and log its counts; the number of failures."""
    start = time.perf_counter()
    tally: Tally = import_module(f".{name}", __package__).run(sample)
    seconds = time.perf_counter() - start
    counts = ", ".join(f"{count:,} {what}" for what, count in tally.counts.items())
    print(f"{name}: {counts}; {len(tally.failures)} failed ({seconds:.0f} s)", flush=True)
    for line in tally.failures:
        print(f"  {line}")
    if log is not None:
        _write(log, name, sample, tally, seconds, commit)
    return len(tally.failures)


def _write(log: Path, name: str, sample: bool, tally: Tally, seconds: float, commit: str) -> None:
    """Append the counts of a part to the log."""
    row = {
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": commit,
        "command": shlex.join(["python", "-m", "campaign", *sys.argv[1:]]),
        "part": name,
        "sample": sample,
        "counts": dict(tally.counts),
        "failures": tally.failures,
        "seconds": round(seconds, 1),
    }
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


def _commit() -> str:
    """The commit of the working tree, marked if anything but the log has changed since."""
    root = Path(__file__).parents[1]
    show = ["git", "rev-parse", "--short", "HEAD"]
    done = subprocess.run(show, capture_output=True, text=True, cwd=root)
    compare = ["git", "diff", "--quiet", "HEAD", "--", ".", f":(exclude){LOG.relative_to(root)}"]
    changed = subprocess.run(compare, cwd=root).returncode != 0
    return (done.stdout.strip() or "unknown") + ("-dirty" if changed else "")


if __name__ == "__main__":
    sys.exit(main())
