"""Run our solvers and decoders on each backend as in the README, with value checks."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

import bcrf

from ..cases import PAIRS, Problem
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

DecoderFunction = Callable[[bcrf.LinearChain, str], Tensor]


def _at_low_temperature(family: str) -> DecoderFunction:
    return lambda chain, backend: bcrf.decode(SOLVERS[family](backend), chain, temperature=0.1)


DECODERS: dict[str, DecoderFunction] = {
    "viterbi": lambda chain, backend: bcrf.viterbi(chain, backend)[1],
    "certified": lambda chain, backend: bcrf.certified_decode(chain, 10, backend=backend).tags,
    "bregman": _at_low_temperature("bregman"),
    "mean field": lambda chain, backend: bcrf.decode(SOLVERS["mean field"](backend), chain),
    "unstructured": lambda chain, backend: bcrf.decode(SOLVERS["unstructured"](backend), chain),
}


def auto_backend(device: torch.device) -> str:
    """Return the backend that "auto" selects, and why it is not the one with compiled kernels."""
    compiled = "native" if device.type == "cpu" else "triton"
    missing = bcrf.backends().get(compiled, "this version has no such kernels")
    if missing is None:
        return compiled
    return f"torch, because {compiled} is not available: {missing}"


def reference_loss(family: str, problem: Problem, masked: bool) -> tuple[Tensor, Tensor]:
    """Return the right loss of a family and its gradient with respect to the unary scores.

    Both are computed in float64 on the torch backend.
    """
    solver = SOLVERS[family]("torch")
    value, grads = _loss(solver, problem.double(), masked)()
    assert grads[0] is not None
    return value.detach(), grads[0]


def _loss(solver: bcrf.Solver, problem: Problem, masked: bool = False) -> LossCall:
    leaves = problem.leaves()
    lengths = problem.lengths if masked else None
    tags = problem.masked_tags if masked else problem.tags

    def call() -> tuple[Tensor, tuple[Tensor | None, ...]]:
        value = bcrf.loss(solver, problem.chain(*leaves, lengths), tags).sum()
        # The unstructured model does not use the transitions.
        return value, torch.autograd.grad(value, leaves, allow_unused=True)

    return call


def _decode(decoder: DecoderFunction, backend: str, problem: Problem, masked: bool) -> DecodeCall:
    lengths = problem.lengths if masked else None

    def call() -> Tensor:
        with torch.no_grad():
            return decoder(problem.chain(lengths=lengths), backend)

    return call


def _learner(
    name: str, settings: str, family: str, solver: str, backend: str, masked: bool = False
) -> System:
    return System(
        name,
        "ours",
        settings,
        loss=lambda problem: _loss(SOLVERS[solver](backend), problem, masked),
        family=family,
        pairs=("shared",) if masked else PAIRS,
        masked=masked,
    )


def _decoder(name: str, settings: str, decoder: str, backend: str, masked: bool = False) -> System:
    return System(
        name,
        "ours",
        settings,
        decode=lambda problem: _decode(DECODERS[decoder], backend, problem, masked),
        exact=decoder in ("viterbi", "certified"),
        pairs=("shared",) if masked else PAIRS,
        masked=masked,
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
    # The layers with a mask are compared with these systems.
    _learner("crf, lengths", "ForwardBackward(), lengths in the chain", "crf", "crf", "auto", True),
    _learner(
        "bregman-10, lengths",
        "Bregman(10), lengths in the chain",
        "bregman",
        "bregman",
        "auto",
        True,
    ),
    _decoder("viterbi, lengths", "viterbi(chain), lengths in the chain", "viterbi", "auto", True),
)
