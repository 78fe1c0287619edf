"""Part-of-speech tagging of words, and the part-of-speech tags of files."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import ClassVar

from ...structure import Structure
from ..data import Sentence
from .metrics import Accuracy
from .task import Example, Metric, WordTask

__all__ = ["POS_COLUMNS", "UPOS", "Pos", "check_pos_column", "read_pos_tags"]

POS_COLUMNS = ("upos", "xpos")

UPOS = frozenset(
    {"ADJ", "ADP", "ADV", "AUX", "CCONJ", "DET", "INTJ", "NOUN", "NUM", "PART", "PRON", "PROPN"}
    | {"PUNCT", "SCONJ", "SYM", "VERB", "X"}
)
"""The universal part-of-speech tags of Universal Dependencies, version 2."""


def check_pos_column(column: str) -> None:
    """Raise ValueError unless `column` is one of `POS_COLUMNS`."""
    if column not in POS_COLUMNS:
        raise ValueError(f"column must be one of {', '.join(POS_COLUMNS)}, got {column!r}")


def read_pos_tags(sentence: Sentence, column: str) -> list[str]:
    """Return the part of speech of each word; raise DataError if a word has none."""
    tags = sentence.format.tags(sentence, column) if len(sentence) else []
    if "_" in tags:
        raise sentence.error(tags.index("_"), f"the word has no {column}: found '_'")
    return tags


@dataclass(frozen=True)
class Pos(WordTask):
    """One part of speech for each word; every sequence of tags is well-formed.

    Args:
        labels: the tags.
        column: "upos" (universal tags, the default) or "xpos" (the treebank's own tags). A file of
            two columns has only one kind of tags, which is read for both values.
    """

    name: ClassVar[str] = "pos"

    column: str = "upos"

    def __post_init__(self) -> None:
        check_pos_column(self.column)

    @classmethod
    def fit(cls, sentences: Sequence[Sentence], *, column: str = "upos") -> Pos:
        task = cls((), column)
        labels = {tag for sentence in sentences for tag in read_pos_tags(sentence, task.column)}
        return cls(tuple(sorted(labels)), task.column)

    def annotated(self, sentences: Sequence[Sentence]) -> list[Example]:
        return [
            Example(sentence.words, sentence, tuple(read_pos_tags(sentence, self.column)))
            for sentence in sentences
        ]

    def repair(self, example: Example, labels: Sequence[str]) -> list[str]:
        """Return the labels unchanged: all sequences are well-formed."""
        return list(labels)

    def metric(self, known_words: Container[str] | None = None) -> Metric:
        return Accuracy(known_words)

    @property
    def _tag_column(self) -> str:
        return self.column

    @property
    def structure(self) -> Structure | None:
        return None
