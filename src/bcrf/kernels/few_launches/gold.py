"""The scores of gold arcs, and their part of a gradient."""

from __future__ import annotations

import torch
from torch import Tensor

from .prepared import PreparedChain

__all__ = ["gold_scores", "subtract_gold_pairs"]


def gold_scores(problem: PreparedChain, potentials: Tensor, index: Tensor, flat: Tensor) -> Tensor:
    """Return the scores [B, n] of gold arcs, as `arc_sums` adds them up; entry i ends at i.

    Args:
        potentials: [2, B, n, T], outgoing and incoming scores.
        index, flat: the result of `PreparedChain.gold`.
    """
    positions = index.unsqueeze(-1).expand(2, *index.shape, 1)
    outgoing, incoming = potentials.gather(-1, positions).squeeze(-1).unbind(0)
    if problem.shared:
        pair = torch.take(problem.pair, flat)
    else:
        pair = problem.pair.flatten(2).gather(-1, flat.unsqueeze(-1)).squeeze(-1)
    incoming[:, 1:].add_(pair).add_(outgoing[:, :-1])
    return incoming


def subtract_gold_pairs(pair: Tensor, minus_one_hot: Tensor) -> None:
    """Subtract 1 from `pair`, [B, T, T] or [B, n-1, T, T], at each gold arc, in place.

    A product of one-hot vectors gives the same result in each run; adding to indices would not.
    """
    before, after = minus_one_hot[:, :-1], minus_one_hot[:, 1:]
    if pair.dim() == 3:
        pair.baddbmm_(before.mT, after, alpha=-1)
    else:
        pair.addcmul_(before.unsqueeze(-1), after.unsqueeze(-2), value=-1)
