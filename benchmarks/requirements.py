"""Define the requirements on speed and memory, and check whether a run meets them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .cases import CASES, MAIN
from .overhead import OVERHEADS
from .run_results import BenchmarkResults, Comparison, duration, microseconds, times

__all__ = ["REQUIREMENTS", "Requirement", "Verdict", "verdicts"]

ALL = tuple(CASES)
MANY = 100_000
"""Bounds on problems with per-pair scores apply from this number of arcs on. The time of a smaller
problem is mostly the overhead of the call; it is reported in microseconds."""

MEGABYTE = 1e6


@dataclass(frozen=True)
class Requirement:
    """A lower bound on the time of a rival divided by our time.

    Args:
        number: number of the requirement.
        comparison: our system and its rival.
        bound: minimum ratio. If it is below 1, we may take 1 / bound times as long as the rival.
        cases: the bound must hold in each of these cases.
    """

    number: str
    comparison: Comparison
    bound: float
    cases: tuple[str, ...] = ALL

    @property
    def text(self) -> str:
        c = self.comparison
        where = self.cases[0] if len(self.cases) == 1 else f"{len(self.cases)} shapes"
        task = {"loss": "loss + gradient", "peaked": "peaked chains", "normal": "N(0, 1) chains"}
        about = f"{c.pairs}, {task[c.task]}, {where}"
        if self.bound < 1:
            return f"{c.ours} takes at most {1 / self.bound:g}x {c.rival} ({about})"
        return f"{c.ours} at least {self.bound:g}x faster than {c.rival} ({about})"


@dataclass(frozen=True)
class Verdict:
    """The result of checking a requirement.

    Args:
        number, text: number and text of the requirement.
        measured: number of threads -> measured value, as text.
        passed: number of threads -> whether the bound is met; None if it was not measured. The
            mapping is empty if there is no bound.
    """

    number: str
    text: str
    measured: dict[int, str]
    passed: dict[int, bool | None]

    def mark(self, threads: int) -> str:
        if not self.passed:
            return "reported"
        if threads not in self.passed:
            return ""
        return {True: "yes", False: "**no**", None: "?"}[self.passed[threads]]


def _loss(ours: str, rival: str, pairs: str) -> Comparison:
    return Comparison(ours, rival, pairs, "loss")


_LARGE = tuple(name for name, case in CASES.items() if case.arcs >= MANY)
_SMALL_T = tuple(name for name in _LARGE if CASES[name].tags <= 17)
_LARGE_T = tuple(name for name in _LARGE if CASES[name].tags == 64)
_FEW_ARCS = tuple(name for name, case in CASES.items() if case.arcs < MANY)

REQUIREMENTS: tuple[Requirement, ...] = (
    Requirement("1", _loss("crf", "pytorch-crf", "shared"), 60, MAIN),
    Requirement("1", _loss("crf", "pytorch-crf", "shared"), 20),
    Requirement("2", _loss("bregman-10", "pytorch-crf", "shared"), 30, MAIN),
    Requirement("2", _loss("bregman-10", "pytorch-crf", "shared"), 10),
    Requirement("3", _loss("crf", "torch-struct", "per-pair"), 100, _LARGE),
    Requirement("3", _loss("crf", "eager loop", "per-pair"), 15, _SMALL_T),
    Requirement("3", _loss("crf", "eager loop", "per-pair"), 5, _LARGE_T),
    Requirement("3", _loss("bregman-10", "torch-struct", "per-pair"), 40, _LARGE),
    Requirement("3", _loss("bregman-10", "torch.exp", "per-pair"), 1 / 4, _LARGE),
    Requirement("4", Comparison("viterbi", "pytorch-crf", "shared", "peaked"), 80, MAIN),
    Requirement("4", Comparison("viterbi", "pytorch-crf", "shared", "normal"), 80, MAIN),
    Requirement("4", Comparison("certified-10", "pytorch-crf", "shared", "peaked"), 20, MAIN),
    Requirement("6", _loss("bcrf.CRF", "pytorch-crf", "shared"), 60, MAIN),
    Requirement("6", _loss("bcrf.CRF, mask", "pytorch-crf, mask", "shared"), 60, MAIN),
)


GROWTH = 9.0
PEAK = 100 * MEGABYTE


def verdicts(found: BenchmarkResults) -> Iterator[Verdict]:
    """Yield the verdict on every requirement, in the order of their numbers."""
    by_number: dict[str, list[Verdict]] = {}
    for requirement in REQUIREMENTS:
        if not found.includes(requirement.comparison.ours):
            continue
        by_number.setdefault(requirement.number, []).append(_speed(requirement, found))
    by_number.setdefault("3", []).extend(_microseconds(found))
    by_number["5"] = [*_growth(found), *_memory(found)]
    by_number.setdefault("6", []).extend(_overheads(found))
    for number in sorted(by_number):
        yield from by_number[number]


def _speed(requirement: Requirement, found: BenchmarkResults) -> Verdict:
    """Return the verdict on a ratio, judged by its worst case."""
    measured: dict[int, str] = {}
    passed: dict[int, bool | None] = {}
    for threads in found.threads:
        ratios = requirement.comparison.ratios(found, requirement.cases, threads)
        known = {case: ratio for case, ratio in ratios.items() if ratio is not None}
        missing = [case for case in ratios if case not in known]
        text = []
        if known:
            case, worst = min(known.items(), key=lambda item: item[1])
            enough = worst >= requirement.bound
            passed[threads] = None if missing and enough else enough
            shown = times(worst) if requirement.bound >= 1 else f"{times(1 / worst)} as slow"
            text.append(shown + (f" at {case}" if len(requirement.cases) > 1 else ""))
        else:
            passed[threads] = None
        if missing:
            text.append(f"not measured: {', '.join(missing)}")
        measured[threads] = "; ".join(text)
    return Verdict(requirement.number, requirement.text, measured, passed)


def _microseconds(found: BenchmarkResults) -> Iterator[Verdict]:
    """Yield the times of small problems, which have no bound."""
    names = ("crf", "bregman-10", "torch-struct", "eager loop", "torch.exp", "empty function")
    for case in _FEW_ARCS:
        measured = {}
        for threads in found.threads:
            group = (case, "per-pair", "loss", threads)
            seconds = {name: found.seconds(group, name) for name in names}
            measured[threads] = ", ".join(
                f"{name} {'?' if t is None else duration(t)}" for name, t in seconds.items()
            )
        text = f"below {MANY:,} arcs (per-pair, loss + gradient, {case})"
        yield Verdict("3", text, measured, {})


def _growth(found: BenchmarkResults) -> Iterator[Verdict]:
    rows = found.of("growth")
    for name in dict.fromkeys(row["system"] for row in rows):
        measured: dict[int, str] = {}
        passed: dict[int, bool | None] = {}
        for row in rows:
            if row["system"] != name:
                continue
            short, long = row["cases"]
            task = "loss + gradient" if row["task"] == "loss" else "decoding"
            text = f"{name}: {long} costs at most {GROWTH:g}x {short} (shared, {task})"
            ratio = row["seconds"][1] / row["seconds"][0] if "seconds" in row else None
            measured[row["threads"]] = row["error"] if ratio is None else times(ratio)
            passed[row["threads"]] = None if ratio is None else ratio <= GROWTH
        yield Verdict("5", text, measured, passed)


def _memory(found: BenchmarkResults) -> Iterator[Verdict]:
    """Yield the verdicts on peak memory, which is measured with the default number of threads."""
    for row in found.of("memory"):
        if row["system"] not in ("crf", "bregman-10"):
            continue
        text = f"{row['system']}: adds less than 100 MB at {row['case']} (shared, loss + gradient)"
        size = row.get("bytes")
        shown = row["error"] if size is None else f"{size / MEGABYTE:.0f} MB"
        threads = max(found.threads, default=1)
        passed = None if size is None else size < PEAK
        yield Verdict("5", text, {threads: shown}, {threads: passed})


def _overheads(found: BenchmarkResults) -> Iterator[Verdict]:
    """Yield the verdicts on the time that layers add to `bcrf.loss`, for shapes with a bound."""
    if not found.of("overhead"):  # older runs
        return
    for overhead in OVERHEADS:
        for case in CASES:
            limit = overhead.limit(case)
            if limit is None:
                continue
            measured: dict[int, str] = {}
            passed: dict[int, bool | None] = {}
            for threads in found.threads:
                row = found.overhead(case, overhead.layer, threads)
                if row is None or "median" not in row:
                    measured[threads], passed[threads] = f"not measured: {case}", None
                else:
                    measured[threads] = microseconds(row["median"])
                    passed[threads] = row["median"] <= limit
            text = (
                f"{overhead.layer} takes at most {microseconds(limit)} longer than "
                f"{overhead.base} (shared, loss + gradient, {case})"
            )
            yield Verdict("6", text, measured, passed)
