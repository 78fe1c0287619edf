"""Compiled graphs have no loop whose trip count is a tensor value; Inductor makes few kernels."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch._inductor.config
from torch import Tensor
from torch._inductor.utils import run_and_get_code
from torch.testing import assert_close

import bcrf
from bcrf import Bregman, LinearChain, Structure
from tests.strategies import bies_follow, random_chain_arrays

B, N, T = 32, 64, 17
LABELS = [f"{prefix}-{i}" for i in range(4) for prefix in "BIES"]


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def bies() -> Structure:
    _, start, end, follow = bies_follow()
    return Structure(start, end, follow)


def operations(module: torch.fx.GraphModule) -> set[str]:
    """Return the names of all operations of a graph, and of the graphs inside it."""
    found = {str(node.target) for node in module.graph.nodes}
    for child in module.children():
        if isinstance(child, torch.fx.GraphModule):
            found |= operations(child)
    return found


@pytest.mark.parametrize("finite", [True, False], ids=["finite", "undeclared"])
@pytest.mark.parametrize("rules", [None, bies()], ids=["free", "bies"])
@pytest.mark.parametrize("dynamic", [False, True], ids=["one length", "all lengths"])
@pytest.mark.parametrize("pairs", ["shared", pytest.param("per_pair", marks=pytest.mark.slow)])
def test_no_graph_has_a_loop_on_a_value(
    finite: bool, rules: Structure | None, dynamic: bool, pairs: Any
) -> None:
    """CUDA graphs cannot capture such a loop. Only chains that are not declared finite need a
    `scan`."""
    graphs: list[set[str]] = []

    def record(module: torch.fx.GraphModule, _: list[Tensor]) -> torch.fx.GraphModule:
        graphs.append(operations(module))
        return module

    def loss(unary: Tensor, transitions: Tensor, lengths: Tensor, tags: Tensor) -> Tensor:
        chain = LinearChain(unary, transitions, lengths, structure=rules, finite=finite)
        return bcrf.loss(Bregman(10, backend="torch"), chain, tags)

    arrays = random_chain_arrays(0, 3, 9, 4, pairs=pairs, dtype=torch.float32, ragged=True)
    assert arrays.transitions is not None
    scores = [arrays.unary.requires_grad_(), arrays.transitions.requires_grad_()]
    chain = LinearChain(*scores, arrays.lengths, structure=rules)
    tags = bcrf.viterbi(chain)[1]
    arguments = (*scores, chain.lengths, tags)
    compiled_loss = torch.compile(loss, fullgraph=True, backend=record, dynamic=dynamic)
    found, expected = compiled_loss(*arguments), loss(*arguments)
    assert_close(found, expected, rtol=1e-4, atol=1e-5)
    gradients = [torch.autograd.grad(x.sum(), scores) for x in (found, expected)]
    assert_close(*gradients, rtol=1e-4, atol=1e-5)
    (names,) = graphs
    assert len(names) > 20
    assert not names & {"while_loop", "cond", "item", "nonzero"}
    assert ("scan" in names) == (dynamic and not finite)


def kernels(pairs: str, structure: Structure | None) -> tuple[int, int]:
    """Return the number of generated kernels, and of calls of library functions.

    A CPU kernel of Inductor is a function with many loops. So we count what the scheduler has left
    after fusion, in the graphs of the loss and of the gradient: loops that cannot be merged.
    """
    unary = torch.randn(B, N, T, requires_grad=True)
    shape = (T, T) if pairs == "shared" else (B, N - 1, T, T)
    transitions = torch.randn(shape, requires_grad=True)
    lengths = torch.full((B,), N)
    lengths[1], lengths[2] = N // 2, 1
    tags = torch.zeros(B, N, dtype=torch.int64)  # a path of any structure that allows O after O
    nodes: list[str] = []

    def count(fused: list[Any]) -> list[Any]:
        nodes.extend(type(node).__name__ for node in fused)
        return fused

    def loss(unary: Tensor, transitions: Tensor, tags: Tensor) -> Tensor:
        chain = LinearChain(unary, transitions, lengths, structure=structure, finite=True)
        return bcrf.loss(Bregman(10, backend="torch"), chain, tags).sum()

    def step(function: Any) -> tuple[Tensor, ...]:
        value = function(unary, transitions, tags)
        return value, *torch.autograd.grad(value, (unary, transitions))

    with torch._inductor.config.patch(_post_fusion_custom_pass=count, force_disable_caches=True):
        compiled_loss = torch.compile(loss, fullgraph=True, dynamic=False)
        found, sources = run_and_get_code(lambda: step(compiled_loss))
    assert_close(found, step(loss), rtol=1e-4, atol=1e-4)
    functions = sum(len(re.findall(r"^\s+cpp_fused\w*\(", code, re.MULTILINE)) for code in sources)
    assert functions <= 2  # the loss and the gradient
    external = sum(name.startswith("ExternKernel") for name in nodes)
    generated = [name for name in nodes if not name.startswith(("ExternKernel", "NopKernel"))]
    return len(generated), external


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pairs", "structure", "most"),
    [
        ("shared", None, 45),
        ("per_pair", None, 45),
        ("shared", Structure.from_labels(["O", *LABELS], "BIOES"), 50),
    ],
    ids=["shared", "per pair", "rules"],
)
def test_inductor_makes_few_kernels(pairs: str, structure: Structure | None, most: int) -> None:
    generated, external = kernels(pairs, structure)
    assert generated <= most
    assert external == 0
