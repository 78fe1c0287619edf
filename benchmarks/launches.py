"""Count the kernels that a call would launch on a GPU, and how often the host would wait for it.

Our systems run on meta tensors with `backend="torch"`, so no value can be read, as on a GPU. Other
systems run on CPU tensors; the reading of a value counts as waiting. `measurement.launches` says
how operations are counted. Composite operations count as the kernels that they launch on CUDA.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import Any

import torch

import bcrf
from measurement.launches import LaunchCounter

from .cases import BenchmarkCase, Problem, make_problem
from .log import Row
from .systems import SYSTEMS, brief
from .systems.ours import DECODERS, SOLVERS

__all__ = ["BATCH", "LENGTHS", "OURS", "TAGS", "count", "launches"]

PEERS = ("pytorch-crf", "TorchCRF", "torch-struct", "supar", "eager loop", "eager scan")
"""The other systems. The operator of torbi is compiled: torch does not see what it launches."""

LENGTHS = (32, 64, 256)
BATCH, TAGS = 32, 17

Prepare = Callable[[Problem], Callable[[], Any]]
"""A function that prepares a problem and returns the function to count."""

_TASKS = {"loss": "loss + gradient", "normal": "decoding"}  # of the peers: task -> its name


def _gradient(family: str, finite: bool = True, structure: bcrf.Structure | None = None) -> Prepare:
    def prepare(problem: Problem) -> Callable[[], Any]:
        leaves, rules = problem.leaves(), structure and structure.to(problem.device)

        def call() -> Any:
            chain = bcrf.LinearChain(*leaves, structure=rules, finite=finite)
            value = bcrf.loss(SOLVERS[family]("torch"), chain, problem.tags).sum()
            return torch.autograd.grad(value, leaves)

        return call

    return prepare


def _decode(name: str) -> Prepare:
    def prepare(problem: Problem) -> Callable[[], Any]:
        chain = bcrf.LinearChain(problem.unary, problem.transitions, finite=True)
        return torch.no_grad()(lambda: DECODERS[name](chain, "torch"))

    return prepare


_RULES = bcrf.Structure.from_labels(["O", *(f"{p}-{k}" for k in range(8) for p in "BI")], "BIO")

OURS: dict[str, Prepare] = {
    "crf: loss + gradient": _gradient("crf"),
    "crf scan: loss + gradient": _gradient("crf scan"),
    "bregman-10: loss + gradient": _gradient("bregman"),
    "bregman-10, not declared finite: loss + gradient": _gradient("bregman", finite=False),
    "bregman-10, BIO constraints: loss + gradient": _gradient("bregman", structure=_RULES),
    "mean field-10: loss + gradient": _gradient("mean field"),
    "viterbi: decoding": _decode("viterbi"),
    "bregman-10 MBR: decoding": _decode("bregman"),
}


def count(call: Callable[[], Any]) -> Row:
    """Return launches, synchronisations and moved bytes of one call."""
    with LaunchCounter() as counter:
        call()
    return {
        "launches": counter.launches,
        "synchronisations": counter.synchronisations,
        "bytes": counter.bytes,
    }


def launches(
    lengths: Sequence[int] = LENGTHS,
    batch: int = BATCH,
    tags: int = TAGS,
    only: Collection[str] | None = None,
) -> Iterator[Row]:
    """Yield a row for each system and length: its counts, or an error.

    Args:
        only: names of the systems to count; None: all.
    """
    if only is None:
        only = {*OURS, *(f"{name}: {words}" for name in PEERS for words in _TASKS.values())}
    for length in lengths:
        problem = make_problem(BenchmarkCase(batch, length, tags), "shared")
        meta = problem.to(torch.device("meta"))
        calls: dict[str, Callable[[], Row]] = {
            name: partial(_warm_count, prepare, meta) for name, prepare in OURS.items()
        }
        for task, words in _TASKS.items():
            for name in PEERS:
                prepare = partial(SYSTEMS[name].prepare, task=task)
                calls[f"{name}: {words}"] = partial(_warm_count, prepare, problem)
        for name, call in calls.items():
            if name not in only:
                continue
            row = {"system": name, "length": length, "ours": name in OURS}
            try:
                yield {**row, **call()}
            except Exception as error:
                yield {**row, "error": brief(error)}


def _warm_count(prepare: Callable[[Problem], Any], problem: Problem) -> Row:
    """Count the second call: work that is done only once does not count."""
    call = prepare(problem)
    if not callable(call):
        raise RuntimeError(call)
    call()
    return count(call)
