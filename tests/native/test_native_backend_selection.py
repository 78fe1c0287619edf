"""Errors, the selection of a backend, and the callers that see torch operations, not kernels."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing import assert_close

import bcrf
from bcrf import Bregman, ForwardBackward, LinearChain
from bcrf.kernels import native, select_backend
from tests.comparing import any_path, needs_native, problem, solvers

pytestmark = needs_native


# Errors


def spoiled(what: str) -> tuple[LinearChain, Tensor]:
    chain = problem(0, [5, 4, 2, 1], 3, "shared")
    gold = any_path(chain)
    unary, transitions = chain.unary.clone(), chain.pair_scores.clone()
    if what in ("nan", "inf"):
        unary[1, 2, 0] = float(what)
    elif what in ("nan arc", "inf arc"):
        transitions[2, 1] = float(what[:3])
    elif what == "no tag":
        unary[1, 3] = -math.inf
    elif what == "no path":
        transitions[:] = -math.inf
    elif what == "removed tag":
        unary[1, 2, gold[1, 2]] = -math.inf
    elif what == "removed arc":
        transitions[gold[0, 1], gold[0, 2]] = -math.inf
    elif what == "large tag":
        gold[2, 1] = 3
    else:
        gold[3, 0] = -1
    return LinearChain(unary, transitions, chain.lengths), gold


SCORES = ["nan", "inf", "nan arc", "inf arc", "no tag", "no path"]
TAGS = ["removed tag", "removed arc", "large tag", "negative tag"]


def calls(backend: str) -> dict[str, Callable[[LinearChain, Tensor], Any]]:
    crf, bregman = solvers(backend).values()
    return {
        "crf loss": lambda chain, gold: bcrf.loss(crf, chain, gold),
        "bregman loss": lambda chain, gold: bcrf.loss(bregman, chain, gold),
        "crf value": lambda chain, gold: crf(chain).value,
        "crf marginals": lambda chain, gold: crf(chain).tag_marginals,
        "crf edges": lambda chain, gold: crf(chain).edge_marginals,
        "bregman value": lambda chain, gold: bregman(chain).value,
        "bregman marginals": lambda chain, gold: bregman(chain).tag_marginals,
        "decode": lambda chain, gold: bcrf.decode(bregman, chain),
        "viterbi": lambda chain, gold: bcrf.viterbi(chain, backend)[0],
        "certified": lambda chain, gold: bcrf.certified_decode(chain, backend=backend).score,
    }


@pytest.mark.parametrize("call", calls("native"))
@pytest.mark.parametrize("what", SCORES + TAGS)
def test_errors_are_those_of_torch(what: str, call: str) -> None:
    if what in TAGS and "loss" not in call:
        return
    chain, gold = spoiled(what)
    with pytest.raises(ValueError, match=r".") as expected:
        calls("torch")[call](chain, gold)
    with pytest.raises(ValueError, match=r".") as found:
        calls("native")[call](chain, gold)
    assert str(found.value) == str(expected.value)


@pytest.mark.parametrize("call", calls("native"))
@pytest.mark.parametrize("what", [*SCORES, "removed tag", "removed arc"])
def test_without_checks_bad_scores_do_what_they_do_in_torch(what: str, call: str) -> None:
    chain, gold = spoiled(what)
    with bcrf.set_checks(False):
        found, expected = (calls(b)[call](chain, gold) for b in ("native", "torch"))
    assert_close(found, expected, equal_nan=True)


@pytest.mark.parametrize("call", calls("native"))
@pytest.mark.parametrize("lengths", [[9, 4, 2, 1], [5, -1, 2, 1], [5, 4, 2, 2**40]])
def test_without_checks_bad_lengths_read_nothing(lengths: list[int], call: str) -> None:
    """The kernels raise an error, or agree with torch; they never read beyond the scores."""
    chain, gold = spoiled("large tag")
    with bcrf.set_checks(False):
        chain = LinearChain(chain.unary, chain.transitions, lengths)
        results = []
        for backend in ("torch", "native"):
            try:
                results.append(calls(backend)[call](chain, gold.clamp(max=2)))
            except (IndexError, RuntimeError, ValueError) as error:
                results.append(type(error))
    if isinstance(results[0], Tensor):
        assert_close(results[1], results[0], equal_nan=True)
    else:
        assert results[1] is results[0]


# Selection of a backend


def test_backends(monkeypatch: pytest.MonkeyPatch) -> None:
    found = bcrf.backends()
    assert set(found) == {"naive", "torch", "few_launches", "native", "triton"}
    assert not any(found[name] for name in ("naive", "torch", "few_launches", "native"))
    chain = problem(1, [6, 3, 1, 5, 0], 4, "shared", removed=0.2)
    gold = any_path(chain)
    expected = {name: call(chain, gold) for name, call in calls("torch").items()}
    monkeypatch.setattr(native, "UNAVAILABLE", "it was a rainy day")
    assert bcrf.backends()["native"] == "it was a rainy day"
    for backend in (
        lambda: Bregman(backend="native"),
        lambda: ForwardBackward(backend="native"),
        lambda: bcrf.viterbi(chain, "native"),
        lambda: bcrf.certified_decode(chain, backend="native"),
    ):
        with pytest.raises(RuntimeError, match="'native' is not available: it was a rainy day"):
            backend()
    for name, call in calls("auto").items():
        assert torch.equal(call(chain, gold), expected[name])


def test_auto_is_native_on_the_cpu() -> None:
    chain = problem(1, [6, 3, 1, 5, 0], 4, "shared", removed=0.2)
    gold = any_path(chain)
    assert select_backend("auto", chain.unary) == select_backend("native", chain.unary) == "native"
    assert select_backend("torch", chain.unary) == "torch"
    assert select_backend("naive", chain.unary) == "naive"
    for name, call in calls("auto").items():
        assert torch.equal(call(chain, gold), calls("native")[name](chain, gold))


@pytest.mark.parametrize("call", calls("native"))
def test_other_devices(call: str) -> None:
    unary, gold = torch.zeros(2, 3, 4, device="meta"), torch.zeros(2, 3, device="meta").long()
    chain = LinearChain(unary, torch.zeros(4, 4, device="meta"))
    assert calls("auto")[call](chain, gold).is_meta
    with pytest.raises(ValueError, match="'native' is for the CPU, the scores are on meta"):
        calls("native")[call](chain, gold)


# Transforms and tracers see torch operations


def refuse(*args: Any, **kwargs: Any) -> None:
    raise AssertionError("a compiled kernel was called")


def value(backend: str, unary: Tensor, transitions: Tensor) -> Tensor:
    return ForwardBackward(backend=backend)(LinearChain(unary, transitions)).value.sum()


def loss(backend: str, unary: Tensor, transitions: Tensor) -> Tensor:
    gold = torch.zeros(unary.shape[:2], dtype=torch.int64)
    solver = ForwardBackward(backend=backend)
    return bcrf.loss(solver, LinearChain(unary, transitions), gold).sum()


def marginals(backend: str, unary: Tensor, transitions: Tensor) -> Tensor:
    return Bregman(3, backend=backend)(LinearChain(unary, transitions)).tag_marginals


def best(backend: str, unary: Tensor, transitions: Tensor) -> Tensor:
    return bcrf.viterbi(LinearChain(unary, transitions), backend)[1]


each_function = pytest.mark.parametrize("function", [value, loss, marginals, best])
Function = Callable[[str, Tensor, Tensor], Tensor]


@pytest.fixture
def scores(monkeypatch: pytest.MonkeyPatch) -> tuple[Tensor, Tensor]:
    """Return scores, and make every call of a kernel an error."""
    for name in (
        "crf",
        "bregman",
        "bregman_result",
        "most_probable",
        "viterbi",
        "certified",
        "project",
    ):
        monkeypatch.setattr(native, name, refuse)
    generator = torch.Generator().manual_seed(0)
    return torch.randn(3, 4, 5, generator=generator), torch.randn(5, 5, generator=generator)


@pytest.mark.parametrize("function", [value, loss])
def test_gradients_as_functions(function: Function, scores: tuple[Tensor, Tensor]) -> None:
    slope = torch.func.grad(lambda u: function("auto", u, scores[1]))(scores[0])
    leaf = scores[0].clone().requires_grad_()
    expected = torch.autograd.grad(function("torch", leaf, scores[1]), leaf)[0]
    assert_close(slope, expected)


@each_function
def test_vmap_runs_on_torch_operations(function: Function, scores: tuple[Tensor, Tensor]) -> None:
    """Inside vmap, a kernel would read the memory of the whole batch as one sentence."""
    unary, transitions = scores
    found = torch.func.vmap(lambda u: function("auto", u[None], transitions))(unary)
    assert_close(found, torch.stack([function("torch", u[None], transitions) for u in unary]))


@each_function
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
@torch.no_grad()
def test_tracers(function: Function, scores: tuple[Tensor, Tensor]) -> None:
    def run(unary: Tensor, transitions: Tensor) -> Tensor:
        return function("auto", unary, transitions)

    expected = function("torch", *scores)
    graph = make_fx(run, tracing_mode="fake")(*scores)
    assert not any("bcrf" in str(node.target) for node in graph.graph.nodes)
    assert_close(graph(*scores), expected)
    assert_close(torch.jit.trace(run, scores, check_trace=False)(*scores), expected)


@pytest.mark.parametrize("function", [loss, marginals])
def test_exports(function: Function, scores: tuple[Tensor, Tensor]) -> None:
    class ExportedFunction(torch.nn.Module):
        def forward(self, unary: Tensor, transitions: Tensor) -> Tensor:
            return function("auto", unary, transitions)

    program = torch.export.export(ExportedFunction(), scores, strict=False)
    assert not any("bcrf" in str(node.target) for node in program.graph.nodes)
    assert_close(program.module()(*scores), function("torch", *scores))
