"""Partial labels of mentions: read from a file, or made by dropping annotation.

In a file, a word has one label, several possible labels (`A|B`), or `?` for any label.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

from ...spans import Span
from ...tag_schemes import normalize_label
from ..data import Sentence

__all__ = [
    "READINGS",
    "LabelOptions",
    "allowed_around",
    "is_fully_labeled",
    "read_label_options",
    "split_at_random",
]

_ANY = "?"

LabelOptions = frozenset[str] | None
"""The labels that a word may have; None if it may have any."""

READINGS = ("exclusive", "literal")
"""What a sentence says if only one type of mentions is annotated: see `allowed_around`."""


def read_label_options(sentence: Sentence) -> list[LabelOptions]:
    """Return the labels that each word may have according to the file."""
    tags = sentence.format.tags(sentence, "ner") if len(sentence) else []
    options: list[LabelOptions] = []
    for position, tag in enumerate(tags):
        try:
            options.append(None if tag == _ANY else frozenset(map(normalize_label, tag.split("|"))))
        except ValueError as error:
            raise sentence.error(position, str(error)) from error
    return options


def is_fully_labeled(options: Iterable[LabelOptions]) -> bool:
    """Return whether every word has exactly one label."""
    return all(labels is not None and len(labels) == 1 for labels in options)


def split_at_random(count: int, parts: int, seed: int) -> list[int]:
    """Assign `count` sentences to `parts` parts at random; return the part of each sentence.

    The sizes of the parts differ by at most one.
    """
    order = list(range(count))
    random.Random(f"partial {seed}").shuffle(order)
    part_of = [0] * count
    for rank, sentence in enumerate(order):
        part_of[sentence] = rank % parts
    return part_of


def allowed_around(
    spans: Sequence[Span], own: Sequence[str], others: frozenset[str], reading: str
) -> tuple[LabelOptions, ...]:
    """Return the labels that tokens may have if only the mentions of one type X are annotated.

    Tokens inside the annotated mentions have their gold label. There are two readings for the
    tokens outside:

    - "exclusive": all mentions of X are annotated. So a token outside is O or belongs to a mention
      of another type. In particular, no token continues a mention of X.
    - "literal": a token outside may have any label, also one of X. This follows the wording of the
      paper: all labelings that contain the annotated labels.

    Args:
        spans: the mentions of X.
        own: the labels of a sentence that has only these mentions.
        others: all labels except those of X.
        reading: "exclusive" or "literal".
    """
    if reading not in READINGS:
        raise ValueError(f"reading must be one of {', '.join(READINGS)}, got {reading!r}")
    allowed: list[LabelOptions] = [others if reading == "exclusive" else None] * len(own)
    for span in spans:
        for position in range(span.start, span.end):
            allowed[position] = frozenset({own[position]})
    return tuple(allowed)
