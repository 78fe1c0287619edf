"""Measure the time that the layers add to `bcrf.loss` on the same scores.

The difference is a few dozen microseconds of calls that take up to milliseconds, so a layer and its
base alternate, with no other system between them, and the differences are taken round by round. A
slow phase of the machine then meets both alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from measurement.timer import SamplingPlan, interleave, summary, torch_threads

from .cases import CASES, MAIN, BenchmarkCase, make_problem
from .log import Row
from .systems import SYSTEMS, brief

__all__ = ["OVERHEADS", "Overhead", "measure_overheads"]

# The share of the budget of a shape for one layer and its base. Each call is a sample of its own.
_SHARE = 0.5


@dataclass(frozen=True)
class Overhead:
    """A bound on the time that a layer takes beyond `bcrf.loss` on the same scores.

    Args:
        layer: name of the system.
        base: the system that calls `bcrf.loss`.
        bound: maximum overhead in seconds at the main shape.
        constrained: maximum overhead in seconds at shapes with constraints.
    """

    layer: str
    base: str
    bound: float
    constrained: float = 120e-6

    def limit(self, case: str) -> float | None:
        """Return the bound for a case; None if the overhead is reported there without a bound."""
        if CASES[case].constraints:
            return self.constrained
        return self.bound if case in MAIN else None


OVERHEADS: tuple[Overhead, ...] = (
    Overhead("bcrf.CRF", "crf", 60e-6),
    Overhead("bcrf.CRF, mask", "crf, lengths", 120e-6),
    Overhead("bcrf.CRF, -100", "crf, lengths", 120e-6),
    Overhead("bcrf.BregmanCRF", "bregman-10", 60e-6),
    Overhead("bcrf.BregmanCRF, mask", "bregman-10, lengths", 120e-6),
    Overhead("bcrf.BregmanCRF, -100", "bregman-10, lengths", 120e-6),
)


def measure_overheads(
    plan: SamplingPlan, threads: Sequence[int], cases: Sequence[str] = tuple(CASES)
) -> Iterator[Row]:
    """Yield a row for each case, layer and number of threads.

    A row holds the median and the quartiles of the difference in seconds, or an error.
    """
    for name in cases:
        for overhead in OVERHEADS:
            for count in threads:
                with torch_threads(count):
                    numbers = _difference(plan, CASES[name], overhead)
                about = {"case": name, "layer": overhead.layer, "base": overhead.base}
                yield {**about, "threads": count, **numbers}


def _difference(plan: SamplingPlan, case: BenchmarkCase, overhead: Overhead) -> Row:
    problem = make_problem(case, "shared")
    calls = {}
    for name in (overhead.layer, overhead.base):
        call = SYSTEMS[name].prepare(problem, "loss")
        if not callable(call):
            return {"error": str(call)}
        calls[name] = call
    rounds = SamplingPlan(budget=_SHARE * plan.budget, least=plan.least, most=1000, sample=0.0)
    layer, base = interleave(calls, rounds).values()
    for timing in (layer, base):
        if timing.error is not None:
            return {"error": brief(timing.error)}
    pairs = zip(layer.samples, base.samples, strict=True)
    return summary([above - below for above, below in pairs])
