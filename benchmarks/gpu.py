"""Count launches, compile the Triton kernels, and write docs/gpu.md. No GPU is needed.

python -m benchmarks.gpu             # count and compile, log both, and write the page
python -m benchmarks.gpu --report    # write the page from the log
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from measurement.markdown import fill_template, table

from . import gpu_model
from .gpu_model import Estimate, estimate_fused
from .launches import BATCH, LENGTHS, TAGS, launches
from .log import BenchmarkLog, Row

__all__ = ["main", "page"]

ROOT = Path(__file__).parent
LOG = ROOT / "results" / "gpu.jsonl"
PAGE = ROOT.parent / "docs" / "gpu.md"
TEMPLATE = ROOT / "gpu_path_template.md"

SHAPES = ((8, 32), (32, 64), (32, 256), (8, 512), (8, 4096), (512, 64))
"""Batch and length of the rows of the time model."""

MODELLED = {
    "eager loop": "eager loop: loss + gradient",
    "exact, torch": "crf: loss + gradient",
    "Bregman-10, torch": "bregman-10: loss + gradient",
}
"""Column of the time model -> system whose launches it uses."""


def measure(log: BenchmarkLog, counts_only: bool = False) -> str:
    """Count launches and compile all kernels; return the name of the run.

    Args:
        counts_only: take the kernels of the last finished run, whose rows name its commit.
    """
    last = log.last_run(finished=True)
    if counts_only and last is None:
        raise SystemExit(f"{log.path.name} has no finished run; run it without --counts first")
    run = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    log.append(run, "launches", launches(LENGTHS, BATCH, TAGS))
    for batch, length in SHAPES:
        found = launches([length], batch, TAGS, only=tuple(MODELLED.values()))
        log.append(run, "model", ({**row, "batch": batch} for row in found))
    kernels = _kernels_of(log, last) if counts_only and last else _compiled_kernels()
    for row in kernels:
        log.append(run, "kernel", [{**row, "run": run}])
    log.append(run, "end", [{}])
    return run


def _kernels_of(log: BenchmarkLog, run: str) -> Iterator[Row]:
    return (row for row in log.rows(run) if row["row"] == "kernel")


def _compiled_kernels() -> Iterator[Row]:
    """Compile all kernels, which takes some minutes, and yield a row for each.

    Another process compiles them: Triton decides when it is imported whether it compiles or
    interprets.
    """
    command = [sys.executable, "-m", "benchmarks.triton_build", "--json"]
    environment = {name: x for name, x in os.environ.items() if name != "TRITON_INTERPRET"}
    settings: dict[str, Any] = {"text": True, "cwd": ROOT.parent, "env": environment}
    with subprocess.Popen(command, stdout=subprocess.PIPE, **settings) as process:
        assert process.stdout is not None
        for number, line in enumerate(process.stdout, 1):
            if sys.stderr.isatty():
                print(f"\r{number} kernels compiled", end="", file=sys.stderr, flush=True)
            yield json.loads(line)
    if process.returncode:
        raise SystemExit("compiling the Triton kernels failed; the error is above")


def page(rows: Sequence[Row]) -> str:
    """Return the page of one run."""
    values = {
        "run": str(rows[0]["run"]),
        "batch": str(BATCH),
        "tags": str(TAGS),
        "launch": f"{gpu_model.LAUNCH * 1e6:g} µs",
        "wait": f"{gpu_model.WAIT * 1e6:g} µs",
        "bandwidth": f"{gpu_model.BANDWIDTH / 1e12:g} TB/s",
        "step": f"{gpu_model.STEP * 1e6:g} µs",
        "programs": str(gpu_model.PROGRAMS),
        "launches": _launches([row for row in rows if row["row"] == "launches"]),
        "kernels": _kernels([row for row in rows if row["row"] == "kernel"]),
        "model": _model([row for row in rows if row["row"] == "model"]),
        "crossing": str(_crossing([row for row in rows if row["row"] == "launches"])),
    }
    marks = {name: lambda _, text=text: text for name, text in values.items()}
    return fill_template(TEMPLATE, marks)


def _launches(rows: Sequence[Row]) -> str:
    lengths = sorted({row["length"] for row in rows})
    cells = {(row["system"], row["length"]): row for row in rows}
    names = list(dict.fromkeys(row["system"] for row in rows))
    missing = sorted({f"{row['system']}: {row['error']}" for row in rows if "error" in row})
    shown = table(
        ["", *(f"n = {length}" for length in lengths)],
        ([name, *(_count(cells.get((name, n), {})) for n in lengths)] for name in names),
    )
    return "\n".join([shown, *(f"\nNot counted: {text}." for text in missing)])


def _count(row: Row) -> str:
    return f"{row['launches']:,} ({row['synchronisations']:,})" if "launches" in row else "–"


def _crossing(rows: Sequence[Row]) -> int:
    """Return the length from which Bregman-10 launches less than the exact loop in torch."""
    counts = {(r["system"], r["length"]): r["launches"] for r in rows if "launches" in r}
    names = MODELLED["exact, torch"], MODELLED["Bregman-10, torch"]
    low, high = min(n for _, n in counts), max(n for _, n in counts)
    per_position = (counts[names[0], high] - counts[names[0], low]) / (high - low)
    constant = counts[names[0], low] - per_position * low
    return max(2, round((counts[names[1], low] - constant) / per_position))


def _kernels(rows: Sequence[Row]) -> str:
    """Return a table of the float32 kernels: registers, and spilled bytes where there are any."""
    float32_rows = [row for row in rows if row["dtype"] == "fp32"]
    targets = sorted({row["target"] for row in float32_rows}, key=lambda name: int(name[3:]))
    keys = dict.fromkeys((row["kernel"], row["transitions"], row["tags"]) for row in float32_rows)
    cells = {(r["kernel"], r["transitions"], r["tags"], r["target"]): r for r in float32_rows}
    return table(
        ["kernel", "transitions", "T", *(f"{t}: registers, shared memory" for t in targets)],
        (
            [
                kernel,
                transitions,
                str(tags),
                *(_resources(cells.get((kernel, transitions, tags, t))) for t in targets),
            ]
            for kernel, transitions, tags in keys
        ),
        left=2,
    )


def _resources(row: Row | None) -> str:
    if row is None:
        return "–"
    spills = f", spills {row['spilled_bytes']:,} B" if row["spilled_bytes"] else ""
    return f"{row['registers']}, {row['shared_bytes']:,} B{spills}"


def _model(rows: Sequence[Row]) -> str:
    """Return the table of estimated times for each shape."""
    counts = {(row["system"], row["batch"], row["length"]): row for row in rows}
    fused = {"exact, Triton": "crf", "Bregman-10, Triton": "bregman"}

    def cells(batch: int, length: int) -> Iterator[str]:
        seconds = {}
        for column, system in MODELLED.items():
            row = counts[system, batch, length]
            found = Estimate(row["launches"], row["synchronisations"], row["bytes"])
            seconds[column] = found.seconds
        for column, family in fused.items():
            seconds[column] = estimate_fused(family, batch, length, TAGS).seconds
        yield f"{batch} x {length}"
        yield from (f"{1e6 * value:,.0f}" for value in seconds.values())
        for way in ("torch", "Triton"):
            ratio = seconds[f"exact, {way}"] / seconds[f"Bregman-10, {way}"]
            yield f"{ratio:.2g}x"

    ratios = ["exact / Bregman, torch", "exact / Bregman, Triton"]
    head = ["B x n", *MODELLED, *fused, *ratios]
    return table(head, (list(cells(*shape)) for shape in SHAPES))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        "python -m benchmarks.gpu", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--counts", action="store_true", help="count, do not compile")
    parser.add_argument("--report", action="store_true", help="write the page from the log")
    parser.add_argument("--log", type=Path, default=LOG, help="/".join(LOG.parts[-3:]))
    parser.add_argument("--page", type=Path, default=PAGE, help="/".join(PAGE.parts[-2:]))
    options = parser.parse_args(arguments)
    log = BenchmarkLog(options.log, "benchmarks.gpu")
    run = log.last_run(finished=True) if options.report else measure(log, options.counts)
    if run is None:
        raise SystemExit(f"{options.log.name} has no finished run; run it without --report first")
    options.page.write_text(page(log.rows(run)))
    print(f"wrote {options.page.name}")


if __name__ == "__main__":
    main()
