"""Parts of speech as files have them."""

from __future__ import annotations

from ..data import Sentence

__all__ = ["POS_COLUMNS", "UPOS", "check_pos_column", "read_pos_tags"]

POS_COLUMNS = ("upos", "xpos")

UPOS = frozenset(
    [
        "ADJ",
        "ADP",
        "ADV",
        "AUX",
        "CCONJ",
        "DET",
        "INTJ",
        "NOUN",
        "NUM",
        "PART",
        "PRON",
        "PROPN",
        "PUNCT",
        "SCONJ",
        "SYM",
        "VERB",
        "X",
    ]
)
"""The universal parts of speech of UD version 2."""


def check_pos_column(column: str) -> None:
    if column not in POS_COLUMNS:
        raise ValueError(f"column must be one of {', '.join(POS_COLUMNS)}, got {column!r}")


def read_pos_tags(sentence: Sentence, column: str) -> list[str]:
    """The part of speech of each word; an error where one is missing."""
    tags = sentence.format.tags(sentence, column) if len(sentence) else []
    if "_" in tags:
        raise sentence.error(tags.index("_"), f"the word has no {column}: found '_'")
    return tags
