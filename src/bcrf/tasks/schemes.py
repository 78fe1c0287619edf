"""Which scheme a set of label sequences follows, and where it is violated."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..structure import Structure
from .spans import split_label

__all__ = ["SCHEMES", "Rules", "describe_violation", "detect_scheme", "normalize"]

SCHEMES = ("IOB2", "BIOES", "IOB1")
"""Schemes of mentions; where several fit, the first one is meant."""


class Rules:
    """A structure over named labels, to find where sequences violate it."""

    def __init__(self, labels: Sequence[str], structure: Structure) -> None:
        self._ids = {label: index for index, label in enumerate(labels)}
        self._start: list[bool] = structure.start.tolist()
        self._end: list[bool] = structure.end.tolist()
        self._follow: list[list[bool]] = structure.follow.tolist()

    def dead_end(self, allowed: Sequence[Iterable[str]]) -> int | None:
        """The first position at which no sequence of allowed labels can go on; None if one can.

        `allowed` has the labels that each position may have: one in a full annotation.
        """
        reached: list[int] = []
        for position, labels in enumerate(allowed):
            options = [self._ids[label] for label in labels]
            if position == 0:
                reached = [tag for tag in options if self._start[tag]]
            else:
                reached = [tag for tag in options if any(self._follow[s][tag] for s in reached)]
            if position == len(allowed) - 1:
                reached = [tag for tag in reached if self._end[tag]]
            if not reached:
                return position
        return None


def normalize(label: str) -> str:
    """A label with M, L and U written as I, E and S."""
    letter, kind = split_label(label)
    return f"{letter}-{kind}" if kind else letter


def detect_scheme(sequences: Sequence[Sequence[str]]) -> tuple[str, list[int | None]]:
    """The scheme that the sequences follow, or else violate least.

    Returns:
        one of `SCHEMES`, and for each sequence the first position that violates it, or None.
    """
    normal = [[normalize(label) for label in labels] for labels in sequences]
    inventory = sorted({label for labels in normal for label in labels})
    found = []
    for scheme in SCHEMES:
        if scheme != "BIOES" and any(label[0] in "ES" for label in inventory):
            continue
        if not inventory:
            return scheme, [None] * len(normal)
        rules = Rules(inventory, Structure.from_labels(inventory, scheme))
        dead_ends = [rules.dead_end([(label,) for label in labels]) for labels in normal]
        violations = sum(position is not None for position in dead_ends)
        if not violations:
            return scheme, dead_ends
        found.append((violations, scheme, dead_ends))
    _, scheme, dead_ends = min(found, key=lambda item: item[0])
    return scheme, dead_ends


def describe_violation(labels: Sequence[str], position: int, scheme: str) -> str:
    """What is wrong at a position that violates the scheme of its file."""
    before = f"after {labels[position - 1]!r}" if position else "at the start of a sentence"
    end = " and at its end" if position == len(labels) - 1 else ""
    return f"{labels[position]!r} {before}{end} is ill-formed in {scheme}, which fits the file best"
