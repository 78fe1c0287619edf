"""Detect the tag scheme of the label sequences of a file, and find violations of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ...structure import Structure
from ...tag_schemes import normalize_label

__all__ = [
    "MENTION_SCHEMES",
    "DetectedScheme",
    "LabelRules",
    "describe_violation",
    "detect_scheme",
]

MENTION_SCHEMES = ("IOB2", "BIOES", "IOB1")
"""The schemes in which files encode mentions. If several fit a file, the first one is chosen."""


class LabelRules:
    """Finds the first position at which a label sequence violates a structure.

    Args:
        labels: the label of each tag of the structure.
        structure: the allowed sequences.
    """

    def __init__(self, labels: Sequence[str], structure: Structure) -> None:
        self._ids = {label: index for index, label in enumerate(labels)}
        self._start: list[bool] = structure.start.tolist()
        self._end: list[bool] = structure.end.tolist()
        self._follow: list[list[bool]] = structure.follow.tolist()

    def find_dead_end(self, allowed: Sequence[Iterable[str]]) -> int | None:
        """Return the first position that no allowed sequence can pass; None if there is none.

        Args:
            allowed: the labels that each position may have; a full annotation has exactly one.
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


class DetectedScheme(NamedTuple):
    """The scheme of some label sequences.

    Attributes:
        name: one of `MENTION_SCHEMES`.
        violations: for each sequence the first position that violates the scheme, or None.
    """

    name: str
    violations: list[int | None]

    @property
    def num_violated(self) -> int:
        """The number of sequences that violate the scheme."""
        return sum(position is not None for position in self.violations)


def detect_scheme(sequences: Sequence[Sequence[str]]) -> DetectedScheme:
    """Return the scheme that the fewest sequences violate.

    Example:
        >>> detect_scheme([["I-PER", "I-PER", "O"], ["O", "I-LOC"]])
        DetectedScheme(name='IOB1', violations=[None, None])
    """
    normalized = [[normalize_label(label) for label in labels] for labels in sequences]
    inventory = sorted({label for labels in normalized for label in labels})
    candidates = []
    for scheme in MENTION_SCHEMES:
        if scheme != "BIOES" and any(label[0] in "ES" for label in inventory):
            continue
        if not inventory:
            return DetectedScheme(scheme, [None] * len(normalized))
        rules = LabelRules(inventory, Structure.from_labels(inventory, scheme))
        violations = [rules.find_dead_end([(label,) for label in row]) for row in normalized]
        candidate = DetectedScheme(scheme, violations)
        if not candidate.num_violated:
            return candidate
        candidates.append(candidate)
    return min(candidates, key=lambda candidate: candidate.num_violated)


def describe_violation(labels: Sequence[str], position: int, scheme: str) -> str:
    """Return the error message for the label at `position`, which violates the scheme."""
    if len(labels) == 1:
        where = "as the only label of a sentence"
    else:
        where = f"after {labels[position - 1]!r}" if position else "at the start of a sentence"
        where += " and at the end of the sentence" if position == len(labels) - 1 else ""
    found = f"{labels[position]!r} {where}"
    return f"{found} is ill-formed in {scheme}, the scheme that fits the file best"
