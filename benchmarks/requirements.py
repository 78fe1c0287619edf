"""What must be true of a run, and whether it is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .cases import CASES
from .findings import Comparison, Findings, duration, times

__all__ = ["REQUIREMENTS", "Requirement", "Verdict", "verdicts"]

ALL = tuple(CASES)
MAIN = ("32x64x17",)
MANY = 100_000
"""Arcs from which on per-pair scores have bounds; below, the overhead of a call is what is
measured, and it is reported in microseconds."""

MEGABYTE = 1e6


@dataclass(frozen=True)
class Requirement:
    """`ours` is at least `bound` times as fast as the rival (a bound below 1: at most 1 / bound
    times as slow) in each of the cases."""

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
    """Measured values by number of threads, and whether they pass: None if unknown; none at all if
    there is no bound."""

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
)

GROWTH = 9.0
PEAK = 100 * MEGABYTE


def verdicts(found: Findings) -> Iterator[Verdict]:
    """All of them, in the order of their numbers."""
    by_number: dict[str, list[Verdict]] = {}
    for requirement in REQUIREMENTS:
        by_number.setdefault(requirement.number, []).append(_speed(requirement, found))
    by_number["3"] += _microseconds(found)
    by_number["5"] = [*_growth(found), *_memory(found)]
    for number in sorted(by_number):
        yield from by_number[number]


def _speed(requirement: Requirement, found: Findings) -> Verdict:
    """The worst case decides."""
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


def _microseconds(found: Findings) -> Iterator[Verdict]:
    """Below the number of arcs that matters, times are reported without a bound."""
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


def _growth(found: Findings) -> Iterator[Verdict]:
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


def _memory(found: Findings) -> Iterator[Verdict]:
    """Measured in processes of their own, with the default number of threads."""
    for row in found.of("memory"):
        if row["system"] not in ("crf", "bregman-10"):
            continue
        text = f"{row['system']}: adds less than 100 MB at {row['case']} (shared, loss + gradient)"
        size = row.get("bytes")
        shown = row["error"] if size is None else f"{size / MEGABYTE:.0f} MB"
        threads = max(found.threads, default=1)
        passed = None if size is None else size < PEAK
        yield Verdict("5", text, {threads: shown}, {threads: passed})
