"""What a file says of the mention label of each word: the label, some labels, or nothing."""

from __future__ import annotations

from collections.abc import Iterable

from ..data import Sentence
from .schemes import normalize

__all__ = ["Options", "is_full", "read_options"]

ANY = "?"

Options = frozenset[str] | None
"""The labels that a word may have; None: any."""


def read_options(sentence: Sentence) -> list[Options]:
    """The options of each word: a tag is a label, several as `A|B`, or `?` for any."""
    tags = sentence.format.tags(sentence, "ner") if len(sentence) else []
    options: list[Options] = []
    for position, tag in enumerate(tags):
        try:
            options.append(None if tag == ANY else frozenset(map(normalize, tag.split("|"))))
        except ValueError as error:
            raise sentence.error(position, str(error)) from error
    return options


def is_full(options: Iterable[Options]) -> bool:
    """Whether every word has exactly one label."""
    return all(labels is not None and len(labels) == 1 for labels in options)
