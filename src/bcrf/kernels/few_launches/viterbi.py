"""Viterbi: a forward pass over maxima, and a way back along the best predecessors."""

from __future__ import annotations

import torch
from torch import Tensor

from ...chain import PAD, LinearChain
from ...numerics.logspace import widest_dtype
from .prepared import prepare

__all__ = ["viterbi"]


def viterbi(chain: LinearChain) -> tuple[Tensor, Tensor]:
    """Return the tags [B, n] of a best path, -100 beyond the length, and its score [B].

    Scores are added in float64 where the device has it, so that rounding does not decide. The best
    predecessor beyond the length is the tag itself, so every way back begins at position n - 1.
    """
    problem = prepare(chain)
    unary, outside = problem.unary, problem.outside
    batch, n, num_tags = unary.shape
    wide = widest_dtype(unary.device)
    if not n:
        return outside.long(), unary.new_zeros(batch, dtype=wide)
    scores = unary.to(wide).transpose(0, 1).contiguous()  # [n, B, T], replaced by the best sums
    buffer = scores.new_empty(batch, num_tags, num_tags)
    best = scores.new_empty(batch, num_tags)
    choices = torch.empty(n - 1, batch, num_tags, dtype=torch.int64, device=unary.device)
    for i in range(1, n):
        pair = problem.pair if problem.shared else problem.pair[:, i - 1]
        torch.add(scores[i - 1].unsqueeze(-1), pair, out=buffer)
        torch.max(buffer, 1, out=(best, choices[i - 1]))
        scores[i].add_(best)
    last = (problem.lengths - 1).clamp_(min=0).view(1, -1, 1).expand(1, -1, num_tags)
    score, tag = scores.gather(0, last).squeeze(0).max(-1)
    itself = torch.arange(num_tags, device=unary.device)
    torch.where(outside.mT[1:].unsqueeze(-1), itself, choices, out=choices)
    tags = torch.empty(n, batch, 1, dtype=torch.int64, device=unary.device)
    tags[-1, :, 0] = tag
    for i in reversed(range(n - 1)):
        torch.gather(choices[i], 1, tags[i + 1], out=tags[i])
    found = tags.squeeze(-1).mT.masked_fill(outside, PAD)
    return found, score.masked_fill_(problem.lengths == 0, 0.0)
