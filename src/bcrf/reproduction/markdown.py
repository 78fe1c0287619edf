"""Numbers and tables as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .results import Statistic

__all__ = ["MISSING", "score", "table", "times"]

MISSING = "missing"


def table(head: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> str:
    """A table whose first `left` columns are aligned to the left, the others to the right."""
    rule = ["---" if column < left else "---:" for column in range(len(head))]
    lines = [head, rule, *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def score(statistic: Statistic | None) -> str:
    """Mean, standard deviation and the number of seeds."""
    if statistic is None:
        return MISSING
    deviation = "" if statistic.deviation is None else f" ± {statistic.deviation:.2f}"
    return f"{statistic.mean:.2f}{deviation} [{statistic.count}]"


def times(ratio: float | None) -> str:
    return MISSING if ratio is None else f"×{ratio:.1f}" if ratio >= 1 else f"×{ratio:.2f}"
