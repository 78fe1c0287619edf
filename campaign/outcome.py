"""Define the outcome of one part of the campaign: counts, and one line for each failure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

__all__ = ["PartOutcome"]


@dataclass
class PartOutcome:
    """The number of trials of each kind, and the failures.

    Args:
        counts: short description, such as "crash points" -> count, in the order of the first count.
        failures: one line for each failure, with the seed or crash point that repeats it.
    """

    counts: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    def count(self, what: str, times: int = 1) -> None:
        """Add `times` to the count of the event `what`."""
        self.counts[what] += times

    def fail(self, line: str) -> None:
        """Record a failure, described in one line."""
        self.failures.append(line)
