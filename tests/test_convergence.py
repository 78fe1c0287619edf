"""Faster convergence than the paper's algorithm, measured as docs/convergence.md reports it."""

from __future__ import annotations

import pytest

from benchmarks.convergence import FLOOR, ITERATIONS, errors

OURS, PAPER = "half, ramp (ours)", "paper"


def found(tags: int, constraints: str, inverse: int) -> dict[str, list[float]]:
    case = {"tags": tags, "constraints": constraints, "inverse_temperature": inverse}
    return errors(case, 200, settings=(OURS, PAPER), iterations=range(2, 21, 4))


@pytest.mark.slow
@pytest.mark.parametrize("tags", [16, 64])
def test_constrained_chains_need_fewer_iterations(tags: int) -> None:
    table = found(tags, "BIES", 10)
    at_ten = list(range(2, 21, 4)).index(10)
    assert table[OURS][at_ten] <= 0.5 * table[PAPER][at_ten]


@pytest.mark.slow
@pytest.mark.parametrize("tags", [16, 64])
def test_easy_chains_lose_nothing(tags: int) -> None:
    table = found(tags, "none", 1)
    for ours, paper in zip(table[OURS], table[PAPER], strict=True):
        assert max(ours, FLOOR) <= max(paper, FLOOR)


def test_iterations_cover_the_documented_range() -> None:
    assert list(ITERATIONS) == list(range(2, 21))
