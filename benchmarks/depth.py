"""Measure the depth of a call: the length of its longest chain of dependent tensor operations.

A GPU has to launch these operations one after the other. Parallelism over sentences and tags does
not reduce their number.

The depth of an operation that torch dispatches is the depth of its deepest input plus one; views
count as zero. An operation depends on all operations that wrote to the storages that it reads. When
Python reads a value (`if`, `.item()`), all later operations depend on that value.

Our systems run on the torch backend with fake tensors, so no value can be read, as in compiled code
and on other devices. We do not measure native kernels: each would count as a single operation. A
fused operation such as `logsumexp` counts once, although it launches several kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import bcrf

from .cases import BenchmarkCase, Problem, make_problem
from .systems import SYSTEMS, brief
from .systems.ours import DECODERS, SOLVERS

__all__ = ["BATCH", "LENGTHS", "OURS", "TAGS", "DepthCounter", "depths", "fake_depth"]

LENGTHS = (32, 256)
BATCH, TAGS = 4, 9

# Operations that compute nothing and add no depth.
_FREE = {"_unsafe_view", "alias", "detach", "lift_fresh", "empty", "empty_like", "new_empty"}
_READS = {"_local_scalar_dense", "is_nonzero", "equal", "item"}


class DepthCounter(TorchDispatchMode):
    """Context manager that follows the operations in its block; `longest` is their depth."""

    def __init__(self) -> None:
        super().__init__()
        self.longest = 0
        self._barrier = 0  # depth of the last value that Python read
        self._written: dict[int, int] = {}
        self._alive: list[Any] = []  # keeps storages alive, since their addresses are the keys

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        before = max(map(self._depth, _tensors((args, kwargs))), default=0)
        result = func(*args, **kwargs)
        name = func.overloadpacket.__name__
        if name in _READS:
            self._barrier = self._finish(before)
        elif not (func.is_view or name in _FREE):
            after = self._finish(before)
            for tensor in _tensors(result):
                self._write(tensor, after)
        return result

    def _finish(self, before: int) -> int:
        after = max(before, self._barrier) + 1
        self.longest = max(self.longest, after)
        return after

    def _depth(self, tensor: Tensor) -> int:
        return self._written.get(tensor.untyped_storage()._cdata, 0)

    def _write(self, tensor: Tensor, depth: int) -> None:
        storage = tensor.untyped_storage()
        self._written[storage._cdata] = depth
        self._alive.append(storage)


def _tensors(tree: Any) -> Iterable[Tensor]:
    return (leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor))


def _solve(family: str) -> Callable[[Problem], Any]:
    return lambda p: bcrf.loss(SOLVERS[family]("torch"), p.chain(), p.tags)


def _gradient(family: str) -> Callable[[Problem], Any]:
    def call(problem: Problem) -> Any:
        leaves = problem.leaves()
        value = bcrf.loss(SOLVERS[family]("torch"), problem.chain(*leaves), problem.tags).sum()
        return torch.autograd.grad(value, leaves)

    return call


def _marginals(problem: Problem) -> Any:
    return SOLVERS["bregman"]("torch")(problem.chain()).tag_marginals


def _decode(name: str) -> Callable[[Problem], Any]:
    return lambda problem: DECODERS[name](problem.chain(), "torch")


OURS: dict[str, Callable[[Problem], Any]] = {
    "bregman-10: loss": _solve("bregman"),
    "bregman-10: loss + gradient": _gradient("bregman"),
    "bregman-10: tag marginals": _marginals,
    "bregman-10: MBR decoding": _decode("bregman"),
    "mean field-10: loss + gradient": _gradient("mean field"),
    "crf: loss": _solve("crf"),
    "crf: loss + gradient": _gradient("crf"),
    "crf scan: loss": _solve("crf scan"),
    "crf scan: loss + gradient": _gradient("crf scan"),
    "viterbi": _decode("viterbi"),
    # Without reading values, the decoder cannot skip Viterbi for certified sentences.
    "certified-10, Viterbi included": _decode("certified"),
}
PEERS = ("pytorch-crf", "torch-struct", "eager loop", "eager scan")


def _measure(call: Callable[[], Any]) -> int:
    with DepthCounter() as depth:
        call()
    return depth.longest


def fake_depth(function: Callable[[Problem], Any], problem: Problem) -> int:
    """Return the depth of a function that runs on fake tensors."""
    with FakeTensorMode() as mode:
        fake = Problem(
            mode.from_tensor(problem.unary),
            mode.from_tensor(problem.transitions),
            mode.from_tensor(problem.tags),
            mode.from_tensor(problem.masked_tags),
        )
        return _measure(lambda: function(fake))


def _peer_depth(name: str, task: str, problem: Problem) -> int:
    call = SYSTEMS[name].prepare(problem, task)
    if not callable(call):
        raise RuntimeError(call)
    call()  # warm-up: work that is done only once does not count
    return _measure(call)


def depths(lengths: Sequence[int] = LENGTHS) -> Iterator[dict[str, Any]]:
    """Yield a row for each system and length: its depth, or an error."""
    for length in lengths:
        problem = make_problem(BenchmarkCase(BATCH, length, TAGS), "shared")
        counts = {name: partial(fake_depth, function, problem) for name, function in OURS.items()}
        for task, words in (("loss", "loss + gradient"), ("normal", "decoding")):
            for name in PEERS:
                counts[f"{name}: {words}"] = partial(_peer_depth, name, task, problem)
        for name, count in counts.items():
            row = {"system": name, "length": length, "ours": name in OURS}
            try:
                yield {**row, "depth": count()}
            except Exception as error:
                yield {**row, "error": brief(error)}
