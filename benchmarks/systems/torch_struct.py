"""Run `LinearChainCRF` of torch-struct over arc potentials."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor

from ..cases import Problem
from .base import DecodeCall, LossCall, System

__all__ = ["SYSTEMS"]


def _potentials(unary: Tensor, transitions: Tensor) -> Tensor:
    """Return potentials [B, n-1, to, from]. Each includes the unary score of its target."""
    arcs = transitions.mT + unary[:, 1:].unsqueeze(-1)
    return torch.cat([arcs[:, :1] + unary[:, :1].unsqueeze(-2), arcs[:, 1:]], 1)


def _library() -> Any:
    import torch_struct

    # torch-struct was written for an older torch.distributions; newer ones warn at every call.
    warnings.filterwarnings("ignore", message=".*arg_constraints.*")
    return torch_struct


def _loss(problem: Problem) -> LossCall:
    library = _library()
    leaves = problem.leaves(penalised=True)
    gold = library.LinearChainCRF.struct.to_parts(problem.tags, problem.sizes[-1]).float()

    def call() -> tuple[Tensor, tuple[Tensor, ...]]:
        value = -library.LinearChainCRF(_potentials(*leaves)).log_prob(gold).sum()
        return value, torch.autograd.grad(value, leaves)

    return call


def _decode(problem: Problem) -> DecodeCall:
    library = _library()
    unary, transitions = problem.penalised()

    def call() -> Tensor:
        used = library.LinearChainCRF(_potentials(unary, transitions)).argmax
        # `from_parts` of torch-struct would be a slow Python loop over words.
        first = used[:, :1].sum(-2).argmax(-1)
        return torch.cat([first, used.sum(-1).argmax(-1)], 1)

    return call


SYSTEMS = (
    System(
        "torch-struct",
        "peer",
        "LinearChainCRF(potentials).log_prob / .argmax; gold parts made and tags read off outside "
        "of its own loops; -1e4 for constraints",
        loss=_loss,
        decode=_decode,
        package="torch-struct",
    ),
)
