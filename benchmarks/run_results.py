"""Look up the measurements of one run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from .log import Row
from .systems import SYSTEMS

__all__ = ["BenchmarkResults", "Comparison", "Group", "duration", "microseconds", "times"]

Group = tuple[str, str, str, int]
"""Case, kind of transitions, task, number of threads. Systems of a group are timed together."""


class BenchmarkResults:
    """The rows of one run.

    Args:
        rows: rows of the log, in any order.
    """

    def __init__(self, rows: Iterable[Row]) -> None:
        self.rows = list(rows)

    def of(self, kind: str) -> list[Row]:
        return [row for row in self.rows if row["row"] == kind]

    @cached_property
    def start(self) -> Row:
        return next(iter(self.of("start")), {"machine": {}, "systems": []})

    @property
    def device(self) -> str:
        """The type of the device on which the run was made: "cpu" or "cuda"."""
        return str(self.start.get("device", "cpu"))

    def includes(self, system: str) -> bool:
        """Whether the run measured this system; older runs lack newer systems."""
        return any(known["system"] == system for known in self.start["systems"])

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
        """Return the systems that were timed in at least one case."""
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
        """Return the time of `slower` divided by the time of `faster`; None if one is missing."""
        above, below = self.seconds(group, slower), self.seconds(group, faster)
        return None if above is None or below is None else above / below

    def overhead(self, case: str, layer: str, threads: int) -> Row | None:
        """Return the seconds that a layer adds to `bcrf.loss`; None if that was not measured."""
        wanted = {"case": case, "layer": layer, "threads": threads}
        rows = self.of("overhead")
        return next((row for row in rows if wanted.items() <= row.items()), None)

    def faster_systems(self) -> Iterator[tuple[Group, str, str, float]]:
        """Yield (group, ours, rival, ratio) where one of our systems takes longer than a rival."""
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
    """The time of a rival divided by the time of one of our systems, for each case."""

    ours: str
    rival: str
    pairs: str
    task: str

    def ratios(
        self, found: BenchmarkResults, cases: Iterable[str], threads: int
    ) -> dict[str, float | None]:
        groups = {case: (case, self.pairs, self.task, threads) for case in cases}
        return {case: found.ratio(group, self.rival, self.ours) for case, group in groups.items()}


def duration(seconds: float, *others: float) -> str:
    """Format a time with three digits, with other times in brackets in the same unit.

    Example:
        >>> duration(0.0123, 0.012, 0.013)
        '12.3 ms [12, 13]'
    """
    unit, size = next(((u, s) for u, s in (("s", 1.0), ("ms", 1e-3)) if seconds >= s), ("µs", 1e-6))
    rest = f" [{', '.join(_digits(x / size) for x in others)}]" if others else ""
    return f"{_digits(seconds / size)} {unit}{rest}"


def microseconds(seconds: float) -> str:
    """Format a time, or a difference of times, in whole microseconds.

    Example:
        >>> microseconds(6e-5)
        '60 µs'
    """
    return f"{1e6 * seconds:,.0f} µs"


def times(ratio: float) -> str:
    """Format a ratio, for example as "12.3x"."""
    return f"{_digits(ratio)}x"


def _digits(x: float) -> str:
    return f"{x:,.0f}" if x >= 100 else f"{x:.3g}"
