"""The logs, as the report reads them."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from .book import Book
from .log import Row, merge

__all__ = ["Place", "Results", "Statistic"]

Place = tuple[str, str, str, str]
"""Experiment, variant, network, corpus."""

# What tells rows of one log apart.
_KEY = (
    *("source", "corpus", "network", "variant", "objective", "seed"),
    *("length", "tags", "batch", "device", "threads"),
)


@dataclass(frozen=True)
class Statistic:
    """Mean and standard deviation (None: of one number) over seeds."""

    mean: float
    deviation: float | None
    count: int

    @classmethod
    def of(cls, values: Iterable[float]) -> Statistic | None:
        """None of nothing."""
        numbers = list(values)
        if not numbers:
            return None
        deviation = statistics.stdev(numbers) if len(numbers) > 1 else None
        return cls(statistics.fmean(numbers), deviation, len(numbers))


class Results:
    """What has been measured.

    Args:
        rows: of each table, in the order of its log.
    """

    def __init__(self, rows: dict[str, list[Row]]) -> None:
        self.counts = {table: len(found) for table, found in rows.items()}
        self.rows = {table: _merged(found) for table, found in rows.items()}

    @classmethod
    def read(cls, book: Book) -> Results:
        return cls({table: book.log(table).rows() for table in book.tables})

    def of(self, place: Place) -> Iterator[Row]:
        """The runs of an experiment at a place."""
        table, variant, network, corpus = place
        wanted = {"variant": variant, "network": network, "corpus": corpus}
        for row in self.rows.get(table, ()):
            if all(row[name] == value for name, value in wanted.items()):
                yield row

    def objectives(self, place: Place) -> list[str]:
        return list(dict.fromkeys(row["objective"] for row in self.of(place)))

    def seeds(self, place: Place, objective: str, decoder: str, field: str) -> dict[int, float]:
        """Numbers of the test file by seed, in percent."""
        found = {}
        for row in self.of(place):
            test = row["evaluations"]["test"]
            value = test["decoders"].get(decoder, {}).get(field)
            if row["objective"] == objective and value is not None:
                whole = test["sentences"] if field == "ill_formed" else 1
                found[row["seed"]] = 100 * value / max(1, whole)
        return found

    def statistic(
        self, place: Place, objective: str, decoder: str, field: str = "score"
    ) -> Statistic | None:
        return Statistic.of(self.seeds(place, objective, decoder, field).values())

    def difference(
        self, place: Place, one: tuple[str, str], other: tuple[str, str]
    ) -> tuple[float, float] | None:
        """Mean scores of two (objective, decoder) over the seeds that both have been run with."""
        first, second = (self.seeds(place, *pair, "score") for pair in (one, other))
        both = first.keys() & second.keys()
        if not both:
            return None
        return (
            statistics.fmean(first[seed] for seed in both),
            statistics.fmean(second[seed] for seed in both),
        )


def _merged(rows: Iterable[Row]) -> list[Row]:
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row.get(name) for name in _KEY), []).append(row)
    united = map(merge, groups.values())
    return [row for row in united if row is not None]
