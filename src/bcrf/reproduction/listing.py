"""What of a table is done, begun and missing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from .jobs import Job
from .log import Log
from .running import progress_of

__all__ = ["Progress", "progress"]


class Progress(NamedTuple):
    """A piece of work, its state ("done", "begun", "to do" or "missing") and what there is to say
    of it."""

    title: str
    state: str
    detail: str = ""


def progress(jobs: Iterable[Job], log: Log) -> Iterator[Progress]:
    """The state of each piece of work; nothing is run."""
    for job in jobs:
        row = log.find(job.key)
        if job.is_done(row):
            yield Progress(job.title, "done")
            continue
        missing = job.missing(row)
        if missing is not None:
            yield Progress(job.title, "missing", missing)
        elif row is not None:
            yield Progress(job.title, "begun", "decoders were added")
        elif epochs := progress_of(job.folder):
            yield Progress(job.title, "begun", f"{epochs} epoch{'' if epochs == 1 else 's'}")
        else:
            yield Progress(job.title, "to do")
