"""The interleaved timer."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from measurement.timer import (
    SamplingPlan,
    interleave,
    interleave_batches,
    summary,
    torch_threads,
)

CPU = torch.device("cpu")


class Clock:
    """A clock that only moves when a function adds seconds to it."""

    def __init__(self) -> None:
        self.now = 0.0
        self.calls: list[str] = []

    def __call__(self) -> float:
        return self.now

    def function(self, name: str, seconds: float) -> Any:
        def call() -> None:
            self.now += seconds
            self.calls.append(name)

        return call


def test_quick_functions_are_repeated_and_slow_ones_sampled_less():
    clock = Clock()
    seconds = {"quick": 1e-4, "medium": 0.1, "slow": 1.0, "slower": 5.0, "endless": 30.0}
    functions = {name: clock.function(name, s) for name, s in seconds.items()}
    found = interleave(functions, SamplingPlan(budget=1.0), clock=clock)
    assert {name: len(t.samples) for name, t in found.items()} == {
        "quick": 15,
        "medium": 15,
        "slow": 7,
        "slower": 3,
        "endless": 1,
    }
    assert found["quick"].repeats == 200
    assert found["medium"].repeats == 1
    for name, timing in found.items():
        assert timing.median == pytest.approx(seconds[name])


def test_functions_take_turns_in_changing_order():
    clock = Clock()
    functions = {name: clock.function(name, 0.1) for name in "abcd"}
    interleave(functions, SamplingPlan(budget=0.0, least=10), clock=clock)
    rounds = [clock.calls[i : i + 4] for i in range(8, 48, 4)]
    assert all(sorted(names) == list("abcd") for names in rounds)
    assert len({tuple(names) for names in rounds}) > 1


def test_budget_is_used_and_kept():
    clock = Clock()
    found = interleave(
        {"a": clock.function("a", 0.1)}, SamplingPlan(budget=5.0, least=3), clock=clock
    )
    assert 49 <= len(found["a"].samples) <= 51
    clock = Clock()
    found = interleave(
        {"a": clock.function("a", 0.1)}, SamplingPlan(budget=90.0, most=20), clock=clock
    )
    assert len(found["a"].samples) == 20


def test_one_failure_does_not_stop_the_others():
    clock = Clock()
    count = itertools.count()

    def fails_late() -> None:
        clock.now += 0.1
        if next(count) == 5:
            raise MemoryError("too large")

    found = interleave(
        {"a": clock.function("a", 0.1), "b": fails_late}, SamplingPlan(1.0), clock=clock
    )
    assert isinstance(found["b"].error, MemoryError)
    assert found["a"].error is None
    assert len(found["a"].samples) >= 15


def test_quartiles():
    clock = Clock()
    durations: Iterator[float] = itertools.cycle([1.0, 2.0, 3.0, 4.0, 5.0])

    def call() -> None:
        clock.now += 0.1 * next(durations)

    found = interleave({"a": call}, SamplingPlan(budget=0.0, least=20), clock=clock)["a"]
    assert found.median == pytest.approx(0.3)
    assert found.quartiles == pytest.approx((0.2, 0.4))


def test_the_number_of_threads_is_restored():
    before = torch.get_num_threads()
    with torch_threads(1):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before


def test_functions_take_turns_by_batch_and_the_first_round_does_not_count():
    clock, calls = Clock(), []

    def worker(name: str, cost: float):
        def work(batch: int) -> None:
            assert not gc.isenabled()
            calls.append((name, batch))
            slow = 100 if len(calls) <= 4 else 1
            clock.now += slow * cost * (batch + 1)

        return work

    functions = {"a": worker("a", 1.0), "b": worker("b", 10.0)}
    found = interleave_batches(functions, 2, 3, CPU, clock)
    assert gc.isenabled()
    assert found == {"a": [3.0] * 3, "b": [30.0] * 3}
    assert len(calls) == 2 * 2 * 4
    turns = [calls[i : i + 2] for i in range(0, len(calls), 2)]
    assert all({name for name, _ in turn} == {"a", "b"} for turn in turns)
    assert [turn[0][1] for turn in turns] == [0, 1] * 4
    assert len({turn[0][0] for turn in turns}) == 2  # the order changes between batches


def test_a_failure_leaves_the_collector_on():
    with pytest.raises(ZeroDivisionError):
        interleave_batches({"a": lambda batch: 1 / 0}, 1, 1, CPU)
    assert gc.isenabled()


def test_summaries():
    assert summary([5.0, 1.0, 2.0, 3.0, 4.0]) == {
        "median": 3.0,
        "low": 2.0,
        "high": 4.0,
        "rounds": 5,
    }
    assert summary([2.0]) == {"median": 2.0, "low": 2.0, "high": 2.0, "rounds": 1}
