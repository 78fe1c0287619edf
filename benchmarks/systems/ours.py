"""Our families and backends, called as the README calls them, value checks on."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

import bcrf
from bcrf import kernels

from ..cases import Problem
from .base import DecodeCall, LossCall, System

__all__ = ["DECODERS", "SOLVERS", "SYSTEMS", "auto_backend", "reference_loss"]

SOLVERS: dict[str, Callable[[str], bcrf.Solver]] = {
    "crf": lambda backend: bcrf.ForwardBackward(backend=backend),
    "crf scan": lambda backend: bcrf.ForwardBackward(parallel=True),
    "bregman": lambda backend: bcrf.Bregman(10, backend=backend),
    "paper": lambda backend: bcrf.Bregman.paper(10),
    "mean field": lambda backend: bcrf.MeanField(10),
    "unstructured": lambda backend: bcrf.Unstructured(),
}

Decoder = Callable[[bcrf.LinearChain, str], Tensor]


def _cold(family: str) -> Decoder:
    return lambda chain, backend: bcrf.decode(SOLVERS[family](backend), chain, temperature=0.1)


DECODERS: dict[str, Decoder] = {
    "viterbi": lambda chain, backend: bcrf.viterbi(chain, backend)[1],
    "certified": lambda chain, backend: bcrf.certified_decode(chain, 10, backend=backend).tags,
    "bregman": _cold("bregman"),
    "mean field": lambda chain, backend: bcrf.decode(SOLVERS["mean field"](backend), chain),
    "unstructured": lambda chain, backend: bcrf.decode(SOLVERS["unstructured"](backend), chain),
}


def auto_backend() -> str:
    """The kernel that backend="auto" takes on this CPU, and why it is not the compiled one."""
    missing = kernels.backends()["native"]
    return "native" if missing is None else f"torch, because native is not available: {missing}"


def reference_loss(family: str, problem: Problem) -> tuple[Tensor, Tensor]:
    """Loss and gradient by the unary scores that a family should give: float64, torch backend."""
    wide = problem.double()
    solver = SOLVERS[family]("torch")
    value, grads = _loss(solver, wide)()
    assert grads[0] is not None
    return value.detach(), grads[0]


def _loss(solver: bcrf.Solver, problem: Problem) -> LossCall:
    leaves = problem.leaves()

    def call() -> tuple[Tensor, tuple[Tensor | None, ...]]:
        value = bcrf.loss(solver, problem.chain(*leaves), problem.tags).sum()
        # The unstructured model does not use the transitions.
        return value, torch.autograd.grad(value, leaves, allow_unused=True)

    return call


def _decode(decoder: Decoder, backend: str, problem: Problem) -> DecodeCall:
    def call() -> Tensor:
        with torch.no_grad():
            return decoder(problem.chain(), backend)

    return call


def _learner(name: str, settings: str, family: str, solver: str, backend: str) -> System:
    return System(
        name,
        "ours",
        settings,
        loss=lambda problem: _loss(SOLVERS[solver](backend), problem),
        family=family,
    )


def _decoder(name: str, settings: str, decoder: str, backend: str) -> System:
    return System(
        name,
        "ours",
        settings,
        decode=lambda problem: _decode(DECODERS[decoder], backend, problem),
        exact=decoder in ("viterbi", "certified"),
    )


SYSTEMS: tuple[System, ...] = (
    _learner("crf", "ForwardBackward()", "crf", "crf", "auto"),
    _learner("crf torch", 'ForwardBackward(backend="torch")', "crf", "crf", "torch"),
    _learner("crf scan", "ForwardBackward(parallel=True)", "crf", "crf scan", "auto"),
    _learner("bregman-10", "Bregman(10)", "bregman", "bregman", "auto"),
    _learner("bregman-10 torch", 'Bregman(10, backend="torch")', "bregman", "bregman", "torch"),
    _learner("bregman-10 paper", "Bregman.paper(10)", "paper", "paper", "auto"),
    _learner("mean field-10", "MeanField(10)", "mean field", "mean field", "auto"),
    _learner("unstructured", "Unstructured()", "unstructured", "unstructured", "auto"),
    _decoder("viterbi", "viterbi(chain)", "viterbi", "auto"),
    _decoder("viterbi torch", 'viterbi(chain, "torch")', "viterbi", "torch"),
    _decoder("certified-10", "certified_decode(chain, 10)", "certified", "auto"),
    _decoder(
        "certified-10 torch", 'certified_decode(chain, 10, backend="torch")', "certified", "torch"
    ),
    _decoder("bregman-10 MBR", "decode(Bregman(10), chain, 0.1)", "bregman", "auto"),
    _decoder("mean field-10 MBR", "decode(MeanField(10), chain)", "mean field", "auto"),
    _decoder("unstructured MBR", "decode(Unstructured(), chain)", "unstructured", "auto"),
)
