"""bcrf: the tagger that `bcrf train` trains, with its default settings and those of the job."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from bcrf.tagger import Tagger
from bcrf.tagger.config_tables import deep_merge
from bcrf.tagger.training import Config, Epoch
from bcrf.tagger.training import train as train_tagger

from ..job import Report, Tag, TaggerJob

__all__ = ["load", "model_path", "prepare", "train"]


def model_path(job: TaggerJob) -> Path:
    """Return the folder of the best model."""
    return job.folder / "run" / "best"


def prepare(job: TaggerJob) -> None:
    """Do nothing: bcrf reads the files of the corpus."""


def train(job: TaggerJob, report: Report) -> None:
    """Train as `bcrf train` does; report the score of each epoch on dev."""
    torch.set_num_threads(job.threads)
    config: dict[str, Any] = {
        "output": str(job.folder / "run"),
        "data": {"task": job.task, "train": job.files["train"], "dev": job.files["dev"]},
        "training": {"seed": job.seed, "device": "cpu"},
    }
    for event in train_tagger(Config.from_dict(deep_merge(config, job.settings))):
        if isinstance(event, Epoch) and event.score is not None:
            report(event.score, event.epoch)


def load(job: TaggerJob) -> Tag:
    """Return a function that tags sentences with `Tagger.tag`."""
    torch.set_num_threads(job.threads)
    tagger = Tagger.load(model_path(job), "cpu")

    def tag(sentences: Sequence[Sequence[str]]) -> list[list[str]]:
        if job.task == "segmentation":
            texts = ["".join(characters) for characters in sentences]
            return [list(result.labels) for result in tagger.tag(texts)]
        return [list(result.tags) for result in tagger.tag(sentences)]

    return tag
