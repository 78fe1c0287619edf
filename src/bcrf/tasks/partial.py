"""Partially supervised mentions: sentences in which only one type is annotated."""

from __future__ import annotations

import random
from collections.abc import Sequence

from .spans import Span

__all__ = ["READINGS", "allowed_around", "deal"]

READINGS = ("exclusive", "literal")
"""How a sentence is read in which only one type is annotated: see `allowed_around`."""


def deal(count: int, hands: int, seed: int) -> list[int]:
    """Deal `count` sentences to `hands` parts at random, whose sizes differ by one at most.

    Returns the part of each sentence.
    """
    order = list(range(count))
    random.Random(f"partial {seed}").shuffle(order)
    part = [0] * count
    for place, sentence in enumerate(order):
        part[sentence] = place % hands
    return part


def allowed_around(
    spans: Sequence[Span], own: Sequence[str], others: frozenset[str], reading: str
) -> tuple[frozenset[str] | None, ...]:
    """What is known where only the mentions of one type X are annotated.

    In them the labels are fixed. Elsewhere there are two readings:

    - "exclusive": all mentions of X are annotated, so a token is O or belongs to another type: in
      particular none goes on with a mention of X.
    - "literal": the paper's wording to the letter, every labeling that contains the annotated
      labels: a token may have any label, also of X.

    Args:
        spans: the mentions of X.
        own: the labels of the sentence if there were no mentions but these.
        others: all labels but those of X.
        reading: one of the two.

    Returns:
        the labels that each token may have; None: any.
    """
    if reading not in READINGS:
        raise ValueError(f"reading must be one of {', '.join(READINGS)}, got {reading!r}")
    allowed: list[frozenset[str] | None] = [others if reading == "exclusive" else None] * len(own)
    for span in spans:
        for position in range(span.start, span.end):
            allowed[position] = frozenset({own[position]})
    return tuple(allowed)
