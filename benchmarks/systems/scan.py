"""Run an associative scan in eager torch: multiply neighbouring matrices until one is left.

The depth is log n and the work is n T^3. Autograd computes the gradient.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..cases import Problem
from .base import DecodeCall, LossCall, System
from .loop import path_score

__all__ = ["SYSTEMS"]

BYTES = 1 << 30


def _arcs(unary: Tensor, transitions: Tensor) -> Tensor:
    """Return arc scores [B, n-1, T, T].

    Each arc score includes the unary score of its target position. The arcs that leave the first
    position also include the unary score of the first position.
    """
    arcs = transitions + unary[:, 1:].unsqueeze(-2)
    first = arcs[:, :1] + unary[:, :1].unsqueeze(-1)
    return torch.cat([first, arcs[:, 1:]], 1)


def _product(arcs: Tensor, matmul: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Return the product [B, T, T] of all matrices of a chain."""
    while (m := arcs.shape[1]) > 1:
        pairs = matmul(arcs[:, 0 : m - 1 : 2], arcs[:, 1::2])
        arcs = torch.cat([pairs, arcs[:, -1:]], 1) if m % 2 else pairs
    return arcs[:, 0]


def _log_matmul(a: Tensor, b: Tensor) -> Tensor:
    """Multiply matrices in the log domain: exponentiate both, then take one matrix product."""
    peak_a, peak_b = a.detach().amax(-1, keepdim=True), b.detach().amax(-2, keepdim=True)
    mass = torch.exp(a - peak_a) @ torch.exp(b - peak_b)
    return torch.log(mass.clamp(min=1e-37)) + peak_a + peak_b


def _max_matmul(a: Tensor, b: Tensor) -> Tensor:
    return (a.unsqueeze(-1) + b.unsqueeze(-3)).amax(-2)


def _loss(problem: Problem) -> LossCall:
    leaves = problem.leaves(penalised=True)

    def call() -> tuple[Tensor, tuple[Tensor, ...]]:
        total = _product(_arcs(*leaves), _log_matmul).flatten(1).logsumexp(-1)
        value = (total - path_score(leaves[0], leaves[1], problem.tags)).sum()
        return value, torch.autograd.grad(value, leaves)

    return call


def _decode(problem: Problem) -> DecodeCall:
    unary, transitions = problem.penalised()

    def call() -> Tensor:
        # The gradient of the maximum is 1 at the arcs of the best path and 0 elsewhere.
        arcs = _arcs(unary, transitions).requires_grad_()
        best = _product(arcs, _max_matmul).flatten(1).amax(-1)
        (used,) = torch.autograd.grad(best.sum(), arcs)
        first = used[:, :1].sum(-1).argmax(-1)
        return torch.cat([first, used.sum(-2).argmax(-1)], 1)

    return call


def _limit(problem: Problem, task: str) -> str | None:
    batch, length, tags = problem.sizes
    size = 4 * batch * length * tags**3
    if task == "decode" and size > BYTES:
        return f"max-plus products of n T^3 numbers would take {size / 2**30:.1f} GB"
    return None


SYSTEMS = (
    System(
        "eager scan",
        "peer",
        "tree of matrix products (scaling form), autograd; max-plus and its gradient to decode; "
        "-1e4 for constraints",
        loss=_loss,
        decode=_decode,
        package="torch",
        limit=_limit,
    ),
)
