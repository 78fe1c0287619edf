"""Run `structs.LinearChainCRF` of supar."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..cases import Problem
from .base import DecodeCall, LossCall, System

__all__ = ["SYSTEMS"]


def _arguments(problem: Problem) -> tuple[Any, Tensor, Tensor]:
    """Return the class, the emissions, and the transitions [T+1, T+1].

    The last row and column hold the start and end scores, which are 0.
    """
    from supar.structs import LinearChainCRF

    emissions, transitions = problem.leaves(penalised=True)
    padded = torch.nn.functional.pad(transitions.detach(), (0, 1, 0, 1)).requires_grad_()
    return LinearChainCRF, emissions, padded


def _loss(problem: Problem) -> LossCall:
    crf, emissions, transitions = _arguments(problem)

    def call() -> tuple[Tensor, tuple[Tensor, ...]]:
        value = -crf(emissions, transitions).log_prob(problem.tags).sum()
        return value, torch.autograd.grad(value, (emissions, transitions))

    return call


def _decode(problem: Problem) -> DecodeCall:
    crf, emissions, transitions = _arguments(problem)
    transitions = transitions.detach()

    def call() -> Tensor:
        tags: Tensor = crf(emissions, transitions).argmax
        return tags

    return call


SYSTEMS = (
    System(
        "supar",
        "peer",
        "structs.LinearChainCRF(scores, trans).log_prob / .argmax; -1e4 for constraints",
        loss=_loss,
        decode=_decode,
        pairs=("shared",),
        package="supar",
    ),
)
