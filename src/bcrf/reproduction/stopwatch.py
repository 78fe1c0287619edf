"""Times of several functions, measured in turns."""

from __future__ import annotations

import gc
import random
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

__all__ = ["in_turns", "summary"]


def in_turns(
    functions: Mapping[str, Callable[[int], object]],
    batches: int,
    rounds: int,
    device: torch.device,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Seconds that each function takes for all batches, in each round.

    What disturbs the machine for a while should disturb all functions alike, so they take turns
    batch by batch, in a new order each time. There is a round before that does not count.
    """
    order = random.Random(0)
    names = list(functions)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    gc.disable()  # garbage is collected between rounds
    try:
        for number in range(rounds + 1):
            gc.collect()
            total = dict.fromkeys(names, 0.0)
            for batch in range(batches):
                order.shuffle(names)
                for name in names:
                    _wait(device)
                    start = clock()
                    functions[name](batch)
                    _wait(device)
                    total[name] += clock() - start
            if number:
                for name, value in total.items():
                    seconds[name].append(value)
    finally:
        gc.enable()
    return seconds


def summary(seconds: list[float]) -> dict[str, Any]:
    """Median and quartiles, for the log."""
    low, middle, high = (
        statistics.quantiles(seconds, n=4, method="inclusive") if len(seconds) > 1 else seconds * 3
    )
    return {"median": middle, "low": low, "high": high, "rounds": len(seconds)}


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
