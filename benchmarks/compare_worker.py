"""Time calls in the process that `benchmarks.compare` starts for each source tree.

This module imports only names that older versions of bcrf have too. Requests and answers are lines
of JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

import bcrf
from measurement.timer import SamplingPlan

from .cases import CASES, PAIRS, make_problem
from .systems import SYSTEMS

__all__ = ["calls"]

PLAN = SamplingPlan(sample=4e-3)
"""How often a sample repeats a fast call. The samples are short, because the two processes take
turns after every sample."""


def calls(
    cases: Sequence[str], systems: Sequence[str]
) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield (name, call) for each call to time, except those that this version of bcrf lacks."""
    for case in cases:
        for pairs in PAIRS:
            for task in ("loss", "normal"):
                problem = make_problem(CASES[case], pairs, task)
                for name in systems:
                    call = SYSTEMS[name].prepare(problem, task)
                    if not callable(call):
                        continue
                    try:
                        call()
                    except Exception:  # this version of bcrf does not support the call
                        continue
                    yield f"{name}, {'loss' if task == 'loss' else 'decode'}, {case}, {pairs}", call


def work(options: argparse.Namespace) -> None:
    """Answer requests: first the names of the calls, then the seconds of a call in one round."""
    torch.set_num_threads(options.threads)
    found = dict(calls(options.cases, options.systems))
    repeats = {name: _repeats(call) for name, call in found.items()}
    about = {"bcrf": str(Path(bcrf.__file__).parent), "native": bcrf.backends()["native"] is None}
    _answer({**about, "calls": list(found), "seconds": sum(map(_seconds, found.values()))})
    for line in sys.stdin:
        name, count = (request := json.loads(line))["name"], request.get("repeats")
        _answer(
            {"seconds": _seconds(found[name], count or repeats[name]), "repeats": repeats[name]}
        )


def _repeats(call: Callable[[], object]) -> int:
    call()
    return PLAN.repeats(_seconds(call))


def _seconds(call: Callable[[], object], repeats: int = 1) -> float:
    """Return the seconds per call of one sample.

    `measurement.timer.interleave` would call the function again to warm it up, and take several
    samples in a row; here the other process takes the next sample.
    """
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - start) / repeats


def _answer(values: dict[str, Any]) -> None:
    print(json.dumps(values), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int)
    parser.add_argument("--cases", nargs="+")
    parser.add_argument("--systems", nargs="+")
    work(parser.parse_args())
