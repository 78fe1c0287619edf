"""The scores along given tag sequences."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["path_scores"]


def path_scores(unary: Tensor, transitions: Tensor | None, index: Tensor) -> tuple[Tensor, Tensor]:
    """Return unary [..., B, n] and transition [..., B, n-1] scores along tags [..., B, n].

    Args:
        unary: [B, n, T].
        transitions: [T, T] or [B, n-1, T, T]; None: all zero.
        index: int64 [..., B, n].
    """
    scores = unary.expand(*index.shape[:-2], *unary.shape)
    by_position = scores.gather(-1, index.unsqueeze(-1)).squeeze(-1)
    before, after = index[..., :-1], index[..., 1:]
    if transitions is None:
        return by_position, by_position.new_zeros(before.shape)
    if transitions.dim() == 2:
        return by_position, transitions[before, after]
    sentence = torch.arange(unary.shape[0], device=unary.device).unsqueeze(1)
    edge = torch.arange(before.shape[-1], device=unary.device)
    return by_position, transitions[sentence, edge, before, after]
