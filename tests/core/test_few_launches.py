"""The backend "few_launches" on CPU tensors, against the other backends in float64."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import bcrf
from bcrf import Bregman, ForwardBackward, LinearChain, Solver, Structure
from bcrf.kernels import few_launches
from bcrf.kernels.few_launches import liveness, product_tree, scratch
from bcrf.kernels.folded_chain import fold
from measurement.launches import LaunchCounter
from tests.comparing import DTYPES, answers, any_path, assert_same, check_dual, problem
from tests.strategies import Pairs, bies_follow
from tests.subjects import (
    KINDS,
    allowed_with,
    close,
    curvature,
    gold_of,
    ragged_chain,
    random_like,
    scores_of,
    slopes,
    with_scores,
)

PAPER = {"iterations": 7, "relaxation": 1.0, "first": 2, "gauge": "right", "marginals": "outgoing"}

every_kind = pytest.mark.parametrize("pairs", KINDS)


def few(**settings: Any) -> dict[str, Solver]:
    return {
        "crf": ForwardBackward(backend="few_launches"),
        "scan": ForwardBackward(parallel=True, backend="few_launches"),
        "bregman": Bregman(backend="few_launches", **settings),
    }


def reference(backend: str = "torch", **settings: Any) -> dict[str, Solver]:
    crf = ForwardBackward(backend=backend)
    return {"crf": crf, "scan": crf, "bregman": Bregman(backend=backend, **settings)}


# Results


@every_kind
@pytest.mark.parametrize("removed", [0.0, 0.4])
@pytest.mark.parametrize("dtype", DTYPES)
def test_all_results(pairs: Pairs, removed: float, dtype: torch.dtype) -> None:
    """Products of the exponentials of scores of 40 and 400 underflow: exp(-105) is 0 in float32."""
    for scale in (1.0, 40.0, 400.0):
        chain = problem(3, [0, 1, 2, 3, 7, 20], 6, pairs, dtype, removed, scale)
        gold = any_path(chain)
        expected = answers(chain.double(), gold, reference())
        assert_same(answers(chain, gold, few()), expected, chain)
    found = answers(chain, gold, few(**PAPER))
    assert_same(found, answers(chain.double(), gold, reference(**PAPER)), chain)
    check_dual(chain, Bregman(backend="few_launches"))


@every_kind
@pytest.mark.parametrize("axes", [(0, 2, 1), (1, 0, 2), (2, 0, 1)])
def test_any_layout_of_the_scores(pairs: Pairs, axes: tuple[int, ...]) -> None:
    """Emissions of a convolution lie in memory as [B, T, n], those of a time-major layer [n, B, T].

    The products over a tree of edges write to flat views, which strided scores do not have.
    """

    def laid_out(x: Tensor) -> Tensor:
        first = x.dim() - 3
        order = [*range(first), *(first + axis for axis in axes)] if first >= 0 else [1, 0]
        return x.permute(order).contiguous().permute(*(order.index(i) for i in range(x.dim())))

    chain = problem(2, [1, 2, 6, 7], 5, pairs, torch.float64, removed=0.3)
    gold, transitions = any_path(chain), chain.raw_transitions
    other = LinearChain(
        laid_out(chain.unary), None if transitions is None else laid_out(transitions), chain.lengths
    )
    assert not other.unary.is_contiguous()
    assert_same(answers(other, gold, few()), answers(chain, gold, reference()), chain)
    for name in ("viterbi", "certified"):
        arguments = () if name == "viterbi" else ([1.0] * 5, 0.5)
        function = getattr(few_launches, name)
        for found, expected in zip(
            function(other, *arguments), function(chain, *arguments), strict=True
        ):
            assert torch.equal(found, expected)


@pytest.mark.parametrize("removed", [0.0, 0.4])
def test_devices_without_logcumsumexp(removed: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scratch, "_has_logcumsumexp", lambda device: False)  # as on mps
    chain = problem(3, [0, 1, 2, 3, 9], 4, "shared", torch.float32, removed, 40.0)
    gold = any_path(chain)
    assert_same(answers(chain, gold, few()), answers(chain.double(), gold, reference()), chain)


@every_kind
@pytest.mark.parametrize("tau", [0.1, 0.01])
def test_low_temperatures(pairs: Pairs, tau: float) -> None:
    """Compare scores that are as peaked as those of a trained model with the naive backend in
    float64."""
    chain = problem(5, [1, 2, 9, 12], 5, pairs, torch.float32, scale=4.0) / tau
    gold = any_path(chain)
    expected = answers(chain.double(), gold, reference("naive"))
    assert_same(answers(chain, gold, few()), expected, chain)


@every_kind
def test_long_sentences_keep_their_digits(pairs: Pairs) -> None:
    """Unscaled messages of 700 positions would be in the thousands, with few digits in float32."""
    chain = problem(1, [1, 350, 700], 4, pairs, torch.float32)
    for solver, other in zip(few().values(), reference().values(), strict=True):
        found, expected = solver(chain), other(chain.double())
        tags = expected.tag_marginals
        assert_close(found.tag_marginals.double(), tags, rtol=0, atol=2e-5)
        assert_close(found.value.double(), expected.value, rtol=1e-6, atol=1e-5)


def dirty(chain: LinearChain, **settings: Any) -> tuple[LinearChain, tuple[Tensor, ...]]:
    """Return the chain, declared finite and with NaN beyond the lengths, and its leaf tensors."""
    scores = scores_of(chain)
    with torch.no_grad():
        scores[0][~chain.mask] = math.nan
        if not chain.shared:
            scores[1][~chain.mask[:, 1:]] = math.nan
    pair = scores[1] if len(scores) > 1 else None
    return LinearChain(scores[0], pair, chain.lengths, finite=True, **settings), scores


def compare_declared(free: LinearChain, rules: Structure | None) -> None:
    """Compare a chain that is declared finite with the undeclared chain on the naive backend."""
    constrained = free if rules is None else free.constrain(rules)
    gold = gold_of(constrained)
    allowed = allowed_with(constrained, gold)
    for solver, other in zip(few().values(), reference("naive").values(), strict=True):
        chain, scores = dirty(free, structure=rules)
        leaves = scores_of(free)
        plain = with_scores(free, leaves)
        plain = plain if rules is None else plain.constrain(rules)
        for of, labels in (("loss", gold), ("partial_loss", allowed)):
            function: Callable[..., Tensor] = getattr(bcrf, of)
            found, expected = function(solver, chain, labels), function(other, plain, labels)
            close(found, expected)
            close(slopes(found, scores), slopes(expected, leaves))
        close(solver(chain).value, other(plain).value)
        close(slopes(solver(chain).value, scores), slopes(other(plain).value, leaves))
        with torch.no_grad():
            found_solution, solution = solver(chain), other(plain)
            close(found_solution.tag_marginals, solution.tag_marginals)
            close(found_solution.edge_marginals, solution.edge_marginals)
            close(found_solution.residual, solution.residual)
    best = bcrf.viterbi(constrained, "naive")[0]
    with torch.no_grad():
        chain, _ = dirty(free, structure=rules)
        close(bcrf.viterbi(chain, "few_launches")[0], best)
        proved = bcrf.certified_decode(chain, backend="few_launches")
        close(proved.score, best)
        assert proved.certified.any()


@every_kind
def test_chains_that_are_declared_finite(pairs: Pairs) -> None:
    compare_declared(ragged_chain(2, (0, 1, 2, 3, 4, 9), 4, n=10, pairs=pairs, scale=2.0), None)


@every_kind
@pytest.mark.parametrize("types", [(), ("X", "Y")])
def test_structures(pairs: Pairs, types: tuple[str, ...]) -> None:
    labels, *_ = bies_follow(types)
    free = ragged_chain(7, (0, 1, 2, 3, 6, 9), len(labels), n=10, pairs=pairs, scale=2.0)
    compare_declared(free, Structure.from_labels(labels, "BIES"))


@every_kind
def test_start_and_end_scores(pairs: Pairs) -> None:
    chain = ragged_chain(4, (0, 1, 2, 5), 3, n=6, pairs=pairs)
    gold, ends = gold_of(chain), torch.randn(6, dtype=torch.float64).requires_grad_()
    for solver, other in zip(few().values(), reference("naive").values(), strict=True):
        assert isinstance(solver, (Bregman, ForwardBackward))
        assert isinstance(other, (Bregman, ForwardBackward))
        found, expected = solver.loss(chain, gold, ends), other.loss(chain, gold, ends)
        close(found, expected)
        close(slopes(found, [ends]), slopes(expected, [ends]))


@every_kind
def test_second_derivatives(pairs: Pairs) -> None:
    chain = ragged_chain(6, (1, 2, 5), 3, pairs=pairs, removed=0.3)
    gold = gold_of(chain)
    for solver, other in zip(few().values(), reference().values(), strict=True):
        found = []
        for one in (solver, other):
            scores = scores_of(chain)
            traced = with_scores(chain, scores)
            for value in (bcrf.loss(one, traced, gold), one(traced).value):
                found.append(curvature(value, scores, random_like(scores)))
        close(found[0], found[2])
        close(found[1], found[3])


@pytest.mark.parametrize("parallel", [False, True])
def test_every_edge_of_a_shared_matrix(parallel: bool) -> None:
    chain = ragged_chain(8, (1, 2, 4, 7), 3, pairs="shared")
    gold = gold_of(chain)
    solver = Bregman()
    for every, summed in (
        (
            few_launches.crf(chain, gold, (True, True), every_edge=True, parallel=parallel),
            few_launches.crf(chain, gold, (True, True), parallel=parallel),
        ),
        (
            few_launches.bregman(chain, solver._settings, gold, (True, True), every_edge=True),
            few_launches.bregman(chain, solver._settings, gold, (True, True)),
        ),
    ):
        assert every.by_pair is not None
        close(every.by_pair.sum(1), summed.by_pair)
        close(every.value, summed.value)
        assert (every.by_pair[~chain.mask[:, 1:]] == 0).all()


@every_kind
@pytest.mark.parametrize("tau", [1.0, 0.1, torch.tensor(0.1, dtype=torch.float64)])
def test_decoding(pairs: Pairs, tau: float | Tensor) -> None:
    chain = ragged_chain(9, (0, 1, 2, 5, 8), 4, n=9, pairs=pairs, removed=0.3)
    for settings in ({}, PAPER):
        found = bcrf.decode(Bregman(backend="few_launches", **settings), chain, tau)  # type: ignore[arg-type]
        marginals = Bregman(backend="naive", **settings)(chain / tau).tag_marginals  # type: ignore[arg-type]
        assert torch.equal(found, chain.pad(marginals.argmax(-1)))


def test_sentences_without_an_allowed_path() -> None:
    """With checks they are an error. Without checks the loss is inf, and no gradient is NaN."""
    pair = torch.tensor([[0.0, 0.0], [-math.inf, 0.0]])
    chain = LinearChain(torch.zeros(3, 3, 2), pair, [2, 2, 1])
    allowed = torch.ones(3, 3, 2, dtype=torch.bool)
    allowed[1, 0, 0] = allowed[1, 1, 1] = False  # leaves 1 -> 0
    allowed[2] = False
    with bcrf.set_checks(False):
        for solver in few().values():
            scores = scores_of(chain)
            found = bcrf.partial_loss(solver, with_scores(chain, scores), allowed)
            assert found[0].isfinite()
            assert (found[1:] == math.inf).all()
            assert all(g.isfinite().all() for g in slopes(found, scores))


@pytest.mark.parametrize("dtype", DTYPES)
def test_sums_that_overflow_are_errors(dtype: torch.dtype) -> None:
    largest = torch.finfo(dtype).max * 0.4
    chain = LinearChain(torch.full((2, 20, 3), largest, dtype=dtype))
    for solver in few().values():
        with pytest.raises(ValueError, match=r"sentence 0: the value is (-?inf|nan), .* overflows"):
            solver(chain).value  # noqa: B018


@every_kind
def test_autocast_changes_nothing(pairs: Pairs) -> None:
    """Under autocast, matrix products would be rounded to bfloat16."""
    chain = ragged_chain(3, (1, 4, 6), 5, pairs=pairs, removed=0.3).to(torch.float32)
    gold = gold_of(chain)
    for solver in few().values():
        expected = answers(chain, gold, {"": solver})
        with torch.autocast("cpu", torch.bfloat16):
            found = answers(chain, gold, {"": solver})
        assert_close(found, expected, rtol=0, atol=0)


# Certified decoding


@every_kind
def test_certified_decoding_waits_once(pairs: Pairs) -> None:
    chain = ragged_chain(1, (0, 1, 2, *range(6, 30)), 6, pairs=pairs, scale=2.0)
    with bcrf.set_checks(False), LaunchCounter() as counter:
        found = bcrf.certified_decode(chain, 4, backend="few_launches")
    assert counter.synchronisations == 1
    assert found.certified.sum() > 2
    assert pairs == "none" or not found.certified.all()  # Viterbi ran on some sentences
    close(found.score, bcrf.viterbi(chain, "naive")[0])
    with torch.no_grad():
        score = chain.score(found.tags)
    close(score, found.score)


# Memory


class PeakMemory(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of the storages that operations made and that are alive, and their peak."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.storages: dict[int, tuple[StorageWeakRef, int]] = {}
        self.peak = 0

    def alive(self) -> int:
        self.storages = {k: v for k, v in self.storages.items() if not v[0].expired()}
        return sum(size for _, size in self.storages.values())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {
            x.untyped_storage()._cdata for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)
        }
        result = func(*args, **(kwargs or {}))
        self.alive()
        for x in tree_leaves(result):
            if isinstance(x, Tensor) and x.untyped_storage()._cdata not in given:
                storage = x.untyped_storage()
                self.storages[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        self.peak = max(self.peak, self.alive())
        return result


@contextmanager
def peak_memory() -> Iterator[PeakMemory]:
    with bcrf.set_checks(False), PeakMemory() as memory:
        yield memory


BATCH, N, TAGS = 4, 24, 64
BLOCK = BATCH * (N // 2) * TAGS**2 * 4
"""Bytes of one temporary [B, n/2, T, T] in float32."""


def big_chain() -> tuple[LinearChain, Tensor, tuple[Tensor, ...]]:
    chain = problem(0, [N] * (BATCH - 1) + [5], TAGS, "shared")
    scores = scores_of(chain)
    declared = LinearChain(*scores, chain.lengths, finite=True)
    return declared, torch.zeros(BATCH, N, dtype=torch.int64), scores


@pytest.mark.parametrize("name", ["crf", "bregman"])
def test_training_needs_one_temporary(name: str) -> None:
    chain, gold, scores = big_chain()
    with peak_memory() as memory:
        value = bcrf.loss(few()[name], chain, gold)
        assert BLOCK < memory.peak < 1.5 * BLOCK  # the block, and vectors of each position
        assert memory.alive() < 0.3 * BLOCK  # nothing of its size waits for the backward pass
        torch.autograd.grad(value.sum(), scores)
    assert memory.peak < 1.5 * BLOCK


def test_the_memory_of_other_code_is_seen() -> None:
    chain, gold, scores = big_chain()
    with peak_memory() as memory:
        value = bcrf.loss(Bregman(backend="torch"), chain, gold)
        torch.autograd.grad(value.sum(), scores)
        assert memory.peak > 0
        (chain.unary.detach()[:, 1:].unsqueeze(-2) + scores[1].detach()).exp()
    assert memory.peak > 3.5 * BLOCK  # two tensors [B, n-1, T, T]
    assert memory.alive() < BLOCK


def test_decoding_needs_one_temporary() -> None:
    chain, _, _ = big_chain()
    chain = chain.detach()
    with peak_memory() as memory:
        bcrf.decode(Bregman(backend="few_launches"), chain, temperature=0.1)
    assert BLOCK < memory.peak < 1.5 * BLOCK


def test_the_search_for_live_tags_needs_one_tree() -> None:
    """Of matrices [T, T], in float16 on CUDA; it is gone before the projections begin."""
    _, gold, scores = big_chain()
    chain = LinearChain(*scores, [N] * BATCH)  # not declared finite
    tree = 2 * product_tree.num_leaves(N - 1) * BATCH * TAGS**2 * 4
    with peak_memory() as memory:
        value = bcrf.loss(few()["bregman"], chain, gold)
        assert tree < memory.peak < tree + 1.5 * BLOCK
        assert memory.alive() < 0.3 * BLOCK
        torch.autograd.grad(value.sum(), scores)


def test_larger_temporaries_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    chain, gold, scores = big_chain()

    def results() -> tuple[dict[str, Any], int]:
        with peak_memory() as memory:
            found: dict[str, Any] = {}
            for name, solver in few().items():
                if name == "scan":
                    continue
                value = bcrf.loss(solver, chain, gold)
                found[name] = (value.detach(), *torch.autograd.grad(value.sum(), scores))
            tags = bcrf.decode(Bregman(backend="few_launches"), chain.detach(), 0.1)
            proved = few_launches.certified(chain.detach(), [1.0] * 4, 0.1)
        return found | {"tags": tags, "certified": proved}, memory.peak

    expected, whole = results()
    monkeypatch.setattr(scratch, "CHUNK", BLOCK // BATCH // 4)
    found, cut = results()
    assert_close(found, expected, rtol=0, atol=0)
    assert cut < whole - BLOCK  # one sentence instead of four, in float64 for the certificate


@pytest.mark.parametrize("removed", [0.0, 0.4])
def test_scans_are_cut(removed: float, monkeypatch: pytest.MonkeyPatch) -> None:
    chain = problem(2, [1, 2, 3, 9], 5, "per_pair", torch.float64, removed)
    gold = any_path(chain)
    expected = answers(chain, gold, few())
    monkeypatch.setattr(scratch, "CHUNK", 300)
    found = answers(chain, gold, few())
    assert_close(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_live_tags_are_those_of_folding(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(liveness, "_dtype", lambda device: dtype)  # float16 on CUDA
    for seed in range(3):
        for pairs in KINDS:
            chain = ragged_chain(seed, range(10), 4, n=11, pairs=pairs, removed=0.5)
            found = few_launches.bregman_result(chain, Bregman()._settings)
            live = fold(chain).live
            assert torch.equal(found.marginals > 0, live)


def test_the_scan_leaves_the_scores_of_a_single_position_as_they_are() -> None:
    """In float64 the messages need no conversion, so they could share memory with the scores."""
    unary = torch.randn(3, 1, 4, dtype=torch.float64, requires_grad=True)
    tags = torch.tensor([[0], [3], [1]])
    chain = LinearChain(unary, torch.zeros(4, 4, dtype=torch.float64))
    given = unary.detach().clone()
    found = bcrf.loss(bcrf.ForwardBackward(True, backend="few_launches"), chain, tags)
    expected = bcrf.loss(bcrf.ForwardBackward(backend="naive"), chain, tags)
    assert_close(found, expected, rtol=0, atol=1e-12)
    assert torch.equal(unary.detach(), given)
    solution = bcrf.ForwardBackward(True, backend="few_launches")(chain)
    assert_close(solution.tag_marginals, given.softmax(-1), rtol=0, atol=1e-12)
