"""Pieces of work that end with a row in a log, in any order, by any number of processes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from ..training import Event
from .experiment import Corpus, Experiment, Settings
from .files import CorpusFiles, DataFolder
from .locking import hold
from .log import Log, Row

__all__ = ["Job", "Notice", "Workplace", "work"]


@dataclass(frozen=True)
class Notice:
    """What happens to a piece of work.

    Args:
        kind: "begun", "done", "skipped" (what it needs is not there) or "failed".
        text: in words.
    """

    kind: Literal["begun", "done", "skipped", "failed"]
    text: str


@dataclass(frozen=True)
class Workplace:
    """What work is done with.

    Args:
        experiments: by name.
        data: folder of the corpora.
        output: folder of the training runs.
        device: as for `bcrf.Tagger.load`.
        pretrained: folder or hub name of the encoder, by network, in place of the experiment's.
    """

    experiments: Mapping[str, Experiment]
    data: Path
    output: Path
    device: str = "auto"
    pretrained: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def _data(self) -> DataFolder:
        return DataFolder(self.data)

    @cached_property
    def _found(self) -> dict[tuple[str, ...], CorpusFiles]:
        return {}

    def files(self, corpus: Corpus) -> CorpusFiles:
        names = tuple(name for names in corpus.files.values() for name in names)
        if names not in self._found:
            self._found[names] = self._data.corpus(corpus)
        return self._found[names]

    def overrides(self, network: str) -> Settings:
        """What the user has chosen for a network."""
        settings: Settings = {"training": {"device": self.device}}
        if network in self.pretrained:
            settings["model"] = {"pretrained": self.pretrained[network]}
        return settings


class Job(ABC):
    """A piece of work."""

    @property
    @abstractmethod
    def key(self) -> dict[str, Any]:
        """By which its row is found in the log."""

    @property
    @abstractmethod
    def title(self) -> str:
        """What it is, in a few words."""

    @property
    @abstractmethod
    def folder(self) -> Path:
        """In which only one process works on it."""

    @abstractmethod
    def is_done(self, row: Row | None) -> bool:
        """Whether the log, which has this row of it, has all of it."""

    @abstractmethod
    def missing(self, row: Row | None) -> str | None:
        """What is not there, in words, so that it cannot be done; None: nothing."""

    @abstractmethod
    def run(self, row: Row | None) -> Generator[Event, None, Row]:
        """Do what the log does not have; tells what happens, and returns what to log."""

    def tidy(self) -> None:  # noqa: B027
        """Remove what nobody needs once the row is in the log."""


def work(jobs: Iterable[Job], log: Log) -> Iterator[Event | Notice]:
    """Do what is not in the log, one after the other.

    It may be stopped at any time. What lacks its data is skipped, what fails as well; each reason
    is told once.
    """
    told: set[str] = set()
    for job in jobs:
        row = log.find(job.key)
        if job.is_done(row):
            continue
        missing = job.missing(row)
        if missing is not None:
            if missing not in told:
                yield Notice("skipped", f"{job.title}: {missing}")
            told.add(missing)
            continue
        with hold(job.folder) as mine:
            if not mine:
                yield Notice("skipped", f"{job.title}: another process is at it")
                continue
            row = log.find(job.key)  # another process may have done it by now
            if job.is_done(row):
                continue
            yield Notice("begun", job.title)
            try:
                result = yield from job.run(row)
            except FloatingPointError as error:
                yield Notice("failed", f"{job.title}: {error}")
                continue
            except OSError as error:
                reason = str(error)
                if not reason.startswith("pretrained:"):
                    raise
                yield Notice("skipped", f"{job.title}: {reason}")
                continue
            log.append({**job.key, **result})
            job.tidy()
            yield Notice("done", job.title)
