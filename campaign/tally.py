"""What a part of the campaign reports: counts, and one line for every failure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

__all__ = ["Tally"]


@dataclass
class Tally:
    """Counts of what was tried and how it ended.

    Args:
        counts: by a short description, such as "crash points"; in the order of the first count.
        failures: one line each, with what is needed to repeat it (a seed, a crash point).
    """

    counts: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    def count(self, what: str, times: int = 1) -> None:
        """Add to the count of `what`."""
        self.counts[what] += times

    def fail(self, line: str) -> None:
        """Record a failure."""
        self.failures.append(line)
