"""Read the rows of all logs for the report."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from bcrf.tagger.files import LogRow

from .experiment_set import ExperimentSet
from .jobs import merge_rows

__all__ = ["Results", "RunGroup", "Statistic"]

RunGroup = tuple[str, str, str, str]
"""Experiment, variant, network, corpus. The runs of a group differ in objective and seed."""

# Fields that identify a row of a log.
_KEY = (
    *("source", "corpus", "network", "variant", "objective", "seed"),
    *("length", "tags", "batch", "device", "threads"),
)


@dataclass(frozen=True)
class Statistic:
    """Mean and standard deviation over seeds. A single seed has no standard deviation."""

    mean: float
    deviation: float | None
    count: int

    @classmethod
    def of(cls, values: Iterable[float]) -> Statistic | None:
        """Return the statistic of these numbers; None if there are no numbers."""
        numbers = list(values)
        if not numbers:
            return None
        deviation = statistics.stdev(numbers) if len(numbers) > 1 else None
        return cls(statistics.fmean(numbers), deviation, len(numbers))


class Results:
    """All logged results.

    Args:
        rows: table -> its rows, in the order of its log.
    """

    def __init__(self, rows: dict[str, list[LogRow]]) -> None:
        self.counts = {table: len(found) for table, found in rows.items()}
        self.rows = {table: _merged(found) for table, found in rows.items()}

    @classmethod
    def read(cls, experiment_set: ExperimentSet) -> Results:
        """Read the logs of all tables."""
        return cls({table: experiment_set.log(table).rows() for table in experiment_set.tables})

    def of(self, group: RunGroup) -> Iterator[LogRow]:
        """Yield the training runs of a group."""
        table, variant, network, corpus = group
        wanted = {"variant": variant, "network": network, "corpus": corpus}
        for row in self.rows.get(table, ()):
            if all(row[name] == value for name, value in wanted.items()):
                yield row

    def objectives(self, group: RunGroup) -> list[str]:
        """Return the objectives with which the models of a group were trained."""
        return list(dict.fromkeys(row["objective"] for row in self.of(group)))

    def seeds(self, group: RunGroup, objective: str, decoder: str, field: str) -> dict[int, float]:
        """Return a logged number of the test file for each seed, in percent.

        A table that leaves out the test file gives the numbers of the dev file.
        """
        found = {}
        for row in self.of(group):
            evaluations = row["evaluations"]
            test = evaluations["test" if "test" in evaluations else "dev"]
            value = test["decoders"].get(decoder, {}).get(field)
            if row["objective"] == objective and value is not None:
                total = test["sentences"] if field == "ill_formed" else 1
                found[row["seed"]] = 100 * value / max(1, total)
        return found

    def statistic(
        self, group: RunGroup, objective: str, decoder: str, field: str = "score"
    ) -> Statistic | None:
        """Return the statistic over all seeds of a logged number of the test file."""
        return Statistic.of(self.seeds(group, objective, decoder, field).values())

    def difference(
        self, group: RunGroup, one: tuple[str, str], other: tuple[str, str]
    ) -> tuple[float, float] | None:
        """Return the mean scores of two (objective, decoder) pairs over their common seeds."""
        first, second = (self.seeds(group, *pair, "score") for pair in (one, other))
        both = first.keys() & second.keys()
        if not both:
            return None
        return (
            statistics.fmean(first[seed] for seed in both),
            statistics.fmean(second[seed] for seed in both),
        )


def _merged(rows: Iterable[LogRow]) -> list[LogRow]:
    groups: dict[tuple[Any, ...], list[LogRow]] = {}
    for row in rows:
        groups.setdefault(tuple(row.get(name) for name in _KEY), []).append(row)
    merged = map(merge_rows, groups.values())
    return [row for row in merged if row is not None]
