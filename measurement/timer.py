"""Time several functions in interleaved rounds.

Every round calls all functions, in a new random order. A disturbance of the machine therefore
slows down all of them alike, and their medians can be compared.

`interleave` chooses the number of samples by a time budget; `interleave_batches` runs a fixed
number of rounds over the same batches.
"""

from __future__ import annotations

import contextlib
import gc
import math
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

__all__ = [
    "CudaClock",
    "SamplingPlan",
    "Timing",
    "interleave",
    "interleave_batches",
    "quartiles",
    "summary",
    "torch_threads",
]

Function = Callable[[], Any]
Clock = Callable[[], float]
"""A function that returns the present time in seconds; only differences have a meaning."""


class CudaClock:
    """The time of a CUDA device, in seconds.

    Each call waits until the device has done all work of the current stream. So the time between
    two calls is the time that the device needs for the work between them, including the gaps in
    which it waits for the host to launch the next kernel.

    Args:
        device: the device; its events measure the time.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._seconds = 0.0
        self._last = self._record()

    def __call__(self) -> float:
        # The driver returns milliseconds in float32. Times since the last call are short, so they
        # are precise; their sum is in float64.
        now = self._record()
        self._seconds += self._last.elapsed_time(now) / 1e3
        self._last = now
        return self._seconds

    def _record(self) -> Any:
        with torch.cuda.device(self._device):
            event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            event.record()
        event.synchronize()
        return event


@dataclass(frozen=True)
class SamplingPlan:
    """The rules for how many samples `interleave` takes of each function.

    Args:
        budget: seconds for all functions together, after each has its minimum number of samples.
        least: minimum number of samples of a function.
        slow: pairs (seconds, samples), longest time first. A function that takes longer than
            `seconds` has the minimum `samples` instead of `least`.
        most: maximum number of samples of a function.
        sample: seconds that a sample should take. A sample of a fast function repeats the call, so
            that every function starts equally often with caches that other functions have filled.
    """

    budget: float = 5.0
    least: int = 15
    slow: tuple[tuple[float, int], ...] = ((20.0, 1), (3.0, 3), (0.5, 7))
    most: int = 101
    sample: float = 2e-2

    def samples(self, seconds: float) -> int:
        """Return the minimum number of samples of a function that takes `seconds`."""
        few = (count for limit, count in self.slow if seconds > limit)
        return min(next(few, self.least), self.least)

    def repeats(self, seconds: float) -> int:
        """Return how often a sample calls a function that takes `seconds`."""
        return max(1, math.ceil(self.sample / max(seconds, 1e-9)))


@dataclass
class Timing:
    """Measured times of one function.

    Args:
        repeats: number of calls in a sample.
        samples: seconds per call, one number for each sample.
        error: the exception that the function raised, if any. Such a function is not called again.
    """

    repeats: int = 1
    samples: list[float] = field(default_factory=list)
    error: BaseException | None = None

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    @property
    def quartiles(self) -> tuple[float, float]:
        low, _, high = quartiles(self.samples)
        return low, high

    @property
    def numbers(self) -> dict[str, Any]:
        """The values that a benchmark logs."""
        low, middle, high = quartiles(self.samples)
        seconds = {"median": middle, "low": low, "high": high}
        return {
            **{name: float(f"{value:.4g}") for name, value in seconds.items()},
            "samples": len(self.samples),
            "repeats": self.repeats,
        }


def quartiles(samples: Sequence[float]) -> tuple[float, float, float]:
    """Return the lower quartile, the median and the upper quartile.

    Example:
        >>> quartiles([5.0, 1.0, 2.0, 3.0, 4.0])
        (2.0, 3.0, 4.0)
    """
    if len(samples) < 2:
        return samples[0], samples[0], samples[0]
    low, middle, high = statistics.quantiles(samples, n=4, method="inclusive")
    return low, middle, high


def summary(samples: Sequence[float]) -> dict[str, Any]:
    """Return the median, the quartiles and the number of rounds, for a log.

    Example:
        >>> summary([2.0])
        {'median': 2.0, 'low': 2.0, 'high': 2.0, 'rounds': 1}
    """
    low, middle, high = quartiles(samples)
    return {"median": middle, "low": low, "high": high, "rounds": len(samples)}


def interleave(
    functions: Mapping[str, Function],
    plan: SamplingPlan | None = None,
    seed: int = 0,
    clock: Clock = time.perf_counter,
) -> dict[str, Timing]:
    """Time functions in interleaved rounds, with as many samples as the plan says.

    If a function raises an exception, its `error` is set, and the other functions are still timed.

    Example:
        >>> found = interleave({"sum": lambda: sum(range(100))}, SamplingPlan(budget=0.0, least=3))
        >>> len(found["sum"].samples)
        3
    """
    plan = plan or SamplingPlan()
    order = random.Random(seed)
    found = {name: Timing() for name in functions}
    with _garbage_collected_between_rounds() as collect:
        wanted = _warm_up(functions, found, plan, clock)
        started = clock()
        while True:
            has_budget = clock() - started < plan.budget
            due = [n for n, least in wanted.items() if _is_due(found[n], least, has_budget, plan)]
            if not due:
                return found
            order.shuffle(due)
            collect()
            for name in due:
                _take_sample(functions[name], found[name], clock)


def interleave_batches(
    functions: Mapping[str, Callable[[int], object]],
    batches: int,
    rounds: int,
    device: torch.device,
    clock: Clock = time.perf_counter,
) -> dict[str, list[float]]:
    """Return the seconds that each function takes for all batches, in each round.

    All functions process a batch before the next batch begins. The first round is a warm-up and is
    not counted. An exception of a function is passed on.

    Args:
        functions: name -> function of the number of the batch.
        device: the device of the functions; CUDA is synchronised before and after each call.
    """
    order = random.Random(0)
    names = list(functions)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    with _garbage_collected_between_rounds() as collect:
        for number in range(rounds + 1):
            collect()
            total = dict.fromkeys(names, 0.0)
            for batch in range(batches):
                order.shuffle(names)
                for name in names:
                    _synchronize(device)
                    start = clock()
                    functions[name](batch)
                    _synchronize(device)
                    total[name] += clock() - start
            if number:
                for name, value in total.items():
                    seconds[name].append(value)
    return seconds


@contextlib.contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Let torch use `count` threads until the end of the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _is_due(timing: Timing, least: int, has_budget: bool, plan: SamplingPlan) -> bool:
    """Whether a function needs another sample."""
    if timing.error is not None:
        return False
    if len(timing.samples) < least:
        return True
    # A slow function gets only its minimum, because more samples would use up the common budget.
    return has_budget and least >= plan.least and len(timing.samples) < plan.most


def _warm_up(
    functions: Mapping[str, Function], found: dict[str, Timing], plan: SamplingPlan, clock: Clock
) -> dict[str, int]:
    """Call every function and set its repeats; return the minimum number of samples of each."""
    wanted = {}
    for name, function in functions.items():
        timing = found[name]
        _take_sample(function, timing, clock)
        if timing.error is None and plan.samples(timing.samples[0]) < plan.least:
            wanted[name] = plan.samples(timing.samples[0])
            continue  # the first call of a slow function counts as a sample
        _take_sample(function, timing, clock)
        if timing.error is None:
            seconds = min(timing.samples)
            timing.repeats, wanted[name] = plan.repeats(seconds), plan.least
            timing.samples.clear()
    return wanted


def _take_sample(function: Function, timing: Timing, clock: Clock) -> None:
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
def _garbage_collected_between_rounds() -> Iterator[Callable[[], object]]:
    """Turn automatic garbage collection off; yield a function that collects between rounds.

    Existing objects are frozen, so that a collection visits only objects that the timed functions
    have created.
    """
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield gc.collect
    finally:
        gc.enable()
        gc.unfreeze()


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
