"""The number of kernels that a GPU would launch, and that the host never waits; on meta tensors."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import bcrf
from bcrf import Bregman, ForwardBackward, LinearChain, Solver, Structure
from bcrf.kernels import device_kernels, select_backend
from measurement.launches import LaunchCounter, SynchronisationError
from tests.core.test_static_trimming import cycles
from tests.strategies import Pairs

BATCH, TAGS = 32, 17
LENGTHS = (32, 64, 256)
PAIRS: tuple[Pairs, ...] = ("shared", "per_pair")
BIES = Structure.from_labels([f"{p}-{x}" for x in "ABCD" for p in "BIES"] + ["O"], "BIOES")

every_length = pytest.mark.parametrize("n", LENGTHS)
every_kind = pytest.mark.parametrize("pairs", PAIRS)


def meta_chain(
    n: int, pairs: Pairs, *, finite: bool = True, rules: Structure | None = None, grad: bool = False
) -> LinearChain:
    unary = torch.empty(BATCH, n, TAGS, device="meta", requires_grad=grad)
    shape = {"none": None, "shared": (TAGS, TAGS), "per_pair": (BATCH, n - 1, TAGS, TAGS)}[pairs]
    pair = None if shape is None else torch.empty(shape, device="meta", requires_grad=grad)
    lengths = torch.empty(BATCH, dtype=torch.int64, device="meta")
    rules = None if rules is None else rules.to("meta")
    return LinearChain(unary, pair, lengths, structure=rules, finite=finite)


def meta_tags(n: int) -> Tensor:
    return torch.empty(BATCH, n, dtype=torch.int64, device="meta")


def launches(function: Callable[[], object]) -> int:
    function()  # a structure copies its tables to a device once
    with LaunchCounter(refuse_waiting=True) as counter:
        function()
    return counter.launches


def training(solver: Solver, n: int, pairs: Pairs, **settings: object) -> int:
    """Return the number of launches of a loss and its gradients with respect to all scores."""
    chain = meta_chain(n, pairs, grad=True, **settings)  # type: ignore[arg-type]
    tags = meta_tags(n)

    def step() -> None:
        assert chain.raw_transitions is not None
        total = bcrf.loss(solver, chain, tags).sum()
        found = torch.autograd.grad(total, (chain.unary, chain.raw_transitions))
        assert [x.shape for x in found] == [chain.unary.shape, chain.raw_transitions.shape]

    return launches(step)


def test_other_devices_run_few_launches() -> None:
    for backend in ("auto", "torch", "few_launches"):
        assert select_backend(backend, torch.empty(2, 3, 4, device="meta")) == "few_launches"
    assert select_backend("torch", torch.zeros(2, 3, 4)) == "torch"
    assert select_backend("few_launches", torch.zeros(2, 3, 4)) == "few_launches"
    assert select_backend("few_launches", torch.zeros(2, 3, 4), fixed_steps=False) == "torch"
    assert bcrf.backends()["few_launches"] is None


@every_kind
def test_bregman_training(pairs: Pairs) -> None:
    solver = Bregman(10, backend="torch")
    found = {training(solver, n, pairs) for n in LENGTHS}
    assert len(found) == 1  # independent of the length
    assert found.pop() <= 150
    ruled = {training(solver, n, pairs, rules=BIES) for n in LENGTHS}
    assert len(ruled) == 1
    assert ruled.pop() <= 190
    for n in LENGTHS:
        assert training(solver, n, pairs, finite=False) <= 270


@every_kind
def test_structures_without_tables(pairs: Pairs) -> None:
    """Structures whose masks cannot be read, or whose tags repeat with a long period, need no more
    launches than a search in each sentence."""
    rules = BIES.to("meta")
    remade = Structure(rules.start, rules.end, rules.follow)
    assert remade.reachable is None
    solver = Bregman(10, backend="torch")
    searched = training(solver, 64, pairs, finite=False, rules=remade)
    assert training(solver, 64, pairs, rules=remade) <= searched <= 270
    long = cycles(2, 3, 5, 7, 11, 13)
    assert long.reachable is not None
    assert long.reachable.tables() is None
    unary = torch.empty(2, 64, long.num_tags, device="meta")
    chain = LinearChain(unary, structure=long.to("meta"), finite=True)
    assert launches(lambda: bcrf.decode(solver, chain)) <= 260


@every_kind
def test_bregman_decoding(pairs: Pairs) -> None:
    def decoding(n: int, **settings: object) -> int:
        chain = meta_chain(n, pairs, **settings)  # type: ignore[arg-type]
        return launches(lambda: bcrf.decode(Bregman(10, backend="torch"), chain, temperature=0.1))

    assert len({decoding(n) for n in LENGTHS}) == 1
    for n in LENGTHS:
        assert decoding(n) <= 140
        assert decoding(n, finite=False) <= 260
        assert decoding(n, rules=BIES) <= 180


@every_length
@every_kind
def test_crf_training(n: int, pairs: Pairs) -> None:
    """Training takes fewer launches than a loop of `logsumexp` with autograd: 618 for n = 32."""
    solver = ForwardBackward(backend="torch")
    assert training(solver, n, pairs) <= 5 * n + 45
    assert training(solver, n, pairs, finite=False) <= 6 * n + 40
    assert training(solver, n, pairs, rules=BIES) <= 6 * n + 40


@every_length
@every_kind
def test_scan_training(n: int, pairs: Pairs) -> None:
    solver = ForwardBackward(parallel=True)
    assert training(solver, n, pairs) <= 24 * math.log2(n) + 60


@every_length
@every_kind
def test_viterbi(n: int, pairs: Pairs) -> None:
    for chain in (meta_chain(n, pairs), meta_chain(n, pairs, finite=False, rules=BIES)):
        assert launches(lambda chain=chain: bcrf.viterbi(chain, backend="torch")) <= 4 * n + 40


@every_kind
def test_certificates(pairs: Pairs) -> None:
    kernels = device_kernels("few_launches")
    assert kernels is not None
    for n in LENGTHS:
        chain = meta_chain(n, pairs)
        assert launches(lambda chain=chain: kernels.certified(chain, [1.0] * 10, 0.1)) <= 140
        # The host does not know which sentences have a certificate, so Viterbi runs on all of them.
        assert launches(lambda chain=chain: bcrf.certified_decode(chain)) <= 4 * n + 200


@every_kind
def test_marginals_and_partial_losses(pairs: Pairs) -> None:
    """Marginals and partial losses take at most as many launches as a few losses."""
    few, loop = Bregman(10, backend="torch"), ForwardBackward(backend="torch")
    for n in (32, 64):
        chain = meta_chain(n, pairs)
        allowed = torch.empty(chain.unary.shape, dtype=torch.bool, device="meta")
        assert launches(lambda c=chain: few(c).tag_marginals) <= 160
        assert launches(lambda c=chain: few(c).value) <= 160
        assert launches(lambda c=chain: loop(c).tag_marginals) <= 5 * n + 45
        for solver, most in ((few, 400), (loop, 12 * n + 100)):
            count = launches(lambda s=solver, c=chain, a=allowed: bcrf.partial_loss(s, c, a))
            assert count <= most


@pytest.mark.parametrize("constraints", [None, BIES], ids=["free", "bioes"])
@pytest.mark.parametrize("layer_type", [bcrf.BregmanCRF, bcrf.ExactCRF])
def test_layers_do_not_wait(layer_type: type[bcrf.ChainLayer], constraints: Structure) -> None:
    layer = layer_type(TAGS, constraints=constraints).to("meta")  # type: ignore[call-arg]
    emissions = torch.empty(BATCH, 12, TAGS, device="meta", requires_grad=True)
    allowed = torch.empty(emissions.shape, dtype=torch.bool, device="meta")
    mask = torch.empty(emissions.shape[:2], dtype=torch.bool, device="meta")

    def use() -> None:
        layer.loss(emissions, meta_tags(12)).backward()
        layer.loss(emissions, meta_tags(12), mask).backward()
        layer.loss(emissions, allowed=allowed).backward()
        layer.decode_tensor(emissions)
        layer.decode_tensor(emissions, mask)
        with torch.no_grad():
            layer.marginals(emissions)

    assert launches(use) > 0
    assert emissions.grad is not None


def test_waiting_would_be_seen() -> None:
    chain = LinearChain(torch.zeros(1, 3, 2))
    with LaunchCounter(refuse_waiting=True), pytest.raises(SynchronisationError):
        Bregman(backend="torch")(chain)  # reads values, which is free on the CPU
