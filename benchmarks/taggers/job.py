"""Define `TaggerJob`: what a process that trains or runs a tagger has to do.

This module imports neither torch nor bcrf, so that it works in the environment of any tagger.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["PARTS", "Report", "Tag", "TaggerJob"]

PARTS = ("train", "dev", "test")

Report = Callable[[float, int], None]
"""A function that takes a score on dev, and the step or epoch after which it was measured."""

Tag = Callable[[Sequence[Sequence[str]]], list[list[str]]]
"""A function that takes sentences, each a list of words, and returns the tags of their words."""

_JOB = "job.json"


@dataclass(frozen=True)
class TaggerJob:
    """One tagger to train on one corpus with one seed.

    Args:
        folder: folder of the job, with the annotated sentences; the tagger writes its files there.
        adapter: name of the module in `benchmarks.taggers.adapters`.
        task: "pos", "ner" with tags in IOB2, or "segmentation" with labels in BIES.
        language: code of the language, such as "en".
        seed: seed of the training.
        threads: number of threads.
        files: split -> path of the file of the corpus.
        settings: settings that differ from the defaults of the library, as the adapter reads them.
    """

    folder: Path
    adapter: str
    task: str
    language: str
    seed: int
    threads: int
    files: dict[str, str]
    settings: dict[str, Any] = field(default_factory=dict)

    def save(self, sentences: dict[str, list[tuple[list[str], list[str]]]]) -> None:
        """Write the job and its sentences, pairs of words and tags, to the folder."""
        for part, pairs in sentences.items():
            self._write(f"{part}.json", pairs)
        self._write(_JOB, {**asdict(self), "folder": str(self.folder)})

    @classmethod
    def read(cls, folder: Path) -> TaggerJob:
        """Return the job that was saved in a folder."""
        values = json.loads((folder / _JOB).read_text(encoding="utf-8"))
        return cls(**{**values, "folder": folder})

    def sentences(self, part: str) -> list[tuple[list[str], list[str]]]:
        """Return the words and the tags of the sentences of "train", "dev" or "test"."""
        text = (self.folder / f"{part}.json").read_text(encoding="utf-8")
        return [(words, tags) for words, tags in json.loads(text)]

    def _write(self, name: str, value: Any) -> None:
        text = json.dumps(value, ensure_ascii=False)
        (self.folder / name).write_text(text, encoding="utf-8")
