"""Measure speed, overheads, growth, depth, memory and tagging, and write the page.

    python -m benchmarks                # measure everything, log it, and write docs/benchmarks.md
    python -m benchmarks --resume       # continue the last run
    python -m benchmarks --report       # write the page from the log
    python -m benchmarks --cases 32x64x17 --tasks loss --threads 1 --budget 2
    python -m benchmarks --device cuda  # measure the speed on a GPU; write docs/benchmarks-gpu.md

A run that is restricted to some cases or systems is logged in another file and printed. It does
not change the page.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

import bcrf
from measurement.machine import available_cores, compiler, hardware, provenance, software
from measurement.timer import CudaClock, SamplingPlan, Timing, interleave, torch_threads

from . import peers, report
from .cases import CASES, PAIRS, QUICK, TASKS, BenchmarkCase, make_problem
from .depth import depths
from .log import BenchmarkLog, Row
from .memory import growth, memory
from .overhead import measure_overheads
from .systems import SYSTEMS, System, brief
from .systems.ours import auto_backend
from .tagging import tagging
from .verification import Verifier

__all__ = ["describe_run", "describe_systems", "main", "measure_group"]

ROOT = Path(__file__).parent
LOGS = {"cpu": ROOT / "results" / "speed.jsonl", "cuda": ROOT / "results" / "speed-gpu.jsonl"}
PARTIAL = ROOT / "results" / "partial.jsonl"
PAGES = {
    "cpu": ROOT.parent / "docs" / "benchmarks.md",
    "cuda": ROOT.parent / "docs" / "benchmarks-gpu.md",
}
PARTS = ("speed", "overhead", "growth", "depth", "memory", "tagging")


def measure_group(
    systems: Sequence[System],
    case: BenchmarkCase,
    pairs: Any,
    task: str,
    counts: Sequence[int],
    plan: SamplingPlan,
    device: torch.device | None = None,
) -> Iterator[list[Row]]:
    """Verify the systems on one problem, then time them together.

    Yields one list of rows for each number of threads.

    Args:
        device: the device of the tensors; its events measure the time. None: the CPU.
    """
    problem = make_problem(case, pairs, task)
    clock: Callable[[], float] = time.perf_counter
    if device is not None and device.type == "cuda":
        problem, clock = problem.to(device), CudaClock(device)
    verifier = Verifier(problem, task)
    about = {"case": case.name, "pairs": pairs, "task": task}
    facts: dict[str, Row] = {}
    calls = {}
    with torch_threads(1):
        for system in systems:
            call = system.prepare(problem, task)
            if call is None:
                continue
            if isinstance(call, str):
                facts[system.name] = {"error": peers.error_of(system.package) or call}
                continue
            facts[system.name] = verifier.check(system, call)
            if "error" not in facts[system.name]:
                calls[system.name] = call
    for count in counts:
        with torch_threads(count):
            found = interleave(calls, plan, clock=clock)
        yield [
            {**about, "threads": count, "system": name, **fact, **_fields(found.get(name))}
            for name, fact in facts.items()
        ]


def _fields(timing: Timing | None) -> Row:
    if timing is None:
        return {}
    if timing.error is not None:
        return {"error": brief(timing.error)}
    return timing.numbers


class ProgressLine:
    """A display of the present measurement: one changing line in a terminal, else many lines."""

    def __init__(self) -> None:
        self.live = sys.stdout.isatty()

    def now(self, text: str) -> None:
        if self.live:
            print(f"\r\033[K{text} ...", end="", flush=True)

    def done(self, text: str) -> None:
        print(f"\r\033[K{text}" if self.live else text, flush=True)


def describe_run(device: torch.device) -> dict[str, Any]:
    """Return the machine, the software versions and the commit of a run."""
    facts = hardware(device)
    del facts["native"]  # the backend holds more information
    if device.type == "cpu":
        del facts["device"]  # it is named below
        toolkit = {"compiler": compiler()}
    else:
        toolkit = {"CUDA": str(torch.version.cuda), "triton": _installed("triton")}
    return {
        **provenance("benchmarks"),
        **facts,
        **software(),
        **toolkit,
        'backend "auto"': brief(auto_backend(device)),
    }


def _installed(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def describe_systems() -> list[dict[str, str]]:
    """Return the version and the settings of every system."""
    return [
        {"system": s.name, "role": s.role, "version": _version(s), "settings": s.settings}
        for s in SYSTEMS.values()
    ]


def _version(system: System) -> str:
    if system.role == "ours":
        return f"bcrf {bcrf.__version__}"
    return f"{system.package} {system.version}" if system.package else ""


def measure(options: argparse.Namespace, log: BenchmarkLog) -> str:
    """Take the measurements that the log lacks, and return the name of the run."""
    resumed = log.last_run() if options.resume else None
    run = resumed or time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    if not resumed:
        about = {
            "machine": describe_run(options.device),
            "device": options.device.type,
            "budget": options.plan.budget,
        }
        log.append(run, "start", [{**about, "systems": describe_systems()}])
    warnings.filterwarnings(
        "ignore", category=UserWarning
    )  # other libraries warn about newer versions of torch
    done = log.rows(run)
    if "speed" in options.parts:
        _speed(options, log, run, done)
    others: dict[str, Callable[[], Iterable[Row]]] = {
        "overhead": lambda: measure_overheads(options.plan, options.threads, options.cases),
        "growth": lambda: growth(options.plan, options.threads),
        "depth": depths,
        "memory": memory,
        "tagging": lambda: tagging(options.plan, options.threads),
    }
    progress = ProgressLine()
    for part, rows in others.items():
        if part in options.parts and not any(row["row"] == part for row in done):
            progress.now(part)
            log.append(run, part, list(rows()))
            progress.done(f"{part}: done")
    log.append(run, "end", [{}])
    return run


def _speed(options: argparse.Namespace, log: BenchmarkLog, run: str, done: list[Row]) -> None:
    keys = ("case", "pairs", "task", "threads")
    known = {tuple(row[key] for key in keys) for row in done if row["row"] == "speed"}
    groups = [(c, p, t) for c in options.cases for p in options.pairs for t in options.tasks]
    systems = [
        s for s in SYSTEMS.values() if any(_selects(word, s.name) for word in options.systems)
    ]
    progress = ProgressLine()
    for i, (case, pairs, task) in enumerate(groups, 1):
        counts = [n for n in options.threads if (case, pairs, task, n) not in known]
        if not counts:
            continue
        title = f"[{i}/{len(groups)}] {case}, {pairs}, {TASKS[task]}"
        progress.now(title)
        started = time.perf_counter()
        for rows in measure_group(
            systems, CASES[case], pairs, task, counts, options.plan, options.device
        ):
            log.append(run, "speed", rows)
        progress.done(f"{title}: {time.perf_counter() - started:.0f} s")


def _selects(word: str, name: str) -> bool:
    """Whether `word` selects the system `name`; it may be a part of the name."""
    return word == name if word in SYSTEMS else word in name


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "python -m benchmarks", description=(__doc__ or "").split("\n")[0]
    )
    choice: dict[str, Any] = {"nargs": "+", "metavar": "NAME"}
    parser.add_argument("--cases", choices=CASES, **choice, help=", ".join(CASES))
    parser.add_argument("--pairs", choices=PAIRS, **choice, help=", ".join(PAIRS))
    parser.add_argument("--tasks", choices=TASKS, **choice, help=", ".join(TASKS))
    parser.add_argument("--parts", choices=PARTS, **choice, help=", ".join(PARTS))
    parser.add_argument("--systems", **choice, help="names of systems, or parts of names")
    parser.add_argument("--threads", type=int, nargs="+", help="default: 1 and all cores")
    parser.add_argument(
        "--device", choices=LOGS, default="cpu", help="cuda: only the speed is measured"
    )
    parser.add_argument("--budget", type=float, help="seconds for each shape and task")
    parser.add_argument(
        "--quick", action="store_true", help="measure only small shapes, with few samples"
    )
    parser.add_argument("--resume", action="store_true", help="continue the last run")
    parser.add_argument(
        "--report", action="store_true", help="write the page from the log, without measuring"
    )
    logs, pages = ((path.name for path in names.values()) for names in (LOGS, PAGES))
    parser.add_argument("--log", type=Path, help="default: " + " or ".join(logs))
    parser.add_argument("--page", type=Path, help="default: " + " or ".join(pages))
    options = parser.parse_args(arguments)
    chosen = ("cases", "pairs", "tasks", "parts", "systems", "threads", "quick")
    options.complete = not any(getattr(options, name) for name in chosen)
    options.log = options.log or (LOGS[options.device] if options.complete else PARTIAL)
    options.page = options.page or PAGES[options.device]
    on_gpu = options.device == "cuda"
    if on_gpu and not options.report and not torch.cuda.is_available():
        parser.error(f"torch {torch.__version__} finds no CUDA device")
    options.device = torch.device(options.device)
    options.plan = SamplingPlan(budget=0.5, least=3) if options.quick else SamplingPlan()
    if options.budget is not None:
        options.plan = SamplingPlan(budget=options.budget, least=options.plan.least)
    options.cases = options.cases or (QUICK if options.quick else tuple(CASES))
    options.pairs = options.pairs or PAIRS
    options.tasks = options.tasks or tuple(TASKS)
    options.parts = options.parts or (("speed",) if options.quick or on_gpu else PARTS)
    options.systems = options.systems or ("",)
    options.threads = options.threads or ([1] if on_gpu else sorted({1, available_cores()}))
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    options = _options(arguments)
    log = BenchmarkLog(options.log)
    run = log.last_run(finished=True) if options.report else measure(options, log)
    if run is None:
        raise SystemExit(
            f"{options.log.name} has no finished run; run the command without --report first"
        )
    if not options.complete:
        print(report.text(log.rows(run)))
        return
    report.write(log.rows(run), options.page, map(log.rows, log.runs_on_other_processors(run)))
    print(f"wrote {options.page.name}")
