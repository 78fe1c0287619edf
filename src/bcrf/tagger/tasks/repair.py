"""Repair ill-formed label sequences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .task import Example, Task

__all__ = ["Repaired", "repair_all"]


class Repaired(NamedTuple):
    """Well-formed label sequences, and the number of sentences that were changed."""

    sequences: list[list[str]]
    changed: int


def repair_all(
    task: Task, examples: Sequence[Example], sequences: Sequence[Sequence[str]]
) -> Repaired:
    """Repair the label sequences of examples by the rule of the task."""
    repaired = [task.repair(*pair) for pair in zip(examples, sequences, strict=True)]
    changed = (new != list(old) for new, old in zip(repaired, sequences, strict=True))
    return Repaired(repaired, sum(changed))
