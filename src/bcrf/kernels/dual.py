"""Terms of the dual D at a point lam [B, n, T], and the mass that flows through each tag.

The arcs of edge e have the reduced scores w[e, s, t] - lam[e, s] + lam[e+1, t]. With these scores:

    D(lam) = sum_e log sum_{s,t} exp( ... ),        q[e] = softmax_{s,t}( ... ).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..numerics.logspace import logsumexp, softmax
from .folded_chain import FoldedChain

__all__ = ["edge_log_sums", "edge_softmax", "incoming_outgoing", "residual"]


def edge_log_sums(folded: FoldedChain, lam: Tensor) -> Tensor:
    """Return the terms of D(lam), [B, m]; 0 beyond the length."""
    left, right = folded.reduced(lam)
    return torch.where(folded.edge, logsumexp(left + folded.transitions.backward(right)), 0.0)


def edge_softmax(folded: FoldedChain, scores: Tensor) -> Tensor:
    """Return the softmax of [B, m, T, T] scores over the arcs of each edge; 0 beyond the length."""
    q = softmax(scores.flatten(2)).view_as(scores)
    return torch.where(folded.edge[..., None, None], q, 0.0)


def incoming_outgoing(folded: FoldedChain, lam: Tensor) -> tuple[Tensor, Tensor]:
    """Return logits [B, n, T] of the mass that enters, and of the mass that leaves, each tag.

    The logits of a tag do not include its own lam: the two masses are softmax(incoming + lam) and
    softmax(outgoing - lam). The first and the last position of a sentence have arcs on one side
    only; there both results are the logits of that side. Dead tags and padding have -inf.
    """
    left, right = folded.reduced(lam)
    alpha = torch.cat(
        [folded.single_scores[:, :1], folded.right + folded.transitions.forward(left)], 1
    )
    beta = torch.cat(
        [folded.left + folded.transitions.backward(right), folded.single_scores[:, :1]], 1
    )
    first = (folded.position == 0) & ~folded.last
    incoming = torch.where(first.unsqueeze(-1), beta, alpha)
    outgoing = torch.where(folded.last.unsqueeze(-1), alpha, beta)
    return (
        torch.where(folded.live, incoming, -math.inf),
        torch.where(folded.live, outgoing, -math.inf),
    )


def residual(folded: FoldedChain, lam: Tensor) -> Tensor:
    """Return max |incoming - outgoing| mass over positions and tags, [B].

    It is 0 for sentences of at most two positions.
    """
    incoming, outgoing = incoming_outgoing(folded, lam)
    gap = (softmax(incoming + lam) - softmax(outgoing - lam)).abs()
    return gap.flatten(1).amax(1) if gap.shape[1] else gap.new_zeros(gap.shape[0])
