"""Devices without float64, such as Apple's mps: no operation makes a float64 tensor there."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import bcrf
from bcrf import Bregman, ForwardBackward, LinearChain, MeanField, Structure, Unstructured
from bcrf.kernels.few_launches import scratch
from tests.comparing import SINGLE, any_path, problem
from tests.subjects import allowed_with

FEW = "few_launches"
RULES = Structure.from_labels(["O", "B-A", "I-A", "B-B"], "BIO")
LENGTHS = [7, 3, 2, 1, 0]


class NoFloat64(TorchDispatchMode):
    """A dispatch mode that raises an error if an operation makes a float64 tensor."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for x in tree_leaves(result):
            assert not isinstance(x, Tensor) or x.dtype is not torch.float64, func
        return result


@pytest.fixture
def without_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, module in list(sys.modules.items()):
        if name.startswith("bcrf.") and "widest_dtype" in vars(module):
            monkeypatch.setattr(module, "widest_dtype", lambda device: torch.float32)
    monkeypatch.setattr(scratch, "_has_logcumsumexp", lambda device: False)


SOLVERS: dict[str, bcrf.Solver] = {
    "bregman": Bregman(10, backend=FEW),
    "crf": ForwardBackward(backend=FEW),
    "scan": ForwardBackward(parallel=True, backend=FEW),
    "mean field": MeanField(5),
    "unstructured": Unstructured(),
}
CALLS: dict[str, Callable[[bcrf.Solver, LinearChain, Tensor, Tensor], Tensor]] = {
    "loss": lambda solver, chain, gold, _: bcrf.loss(solver, chain, gold),
    "partial loss": lambda solver, chain, _, sets: bcrf.partial_loss(solver, chain, sets),
    "marginals": lambda solver, chain, *_: solver(chain).tag_marginals.square().sum((1, 2)),
    "decoding": lambda solver, chain, *_: bcrf.decode(solver, chain, 0.1),
    "viterbi": lambda _, chain, *__: bcrf.viterbi(chain, FEW)[1],
    "certified": lambda _, chain, *__: bcrf.certified_decode(chain, backend=FEW).tags,
}


@pytest.mark.parametrize("kind", ["shared", "per_pair"])
@pytest.mark.parametrize("structure", [None, RULES], ids=["free", "rules"])
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("name", SOLVERS)
def test_nothing_is_float64(
    name: str, call: str, structure: Structure | None, kind: Any, without_float64: None
) -> None:
    chain = problem(0, LENGTHS, 4, kind, SINGLE)
    unary = chain.unary.detach().clone().requires_grad_(call in ("loss", "partial loss"))
    chain = LinearChain(unary, chain.transitions, LENGTHS, structure=structure)
    gold = any_path(chain.detach())
    sets = allowed_with(chain, gold)
    expected = CALLS[call](SOLVERS[name], chain.detach(), gold, sets)
    with bcrf.set_checks(False), NoFloat64():
        found = CALLS[call](SOLVERS[name], chain, gold, sets)
        if found.requires_grad:
            (slope,) = torch.autograd.grad(found.sum(), unary)
            assert slope.isfinite().all()
    assert_close(found.detach(), expected)
