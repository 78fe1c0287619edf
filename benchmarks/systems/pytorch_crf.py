"""Run pytorch-crf (module `torchcrf`)."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..cases import Problem
from .base import DecodeCall, LossCall, System

__all__ = ["SYSTEMS", "module"]


def module(problem: Problem, masked: bool = False) -> tuple[Any, Tensor]:
    """Return the module with our transitions and start and end scores 0, and the emissions."""
    import torchcrf

    emissions, transitions = problem.leaves(penalised=True, masked=masked)
    crf = torchcrf.CRF(problem.sizes[-1], batch_first=True).to(problem.device)
    with torch.no_grad():
        crf.start_transitions.zero_()
        crf.end_transitions.zero_()
        crf.transitions.copy_(transitions)
    return crf, emissions


def _loss(problem: Problem, masked: bool = False) -> LossCall:
    crf, emissions = module(problem, masked)
    mask = problem.mask if masked else None
    tags = problem.masked_tags if masked else problem.tags

    def call() -> tuple[Tensor, tuple[Tensor, ...]]:
        value = -crf(emissions, tags, mask, reduction="sum")
        return value, torch.autograd.grad(value, (emissions, crf.transitions))

    return call


def _decode(problem: Problem, masked: bool = False) -> DecodeCall:
    crf, emissions = module(problem, masked)
    mask = problem.mask if masked else None

    @torch.no_grad()
    def call() -> list[list[int]]:
        found: list[list[int]] = crf.decode(emissions, mask)
        return found

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
    System(
        "pytorch-crf, mask",
        "peer",
        "the same with a mask",
        loss=partial(_loss, masked=True),
        decode=partial(_decode, masked=True),
        pairs=("shared",),
        package="pytorch-crf",
        masked=True,
    ),
)
