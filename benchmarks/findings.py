"""One run of the log, by what was measured."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from .log import Row
from .systems import SYSTEMS

__all__ = ["Comparison", "Findings", "Group", "duration", "times"]

Group = tuple[str, str, str, int]
"""Case, kind of transitions, task, threads: what was measured together."""


class Findings:
    def __init__(self, rows: Iterable[Row]) -> None:
        self.rows = list(rows)

    def of(self, kind: str) -> list[Row]:
        return [row for row in self.rows if row["row"] == kind]

    @cached_property
    def start(self) -> Row:
        return next(iter(self.of("start")), {"machine": {}, "systems": []})

    @cached_property
    def _speed(self) -> dict[tuple[str, str, str, int, str], Row]:
        keys = ("case", "pairs", "task", "threads", "system")
        return {tuple(row[key] for key in keys): row for row in self.of("speed")}

    @cached_property
    def threads(self) -> list[int]:
        return sorted({row["threads"] for row in self.rows if "threads" in row})

    @cached_property
    def groups(self) -> list[Group]:
        return list(dict.fromkeys(key[:4] for key in self._speed))

    def systems(self, pairs: str, task: str, threads: int) -> list[str]:
        """Those that have a time in some case."""
        wanted = (pairs, task, threads)
        names = {
            key[4] for key, row in self._speed.items() if key[1:4] == wanted and "median" in row
        }
        return [name for name in SYSTEMS if name in names]

    def row(self, group: Group, system: str) -> Row | None:
        return self._speed.get((*group, system))

    def seconds(self, group: Group, system: str) -> float | None:
        row = self.row(group, system) or {}
        return float(row["median"]) if "median" in row else None

    def ratio(self, group: Group, slower: str, faster: str) -> float | None:
        """How many times longer `slower` takes."""
        above, below = self.seconds(group, slower), self.seconds(group, faster)
        return None if above is None or below is None else above / below

    def losses(self) -> Iterator[tuple[Group, str, str, float]]:
        """Where one of ours takes longer than a peer or floor: group, ours, rival, how much."""
        for group in self.groups:
            timed = [name for name in SYSTEMS if self.seconds(group, name) is not None]
            ours = [name for name in timed if SYSTEMS[name].role == "ours"]
            for name in ours:
                for rival in timed:
                    ratio = self.ratio(group, name, rival)
                    if SYSTEMS[rival].role != "ours" and ratio is not None and ratio > 1:
                        yield group, name, rival, ratio


@dataclass(frozen=True)
class Comparison:
    """How many times longer a rival takes than one of ours, case by case."""

    ours: str
    rival: str
    pairs: str
    task: str

    def ratios(
        self, found: Findings, cases: Iterable[str], threads: int
    ) -> dict[str, float | None]:
        groups = {case: (case, self.pairs, self.task, threads) for case in cases}
        return {case: found.ratio(group, self.rival, self.ours) for case, group in groups.items()}


def duration(seconds: float, *others: float) -> str:
    """With three digits: 0.0123 -> 12.3 ms; others, in the same unit, stand in brackets."""
    unit, size = next(((u, s) for u, s in (("s", 1.0), ("ms", 1e-3)) if seconds >= s), ("µs", 1e-6))
    rest = f" [{', '.join(_digits(x / size) for x in others)}]" if others else ""
    return f"{_digits(seconds / size)} {unit}{rest}"


def times(ratio: float) -> str:
    return f"{_digits(ratio)}x"


def _digits(x: float) -> str:
    return f"{x:,.0f}" if x >= 100 else f"{x:.3g}"
