"""Run TorchCRF (module `TorchCRF`)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..cases import Problem
from .base import DecodeCall, LossCall, System

__all__ = ["SYSTEMS"]


def _module(problem: Problem) -> tuple[Any, Tensor, Tensor]:
    """Return the module with our transitions, the emissions, and the required mask of ones."""
    from TorchCRF import CRF

    emissions, transitions = problem.leaves(penalised=True)
    on_gpu = problem.device.type == "cuda"
    crf = CRF(problem.sizes[-1], use_gpu=on_gpu).to(problem.device)
    with torch.no_grad():
        crf.start_trans.zero_()
        crf.end_trans.zero_()
        crf.trans_matrix.copy_(transitions)
    return crf, emissions, torch.ones_like(problem.tags, dtype=torch.bool)


def _loss(problem: Problem) -> LossCall:
    crf, emissions, mask = _module(problem)

    def call() -> tuple[Tensor, tuple[Tensor, ...]]:
        value = -crf(emissions, problem.tags, mask).sum()
        return value, torch.autograd.grad(value, (emissions, crf.trans_matrix))

    return call


def _decode(problem: Problem) -> DecodeCall:
    crf, emissions, mask = _module(problem)

    @torch.no_grad()
    def call() -> list[list[int]]:
        tags: list[list[int]] = crf.viterbi_decode(emissions, mask)
        return tags

    return call


SYSTEMS = (
    System(
        "TorchCRF",
        "peer",
        "CRF(use_gpu=False, True on a GPU), full mask, start and end 0; -1e4 for constraints",
        loss=_loss,
        decode=_decode,
        pairs=("shared",),
        package="TorchCRF",
    ),
)
