"""Part-of-speech tagging of words."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ..data import Sentence
from ..structure import Structure
from .example import Example, Metric
from .metrics import Accuracy
from .pos_tags import check_pos_column, read_pos_tags
from .words import WordTask

__all__ = ["Pos"]


@dataclass(frozen=True)
class Pos(WordTask):
    """One part of speech per word, any sequence of them.

    Args:
        labels: the tags.
        column: "upos" (universal, the default) or "xpos" (the treebank's own). Files of two columns
            have one kind of tags, which serves as either.
    """

    name: ClassVar[str] = "pos"

    column: str = "upos"

    def __post_init__(self) -> None:
        check_pos_column(self.column)

    @classmethod
    def fit(cls, sentences: Sequence[Sentence], **settings: Any) -> Pos:
        task = cls((), **settings)
        labels = {tag for sentence in sentences for tag in read_pos_tags(sentence, task.column)}
        return cls(tuple(sorted(labels)), task.column)

    def annotated(self, sentences: Sequence[Sentence]) -> list[Example]:
        return [
            Example(sentence.words, sentence, tuple(read_pos_tags(sentence, self.column)))
            for sentence in sentences
        ]

    def repair(self, example: Example, labels: Sequence[str]) -> list[str]:
        """Nothing to repair."""
        return list(labels)

    def metric(self, known_words: Container[str] | None = None) -> Metric:
        return Accuracy(known_words)

    @property
    def _tag_column(self) -> str:
        return self.column

    @property
    def structure(self) -> Structure | None:
        return None
