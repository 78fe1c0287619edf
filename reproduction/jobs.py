"""Run jobs. A job is a piece of work, such as a training run, that adds one row to a log.

Jobs may run in any order. Several processes may share the work: a process locks the folder of a job
while it works on that job.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, reduce
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch

from bcrf.tagger.config_tables import deep_merge
from bcrf.tagger.files import JsonlLog, LockHeldError, LogRow, hold_lock, make_folder
from bcrf.tagger.training import Event
from measurement.machine import hardware, load, provenance, software

from .data_folder import DataFolder, LocatedCorpus
from .experiment import CorpusSpec, Experiment, ExperimentError, TrainingSettings

__all__ = [
    "Job",
    "JobMessage",
    "JobStatus",
    "RunContext",
    "describe_machine",
    "find_row",
    "job_statuses",
    "merge_rows",
    "run_jobs",
]


@dataclass(frozen=True)
class JobMessage:
    """A message about the progress of a job.

    Args:
        kind: "begun", "done", "skipped" or "failed". A job is skipped if its data are missing or
            another process works on it.
        text: the title of the job, and details.
    """

    kind: Literal["begun", "done", "skipped", "failed"]
    text: str


@dataclass(frozen=True)
class RunContext:
    """The inputs that all jobs of a command share.

    Args:
        experiments: name -> experiment.
        data: folder of the corpora.
        output: folder of the training runs.
        device: as for `bcrf.Tagger.load`.
        pretrained: network -> folder or hub name of an encoder, which replaces the encoder that the
            experiment names.
    """

    experiments: Mapping[str, Experiment]
    data: Path
    output: Path
    device: str = "auto"
    pretrained: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def _data_folder(self) -> DataFolder:
        return DataFolder(self.data)

    @cached_property
    def _located(self) -> dict[tuple[str, ...], LocatedCorpus]:
        return {}

    def locate(self, corpus: CorpusSpec) -> LocatedCorpus:
        """Find the files of a corpus, and return their paths."""
        names = tuple(name for names in corpus.files.values() for name in names)
        if names not in self._located:
            self._located[names] = self._data_folder.locate(corpus)
        return self._located[names]

    def overrides(self, network: str) -> TrainingSettings:
        """Return the settings that the command line gives for a network."""
        settings: TrainingSettings = {"training": {"device": self.device}}
        if network in self.pretrained:
            settings["model"] = {"pretrained": self.pretrained[network]}
        return settings


class Job(ABC):
    """A piece of work that adds one row to a log."""

    @property
    @abstractmethod
    def key(self) -> dict[str, Any]:
        """Fields that identify its row in the log."""

    @property
    @abstractmethod
    def title(self) -> str:
        """A short description of the job."""

    @property
    @abstractmethod
    def folder(self) -> Path:
        """The folder that a process locks while it works on the job."""

    @abstractmethod
    def is_done(self, row: LogRow | None) -> bool:
        """Whether the logged row is complete; None: the log has no row."""

    @abstractmethod
    def missing(self, row: LogRow | None) -> str | None:
        """Return a text that names the missing inputs of the job; None if none is missing."""

    @abstractmethod
    def run(self, row: LogRow | None) -> Generator[Event, None, LogRow]:
        """Compute what the logged row lacks. Yield training events; return the row to log."""

    def outcome(self, row: LogRow) -> str:
        """Return a short text with the result of a finished job; "" if there is none."""
        return ""

    def discard(self) -> None:  # noqa: B027
        """Remove what earlier runs of the job have left in its folder."""

    def clean_up(self) -> None:  # noqa: B027
        """Remove the files that are not needed after the row has been logged."""


class JobStatus(NamedTuple):
    """The state of a job, with details: "done", "begun", "to do", "missing" or "differs".

    A job is "missing" if its data or its model are. It "differs" if the logged row was made with
    other settings.
    """

    title: str
    state: str
    detail: str = ""


def run_jobs(
    jobs: Iterable[Job], log: JsonlLog, again: bool = False
) -> Iterator[Event | JobMessage]:
    """Run the jobs that are not in the log, one after the other; with `again`, run all jobs.

    A job is skipped if its data are missing. If a job fails, the next one runs nevertheless. Each
    reason for skipping is reported once. The caller may close the generator at any time.
    """
    reported: set[str] = set()
    for job in jobs:
        row = None if again else find_row(log, job.key)
        if row is not None and job.is_done(row):
            yield _done(job, row)
            continue
        missing = job.missing(row)
        if missing is not None:
            if missing not in reported:
                yield JobMessage("skipped", f"{job.title}: {missing}")
            reported.add(missing)
            continue
        make_folder(job.folder)
        try:
            with hold_lock(job.folder / ".lock", wait=False):
                yield from _run_job(job, log, again)
        except LockHeldError:
            yield JobMessage("skipped", f"{job.title}: another process works on this run")


def _run_job(job: Job, log: JsonlLog, again: bool) -> Iterator[Event | JobMessage]:
    """Run one job. The caller has locked its folder."""
    if again:
        job.discard()
    row = None if again else find_row(log, job.key)  # another process may have finished the job
    if row is not None and job.is_done(row):
        yield _done(job, row)
        return
    yield JobMessage("begun", job.title)
    origin = provenance("reproduction")  # before the run: the checkout may change meanwhile
    try:
        result = yield from job.run(row)
    except FloatingPointError as error:
        yield JobMessage("failed", f"{job.title}: {error}")
        return
    except OSError as error:
        reason = str(error)
        if not reason.startswith("pretrained:"):
            raise
        yield JobMessage("skipped", f"{job.title}: {reason}")
        return
    log.append({**job.key, **origin, **result})
    job.clean_up()
    finished = find_row(log, job.key)
    assert finished is not None
    yield _done(job, finished)


def _done(job: Job, row: LogRow) -> JobMessage:
    outcome = job.outcome(row)
    return JobMessage("done", f"{job.title}: {outcome}" if outcome else job.title)


def job_statuses(jobs: Iterable[Job], log: JsonlLog) -> Iterator[JobStatus]:
    """Yield the state of each job without running any."""
    from .training_job import epochs_done

    for job in jobs:
        row = find_row(log, job.key)
        try:
            done = job.is_done(row)
        except ExperimentError as error:
            yield JobStatus(job.title, "differs", str(error))
            continue
        if row is not None and done:
            yield JobStatus(job.title, "done", job.outcome(row))
            continue
        missing = job.missing(row)
        if missing is not None:
            yield JobStatus(job.title, "missing", missing)
        elif row is not None:
            yield JobStatus(job.title, "begun", "decoders were added")
        elif epochs := epochs_done(job.folder):
            yield JobStatus(job.title, "begun", f"{epochs} epoch{'' if epochs == 1 else 's'}")
        else:
            yield JobStatus(job.title, "to do")


def find_row(log: JsonlLog, key: Mapping[str, Any]) -> LogRow | None:
    """Return the row of a log with these fields. If several rows have them, merge those rows."""
    return merge_rows(
        row for row in log.rows() if all(row.get(name) == value for name, value in key.items())
    )


def merge_rows(rows: Iterable[LogRow]) -> LogRow | None:
    """Merge the rows of one job into one; None without rows.

    A row that describes its machine holds all results of a run, and replaces all rows before it.
    Other rows add the results of further decoders: nested tables are merged.
    """
    found: list[LogRow] = []
    for row in rows:
        if "machine" in row:
            found.clear()
        found.append(row)
    return reduce(deep_merge, found) if found else None


def describe_machine(device: torch.device) -> dict[str, Any]:
    """Return the software versions, the machine and its load, for the log."""
    return {**software(), "load": load(), "machine": hardware(device)}
