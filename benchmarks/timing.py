"""Interleaved timing: round after round over all functions, in a new order each time.

What disturbs the machine for a while then disturbs all of them, and medians are of the same mix.
"""

from __future__ import annotations

import contextlib
import gc
import math
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

__all__ = ["PLAN", "Plan", "Timing", "interleave", "threads"]

Function = Callable[[], Any]


@dataclass(frozen=True)
class Plan:
    """How long to measure.

    Args:
        budget: seconds for a group of functions; the least numbers of samples come first.
        least: samples of a function at least.
        slow: (seconds, samples), longest first: those that take longer need only so many.
        most: samples of a function at most.
        sample: a sample repeats a quick function until it takes so many seconds, as long as a slow
            one takes: all then start from caches that others have filled equally often.
    """

    budget: float = 5.0
    least: int = 15
    slow: tuple[tuple[float, int], ...] = ((20.0, 1), (3.0, 3), (0.5, 7))
    most: int = 101
    sample: float = 2e-2

    def samples(self, seconds: float) -> int:
        """The least number of samples of a function that takes so long."""
        few = (count for limit, count in self.slow if seconds > limit)
        return min(next(few, self.least), self.least)

    def repeats(self, seconds: float) -> int:
        return max(1, math.ceil(self.sample / max(seconds, 1e-9)))


PLAN = Plan()


@dataclass
class Timing:
    """Seconds per call."""

    repeats: int = 1
    samples: list[float] = field(default_factory=list)
    error: BaseException | None = None

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    @property
    def numbers(self) -> dict[str, Any]:
        """For a log."""
        low, high = self.quartiles
        seconds = {"median": self.median, "low": low, "high": high}
        return {
            **{name: float(f"{value:.4g}") for name, value in seconds.items()},
            "samples": len(self.samples),
            "repeats": self.repeats,
        }

    @property
    def quartiles(self) -> tuple[float, float]:
        if len(self.samples) < 2:
            return self.median, self.median
        low, _, high = statistics.quantiles(self.samples, n=4, method="inclusive")
        return low, high


def interleave(
    functions: Mapping[str, Function],
    plan: Plan = PLAN,
    seed: int = 0,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Timing]:
    """Time all functions; one that fails has an error, and the others go on."""
    order = random.Random(seed)
    found = {name: Timing() for name in functions}
    with _collected_between() as collect:
        wanted = _warm_up(functions, found, plan, clock)
        started = clock()
        while True:
            extra = clock() - started < plan.budget
            due = [name for name, least in wanted.items() if _due(found[name], least, extra, plan)]
            if not due:
                return found
            order.shuffle(due)
            collect()
            for name in due:
                _sample(functions[name], found[name], clock)


def _due(timing: Timing, least: int, extra: bool, plan: Plan) -> bool:
    if timing.error is not None:
        return False
    if len(timing.samples) < least:
        return True
    # Slow ones would use up the budget of the others.
    return extra and least >= plan.least and len(timing.samples) < plan.most


def _warm_up(
    functions: Mapping[str, Function], found: dict[str, Timing], plan: Plan, clock: Function
) -> dict[str, int]:
    """Call everything, choose the repeats, and return the least number of samples of each."""
    wanted = {}
    for name, function in functions.items():
        timing = found[name]
        _sample(function, timing, clock)
        if timing.error is None and plan.samples(timing.samples[0]) < plan.least:
            wanted[name] = plan.samples(timing.samples[0])
            continue  # a slow one: its first call counts
        _sample(function, timing, clock)
        if timing.error is None:
            seconds = min(timing.samples)
            timing.repeats, wanted[name] = plan.repeats(seconds), plan.least
            timing.samples.clear()
    return wanted


def _sample(function: Function, timing: Timing, clock: Function) -> None:
    if timing.error is not None:
        return
    try:
        start = clock()
        for _ in range(timing.repeats):
            function()
        timing.samples.append((clock() - start) / timing.repeats)
    except Exception as error:
        timing.error = error


@contextlib.contextmanager
def _collected_between() -> Iterator[Function]:
    """No garbage collection while something is timed; the collector to call between rounds.

    What is alive already is frozen: a collection then looks at what the functions left only.
    """
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield gc.collect
    finally:
        gc.enable()
        gc.unfreeze()


@contextlib.contextmanager
def threads(count: int) -> Iterator[None]:
    """Run with so many threads of torch."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
