"""Speed of all systems on all cases, and everything else that the page shows.

    python -m benchmarks                # measures all, logs, and writes docs/benchmarks.md
    python -m benchmarks --resume       # goes on where the last run stopped
    python -m benchmarks --report       # writes the page from the log
    python -m benchmarks --cases 32x64x17 --tasks loss --threads 1 --budget 2

A run with a choice of cases, systems or the like is no run for the page: it has a log of its own
and prints what it found.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from . import peers, report
from .cases import CASES, PAIRS, QUICK, TASKS, Case, make
from .checking import Judge
from .depth import depths
from .log import Log, Row
from .machine import cores, machine, participants
from .memory import growth, memory
from .systems import SYSTEMS, System, brief
from .tagging import tagging
from .timing import Plan, Timing, interleave, threads

__all__ = ["main", "measure_group"]

ROOT = Path(__file__).parent
LOG = ROOT / "results" / "speed.jsonl"
PARTIAL = ROOT / "results" / "partial.jsonl"
PAGE = ROOT.parent / "docs" / "benchmarks.md"
PARTS = ("speed", "growth", "depth", "memory", "tagging")


def measure_group(
    systems: Sequence[System],
    case: Case,
    pairs: Any,
    task: str,
    counts: Sequence[int],
    plan: Plan,
) -> Iterator[list[Row]]:
    """Check the systems on one problem, then time them together: rows for each thread count."""
    problem = make(case, pairs, task)
    judge = Judge(problem, task)
    about = {"case": case.name, "pairs": pairs, "task": task}
    facts: dict[str, Row] = {}
    calls = {}
    with threads(1):
        for system in systems:
            call = system.prepare(problem, task)
            if call is None:
                continue
            if isinstance(call, str):
                facts[system.name] = {"error": peers.error_of(system.package) or call}
                continue
            facts[system.name] = judge.verdict(system, call)
            if "error" not in facts[system.name]:
                calls[system.name] = call
    for count in counts:
        with threads(count):
            found = interleave(calls, plan)
        yield [
            {**about, "threads": count, "system": name, **fact, **_numbers(found.get(name))}
            for name, fact in facts.items()
        ]


def _numbers(timing: Timing | None) -> Row:
    if timing is None:
        return {}
    if timing.error is not None:
        return {"error": brief(timing.error)}
    return timing.numbers


class Progress:
    """What is going on: one living line in a terminal, plain lines elsewhere."""

    def __init__(self) -> None:
        self.live = sys.stdout.isatty()

    def now(self, text: str) -> None:
        if self.live:
            print(f"\r\033[K{text} ...", end="", flush=True)

    def done(self, text: str) -> None:
        print(f"\r\033[K{text}" if self.live else text, flush=True)


def measure(options: argparse.Namespace, log: Log) -> str:
    """Measure what is not in the log yet, and return the name of the run."""
    resumed = log.last() if options.resume else None
    run = resumed or time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    if not resumed:
        about = {"machine": machine(), "budget": options.plan.budget}
        log.append(run, "start", [{**about, "systems": participants()}])
    warnings.filterwarnings("ignore", category=UserWarning)  # of peers, about a newer torch
    done = log.rows(run)
    if "speed" in options.parts:
        _speed(options, log, run, done)
    others: dict[str, Callable[[], Iterable[Row]]] = {
        "growth": lambda: growth(options.plan, options.threads),
        "depth": depths,
        "memory": memory,
        "tagging": lambda: tagging(options.plan, options.threads),
    }
    progress = Progress()
    for part, rows in others.items():
        if part in options.parts and not any(row["row"] == part for row in done):
            progress.now(part)
            log.append(run, part, list(rows()))
            progress.done(f"{part}: done")
    log.append(run, "end", [{}])
    return run


def _speed(options: argparse.Namespace, log: Log, run: str, done: list[Row]) -> None:
    keys = ("case", "pairs", "task", "threads")
    known = {tuple(row[key] for key in keys) for row in done if row["row"] == "speed"}
    groups = [(c, p, t) for c in options.cases for p in options.pairs for t in options.tasks]
    systems = [s for s in SYSTEMS.values() if any(_meant(word, s.name) for word in options.systems)]
    progress = Progress()
    for i, (case, pairs, task) in enumerate(groups, 1):
        counts = [n for n in options.threads if (case, pairs, task, n) not in known]
        if not counts:
            continue
        title = f"[{i}/{len(groups)}] {case}, {pairs}, {TASKS[task]}"
        progress.now(title)
        started = time.perf_counter()
        for rows in measure_group(systems, CASES[case], pairs, task, counts, options.plan):
            log.append(run, "speed", rows)
        progress.done(f"{title}: {time.perf_counter() - started:.0f} s")


def _meant(word: str, name: str) -> bool:
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
    parser.add_argument("--systems", **choice, help="names, or parts of names")
    parser.add_argument("--threads", type=int, nargs="+", help="default: 1 and all cores")
    parser.add_argument("--budget", type=float, help="seconds for each group of systems")
    parser.add_argument("--quick", action="store_true", help="a look: small cases, few samples")
    parser.add_argument("--resume", action="store_true", help="go on with the last run")
    parser.add_argument("--report", action="store_true", help="only write the page")
    parser.add_argument("--log", type=Path, help="default: " + "/".join(LOG.parts[-3:]))
    parser.add_argument("--page", type=Path, default=PAGE, help="/".join(PAGE.parts[-2:]))
    options = parser.parse_args(arguments)
    chosen = ("cases", "pairs", "tasks", "parts", "systems", "threads", "quick")
    options.complete = not any(getattr(options, name) for name in chosen)
    options.log = options.log or (LOG if options.complete else PARTIAL)
    options.plan = Plan(budget=0.5, least=3) if options.quick else Plan()
    if options.budget is not None:
        options.plan = Plan(budget=options.budget, least=options.plan.least)
    options.cases = options.cases or (QUICK if options.quick else tuple(CASES))
    options.pairs = options.pairs or PAIRS
    options.tasks = options.tasks or tuple(TASKS)
    options.parts = options.parts or (("speed",) if options.quick else PARTS)
    options.systems = options.systems or ("",)
    options.threads = options.threads or sorted({1, cores()})
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    options = _options(arguments)
    log = Log(options.log)
    run = log.last(finished=True) if options.report else measure(options, log)
    if run is None:
        raise SystemExit(f"{options.log.name} has no finished run: measure first")
    if not options.complete:
        print(report.text(log.rows(run)))
        return
    report.write(log.rows(run), options.page, map(log.rows, log.elsewhere(run)))
    print(f"wrote {options.page.name}")
