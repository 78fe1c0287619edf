"""All tables of a folder of experiments, and their logs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bcrf.tagger.files import JsonlLog

from .analysis import analysis_jobs
from .experiment import Experiment, ExperimentError
from .jobs import Job, RunContext
from .plans import AnalysisPlan, TimingPlan
from .selection import Selection, run_specs
from .timing_jobs import timing_jobs
from .training_job import TrainingJob

__all__ = ["ExperimentSet"]

_KINDS: dict[str, type[Experiment] | type[TimingPlan] | type[AnalysisPlan]] = {
    "accuracy": Experiment,
    "timing": TimingPlan,
    "analysis": AnalysisPlan,
}


@dataclass(frozen=True)
class ExperimentSet:
    """The tables of a folder, by kind and name.

    Args:
        folder: the folder with the TOML files; the log of a table is `results/NAME.jsonl` in it.
    """

    folder: Path
    experiments: dict[str, Experiment]
    timings: dict[str, TimingPlan]
    analyses: dict[str, AnalysisPlan]

    @classmethod
    def from_dicts(cls, folder: Path, tables: Mapping[str, Mapping[str, Any]]) -> ExperimentSet:
        """Return the set of tables that these values describe, as read from their files.

        Raises:
            ExperimentError: a value is wrong; the message names the table and the key.
        """
        found: dict[str, dict[str, Any]] = {kind: {} for kind in _KINDS}
        for name, values in tables.items():
            rest = dict(values)
            kind = rest.pop("kind", None)
            if kind not in _KINDS:
                raise ExperimentError(f"{name}: kind must be one of {', '.join(_KINDS)}")
            try:
                found[kind][name] = _KINDS[kind].from_dict(name, rest)
            except ValueError as error:
                raise ExperimentError(f"{name}: {error}") from error
        experiment_set = cls(folder, found["accuracy"], found["timing"], found["analysis"])
        plans: list[TimingPlan | AnalysisPlan]
        plans = [*experiment_set.timings.values(), *experiment_set.analyses.values()]
        for plan in plans:
            for source in plan.sources:
                if source not in experiment_set.experiments:
                    raise ExperimentError(f"{plan.name}: there is no accuracy table {source!r}")
        return experiment_set

    @property
    def tables(self) -> list[str]:
        """The names of all tables."""
        return [*self.experiments, *self.timings, *self.analyses]

    def log(self, table: str) -> JsonlLog:
        """Return the log of a table."""
        return JsonlLog(self.folder / "results" / f"{table}.jsonl")

    def jobs(self, table: str, selection: Selection, context: RunContext) -> Iterator[Job]:
        """Yield the selected jobs of a table.

        Raises:
            ExperimentError: the table, or a selected part of it, does not exist.
        """
        if table in self.experiments:
            experiment = self.experiments[table]
            _check([experiment], selection, context)
            for run in run_specs(experiment, selection):
                yield TrainingJob(run, context)
        elif table in self.timings:
            timing = self.timings[table]
            _check([self.experiments[name] for name in timing.sources], selection, context)
            yield from timing_jobs(timing, selection, context)
        elif table in self.analyses:
            analysis = self.analyses[table]
            _check([self.experiments[name] for name in analysis.sources], selection, context)
            yield from analysis_jobs(analysis, selection, context)
        else:
            raise ExperimentError(
                f"there is no table {table!r} in {self.folder}; expected one of "
                f"{', '.join(self.tables) or 'none'}"
            )


def _check(experiments: list[Experiment], selection: Selection, context: RunContext) -> None:
    """Raise ExperimentError if the user names something that no experiment has."""
    selection.check(experiments)
    networks = dict.fromkeys(name for e in experiments for name in e.networks)
    for name in context.pretrained:
        if name not in networks:
            raise ExperimentError(
                f"pretrained: unknown network {name!r}; expected {', '.join(networks)}"
            )
