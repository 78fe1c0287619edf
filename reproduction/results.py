"""Read the rows of all logs for the report."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from bcrf.tagger.files import LogRow

from .experiment_set import ExperimentSet
from .jobs import merge_rows

__all__ = ["NOTHING_RUN", "Results", "RunGroup", "Statistic"]

NOTHING_RUN = "Nothing was run yet.\n"
"""What the report says in place of a table without results."""

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
        return cls.of_some(numbers) if numbers else None

    @classmethod
    def of_some(cls, numbers: Sequence[float]) -> Statistic:
        """Return the statistic of at least one number."""
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

    def paired_scores(
        self, group: RunGroup, one: tuple[str, str], other: tuple[str, str]
    ) -> list[tuple[float, float]]:
        """Return the scores of two (objective, decoder) pairs for each of their common seeds."""
        first, second = (self.seeds(group, *pair, "score") for pair in (one, other))
        return [(first[seed], second[seed]) for seed in sorted(first.keys() & second.keys())]

    def gaps(self, group: RunGroup, one: tuple[str, str], other: tuple[str, str]) -> list[float]:
        """Return the difference of two scores, `one` - `other`, for each common seed."""
        return [first - second for first, second in self.paired_scores(group, one, other)]

    def dev_scores(self, group: RunGroup, objective: str) -> list[float]:
        """Return the best score on dev of each run, in percent."""
        return [100 * max(training["dev"]) for training in self._trainings(group, objective)]

    def best_epochs(self, group: RunGroup, objective: str) -> list[int]:
        """Return the epoch with the best score on dev of each run."""
        return [training["best_epoch"] for training in self._trainings(group, objective)]

    def calibration_errors(self, group: RunGroup, objective: str) -> list[float]:
        """Return the expected calibration error on test of each run that has one, in percent."""
        return [
            100 * row["evaluations"]["test"]["calibration"]["ece"]
            for row in self.of(group)
            if row["objective"] == objective and "calibration" in row["evaluations"].get("test", {})
        ]

    def _trainings(self, group: RunGroup, objective: str) -> list[dict[str, Any]]:
        return [row["training"] for row in self.of(group) if row["objective"] == objective]


def _merged(rows: Iterable[LogRow]) -> list[LogRow]:
    groups: dict[tuple[Any, ...], list[LogRow]] = {}
    for row in rows:
        groups.setdefault(tuple(row.get(name) for name in _KEY), []).append(row)
    merged = map(merge_rows, groups.values())
    return [row for row in merged if row is not None]
