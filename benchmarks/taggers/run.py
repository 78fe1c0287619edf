"""Train and measure taggers, one process for each stage, and log the results."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from measurement.machine import hardware, load, software

from ..log import BenchmarkLog, Row
from ..peers import error_of
from ..systems import brief
from .corpora import CORPORA, TaggerData
from .install import ERRORS
from .job import TaggerJob
from .systems import ROOT, SYSTEMS, TaggerSystem
from .worker import result_path

__all__ = ["Plan", "StageError", "finished_rows", "measure", "run_stage"]

STARTS = 3
"""How often the start-up is measured. The stage before has filled the caches of the disk."""

TAGGING_THREADS = 1

_THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
)
# Taggers are trained from scratch. Without these, flair and stanza would look for downloads.
_OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}


class StageError(RuntimeError):
    """A stage failed; the message is the last line of its output."""


@dataclass(frozen=True)
class Plan:
    """What a command measures.

    Args:
        systems, corpora, seeds: names of systems and corpora, and seeds of trainings.
        threads: number of threads of a training. Taggers tag with one thread.
        limit: seconds after which a stage is stopped.
        again: whether to repeat what the log has.
        keep: folder in which models and outputs are kept; None: they are deleted.
    """

    systems: Sequence[str]
    corpora: Sequence[str]
    seeds: Sequence[int]
    threads: int = 1
    limit: float = 4 * 3600
    again: bool = False
    keep: Path | None = None


Key = tuple[str, str, int, int]
"""System, corpus, seed, number of threads of the training."""


def finished_rows(rows: Sequence[Row]) -> dict[Key, Row]:
    """Return the last row of each combination that was measured without an error."""
    return {_key(row): row for row in rows if "error" not in row}


def _key(row: Row) -> Key:
    return row["system"], row["corpus"], row["seed"], row["threads"]


def measure(log: BenchmarkLog, plan: Plan, corpora: Mapping[str, TaggerData]) -> Iterator[Row]:
    """Measure what the log does not have; log and yield one row for each training.

    A combination whose last row is an error is tried again.
    """
    run = datetime.now(timezone.utc).strftime("%Y%m%d-%H%M%S")
    finished = {} if plan.again else finished_rows(log.rows())
    for corpus in plan.corpora:
        for seed in plan.seeds:
            for name in plan.systems:
                if CORPORA[corpus].task not in SYSTEMS[name].tasks:
                    continue
                row: Row = {
                    "system": name,
                    "corpus": corpus,
                    "seed": seed,
                    "threads": plan.threads,
                }
                if _key(row) in finished:
                    continue
                row |= _measured(plan, SYSTEMS[name], corpora[corpus], row)
                log.append(run, "tagger", [row])
                yield row


def _measured(plan: Plan, system: TaggerSystem, data: TaggerData, row: Row) -> Row:
    """Return the measurements of one tagger, or an error."""
    corpus = CORPORA[row["corpus"]]
    version = system.version()
    about: Row = {
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "package": system.package,
        "version": version,
        "files": data.description,
        "machine": hardware(),
        "software": software(),
    }
    if version is None:
        reason = error_of(system.package, ERRORS) or "run `python -m benchmarks.taggers.install`"
        return {**about, "error": f"{system.package} is not installed: {reason}"}
    with _folder(plan, row) as folder:
        job = TaggerJob(
            folder,
            system.adapter,
            corpus.task,
            corpus.language,
            row["seed"],
            plan.threads,
            data.files,
            dict(system.settings),
        )
        job.save(data.sentences())
        try:
            return {**about, **_stages(plan, system.python, job, data)}
        except StageError as error:
            return {**about, "error": str(error)}


def _stages(plan: Plan, python: str, job: TaggerJob, data: TaggerData) -> Row:
    loads = [load()]
    training = run_stage(python, "train", job.folder, job.threads, plan.limit)
    loads.append(load())
    tagging = run_stage(python, "tag", job.folder, TAGGING_THREADS, plan.limit)
    starts = []
    for _ in range(STARTS):
        begun = time.time()
        started = run_stage(python, "start", job.folder, TAGGING_THREADS, plan.limit)
        starts.append(round(started["finished"] - begun, 3))
    loads.append(load())
    try:
        scores = data.test_scores(tagging.pop("tags"))
    except ValueError as error:
        raise StageError(f"the tags do not fit the test sentences: {error}") from error
    return {
        "test": scores,
        "training": training,
        "tagging": {**tagging, "tokens": data.test_tokens, "threads": TAGGING_THREADS},
        "startup": starts,
        "loads": loads,
    }


def run_stage(python: str, stage: str, folder: Path, threads: int, limit: float) -> dict[str, Any]:
    """Run a stage of the job in a folder; return its result.

    Raises:
        StageError: the process failed, or was stopped after `limit` seconds.
    """
    command = [python, "-W", "ignore", "-m", f"{__package__}.worker", stage, str(folder)]
    command.append(str(threads))
    variables = dict.fromkeys(_THREAD_VARIABLES, str(threads))
    environment = {**os.environ, **_OFFLINE, **variables, "OMP_WAIT_POLICY": "passive"}
    output = folder / f"{stage}.log"
    with output.open("wb") as file:
        try:
            done = subprocess.run(
                command,
                stdout=file,
                stderr=subprocess.STDOUT,
                cwd=ROOT,
                env=environment,
                timeout=limit,
            )
        except subprocess.TimeoutExpired:
            raise StageError(f"{stage}: stopped after {limit:.0f} s") from None
    if done.returncode:
        raise StageError(f"{stage}: {_last_line(output) or f'exit status {done.returncode}'}")
    found: dict[str, Any] = json.loads(result_path(folder, stage).read_text(encoding="utf-8"))
    return found


def _last_line(output: Path) -> str:
    lines = output.read_text(encoding="utf-8", errors="replace").split("\n")
    return brief(next((line for line in reversed(lines) if line.strip()), ""))


@contextlib.contextmanager
def _folder(plan: Plan, row: Row) -> Iterator[Path]:
    """Yield an empty folder for a job; delete it afterwards, unless the plan keeps it."""
    if plan.keep is None:
        with tempfile.TemporaryDirectory() as name:
            yield Path(name)
        return
    name = f"{row['system']}-{row['corpus']}-{row['seed']}-{row['threads']}".replace(" ", "-")
    plan.keep.mkdir(parents=True, exist_ok=True)
    # A folder of an earlier run may hold a finished training, so each run has its own folder.
    yield Path(tempfile.mkdtemp(prefix=f"{name}-", dir=plan.keep.resolve()))
