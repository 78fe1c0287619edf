"""pytorch-crf (module `torchcrf`)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..cases import Problem
from .base import DecodeCall, LossCall, System

__all__ = ["SYSTEMS", "module"]


def module(problem: Problem) -> tuple[Any, Tensor]:
    """Its module with our transitions and no start and end scores, and the emissions."""
    import torchcrf

    emissions, transitions = problem.leaves(penalised=True)
    crf = torchcrf.CRF(problem.sizes[-1], batch_first=True)
    with torch.no_grad():
        crf.start_transitions.zero_()
        crf.end_transitions.zero_()
        crf.transitions.copy_(transitions)
    return crf, emissions


def _loss(problem: Problem) -> LossCall:
    crf, emissions = module(problem)

    def call() -> tuple[Tensor, tuple[Tensor, ...]]:
        value = -crf(emissions, problem.tags, reduction="sum")
        return value, torch.autograd.grad(value, (emissions, crf.transitions))

    return call


def _decode(problem: Problem) -> DecodeCall:
    crf, emissions = module(problem)

    @torch.no_grad()
    def call() -> list[list[int]]:
        tags: list[list[int]] = crf.decode(emissions)
        return tags

    return call


SYSTEMS = (
    System(
        "pytorch-crf",
        "peer",
        "CRF(batch_first=True), no mask, start and end scores 0; -1e4 for constraints",
        loss=_loss,
        decode=_decode,
        pairs=("shared",),
        package="pytorch-crf",
    ),
)
