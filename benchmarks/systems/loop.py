"""Run a plain loop over positions in eager torch, differentiated by autograd.

A careful user would write this loop. It calls `unbind` once instead of slicing at each position,
because the gradient of each slice would have the size of the whole tensor.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..cases import Problem
from .base import DecodeCall, LossCall, System

__all__ = ["SYSTEMS", "path_score"]


def path_score(unary: Tensor, transitions: Tensor, tags: Tensor) -> Tensor:
    """Return the scores [B] of the gold sequences."""
    before, after = tags[:, :-1], tags[:, 1:]
    if transitions.dim() == 2:
        steps = transitions[before, after]
    else:
        sentence = torch.arange(len(tags), device=tags.device).unsqueeze(1)
        edge = torch.arange(before.shape[1], device=tags.device)
        steps = transitions[sentence, edge, before, after]
    return unary.gather(-1, tags.unsqueeze(-1)).sum((1, 2)) + steps.sum(1)


def _steps(unary: Tensor, transitions: Tensor) -> tuple[Tensor, Sequence[tuple[Tensor, Tensor]]]:
    """Return the scores of position 0, and (transitions, scores) for each later position."""
    first, *rest = unary.unbind(1)
    shared = transitions.dim() == 2
    matrices = [transitions] * len(rest) if shared else transitions.unbind(1)
    return first, list(zip(matrices, rest, strict=True))


def _loss(problem: Problem) -> LossCall:
    leaves = problem.leaves(penalised=True)

    def call() -> tuple[Tensor, tuple[Tensor, ...]]:
        alpha, steps = _steps(*leaves)
        for matrix, scores in steps:
            alpha = torch.logsumexp(alpha.unsqueeze(-1) + matrix, 1) + scores
        gold = path_score(leaves[0], leaves[1], problem.tags)
        value = (torch.logsumexp(alpha, -1) - gold).sum()
        return value, torch.autograd.grad(value, leaves)

    return call


def _decode(problem: Problem) -> DecodeCall:
    unary, transitions = problem.penalised()

    @torch.no_grad()
    def call() -> Tensor:
        best, steps = _steps(unary, transitions)
        choices = []
        for matrix, scores in steps:
            best, choice = (best.unsqueeze(-1) + matrix).max(1)
            best = best + scores
            choices.append(choice)
        tags = [best.argmax(-1, keepdim=True)]
        for choice in reversed(choices):
            tags.append(choice.gather(1, tags[-1]))
        return torch.cat(tags[::-1], 1)

    return call


SYSTEMS = (
    System(
        "eager loop",
        "peer",
        "logsumexp / max per position, autograd; backtrace batched; -1e4 for constraints",
        loss=_loss,
        decode=_decode,
        package="torch",
    ),
)
