"""All tables of a folder of experiments, and their logs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .analysis import analysis_jobs
from .experiment import Experiment, ExperimentError
from .grid import Selection, cells
from .jobs import Job, Workplace
from .log import Log
from .plans import AnalysisPlan, TimingPlan
from .running import TrainingJob
from .timing import timing_jobs

__all__ = ["Book"]

_KINDS: dict[str, type[Experiment] | type[TimingPlan] | type[AnalysisPlan]] = {
    "accuracy": Experiment,
    "timing": TimingPlan,
    "analysis": AnalysisPlan,
}


@dataclass(frozen=True)
class Book:
    """Tables by name, of each kind.

    Args:
        folder: where they are; the log of a table is `results/NAME.jsonl` there.
    """

    folder: Path
    experiments: dict[str, Experiment]
    timings: dict[str, TimingPlan]
    analyses: dict[str, AnalysisPlan]

    @classmethod
    def from_dicts(cls, folder: Path, tables: Mapping[str, Mapping[str, Any]]) -> Book:
        """The book of these tables, as read from files."""
        read: dict[str, dict[str, Any]] = {kind: {} for kind in _KINDS}
        for name, values in tables.items():
            rest = dict(values)
            kind = rest.pop("kind", None)
            if kind not in _KINDS:
                raise ExperimentError(f"{name}: kind must be one of {', '.join(_KINDS)}")
            try:
                read[kind][name] = _KINDS[kind].from_dict(name, rest)
            except ValueError as error:
                raise ExperimentError(f"{name}: {error}") from error
        book = cls(folder, read["accuracy"], read["timing"], read["analysis"])
        plans: list[TimingPlan | AnalysisPlan] = [*book.timings.values(), *book.analyses.values()]
        for plan in plans:
            for source in plan.sources:
                if source not in book.experiments:
                    raise ExperimentError(f"{plan.name}: there is no table {source!r}")
        return book

    @property
    def tables(self) -> list[str]:
        return [*self.experiments, *self.timings, *self.analyses]

    def log(self, table: str) -> Log:
        return Log(self.folder / "results" / f"{table}.jsonl")

    def jobs(self, table: str, selection: Selection, workplace: Workplace) -> Iterator[Job]:
        """The work of a table that is chosen.

        Raises:
            ExperimentError: there is no such table, or a choice that it has not.
        """
        if table in self.experiments:
            experiment = self.experiments[table]
            _check([experiment], selection, workplace)
            for cell in cells(experiment, selection):
                yield TrainingJob(cell, workplace)
        elif table in self.timings:
            timing = self.timings[table]
            _check([self.experiments[name] for name in timing.sources], selection, workplace)
            yield from timing_jobs(timing, selection, workplace)
        elif table in self.analyses:
            analysis = self.analyses[table]
            _check([self.experiments[name] for name in analysis.sources], selection, workplace)
            yield from analysis_jobs(analysis, selection, workplace)
        else:
            raise ExperimentError(
                f"there is no table {table!r} in {self.folder}; expected one of "
                f"{', '.join(self.tables) or 'none'}"
            )


def _check(experiments: list[Experiment], selection: Selection, workplace: Workplace) -> None:
    """Raise where the user names what none of these experiments has."""
    selection.check(experiments)
    networks = dict.fromkeys(name for e in experiments for name in e.networks)
    for name in workplace.pretrained:
        if name not in networks:
            raise ExperimentError(f"pretrained: {name!r} is none of {', '.join(networks)}")
