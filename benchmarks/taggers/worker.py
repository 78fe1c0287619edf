"""Train, run or start one tagger, in a process of its own.

    python -m benchmarks.taggers.worker STAGE FOLDER THREADS

STAGE is train, tag or start. FOLDER has a saved `TaggerJob`. The process writes
FOLDER/STAGE.result.json. Memory is the peak of the process, from its start.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

from measurement.process_memory import peak_memory

from .job import TaggerJob

__all__ = ["STAGES", "result_path"]

PASSES = 5
"""How often the test sentences are tagged, after one pass that fills the caches."""


def result_path(folder: Path, stage: str) -> Path:
    """Return the path of the file to which a stage writes its result."""
    return folder / f"{stage}.result.json"


def train(job: TaggerJob) -> dict[str, Any]:
    """Train the tagger; return the time, the scores on dev, and the memory.

    The time does not include imports, nor the conversion of the corpus to the format of the tagger.
    """
    adapter = _adapter(job)
    adapter.prepare(job)
    curve: list[tuple[float, float, int, float]] = []
    started, cpu = time.perf_counter(), time.process_time()

    def report(score: float, step: int) -> None:
        seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu
        curve.append((round(seconds, 2), round(score, 5), step, round(cpu_seconds, 2)))
        print(f"{curve[-1][0]:8.1f} s  step {step}  dev {100 * score:.2f}", flush=True)

    adapter.train(job, report)
    return {
        "seconds": round(time.perf_counter() - started, 2),
        "cpu_seconds": round(time.process_time() - cpu, 2),
        "curve": curve,
        "memory": peak_memory(),
        "bytes": _size(adapter.model_path(job)),
    }


def tag(job: TaggerJob) -> dict[str, Any]:
    """Tag the test sentences; return the tags, the time of each pass, and the memory."""
    tag = _adapter(job).load(job)
    sentences = [words for words, _ in job.sentences("test")]
    tags = tag(sentences)
    seconds, cpu_seconds = [], []
    for _ in range(PASSES):
        started, cpu = time.perf_counter(), time.process_time()
        tag(sentences)
        seconds.append(round(time.perf_counter() - started, 4))
        cpu_seconds.append(round(time.process_time() - cpu, 4))
    return {"seconds": seconds, "cpu_seconds": cpu_seconds, "memory": peak_memory(), "tags": tags}


def start(job: TaggerJob) -> dict[str, Any]:
    """Tag one sentence; return the time of the clock when its tags are there."""
    tag = _adapter(job).load(job)
    tag([["Ada", "visited", "Turin", "again", "."]])
    return {"finished": time.time()}


STAGES: dict[str, Callable[[TaggerJob], dict[str, Any]]] = {
    "train": train,
    "tag": tag,
    "start": start,
}


def _adapter(job: TaggerJob) -> Any:
    return import_module(f"{__package__}.adapters.{job.adapter}")


def _size(path: Path) -> int:
    """Return the bytes of a file, or of all files in a folder."""
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return sum(file.stat().st_size for file in files)


def main() -> None:
    stage, folder, threads = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    found = STAGES[stage](replace(TaggerJob.read(folder), threads=threads))
    result_path(folder, stage).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()
