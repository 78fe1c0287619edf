"""What a dual point lam says about a problem: edge sums and the flow through each tag.

With w[e, s, t] - lam[e, s] + lam[e+1, t] for the arcs of edge e:

    D(lam) = sum_e log sum_{s,t} exp( ... ),        q[e] = softmax_{s,t}( ... ).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .arcs import Arcs
from .logspace import logsumexp, softmax

__all__ = ["edge_log_sums", "edge_softmax", "incoming_outgoing", "residual"]


def edge_log_sums(arcs: Arcs, lam: Tensor) -> Tensor:
    """The terms of D(lam), [B, m]; 0 beyond the length."""
    left, right = arcs.reduced(lam)
    return torch.where(arcs.edge, logsumexp(left + arcs.pair.backward(right)), 0.0)


def edge_softmax(arcs: Arcs, scores: Tensor) -> Tensor:
    """exp(scores) / sum over the arcs of each edge, [B, m, T, T]; 0 beyond the length."""
    q = softmax(scores.flatten(2)).view_as(scores)
    return torch.where(arcs.edge[..., None, None], q, 0.0)


def incoming_outgoing(arcs: Arcs, lam: Tensor) -> tuple[Tensor, Tensor]:
    """Logits [B, n, T] of the mass that enters and leaves each tag, without its own lam.

    softmax(incoming + lam) and softmax(outgoing - lam) are the two masses. At the ends of a
    sentence, where one side is missing, both are the other side; -inf at dead tags and beyond.
    """
    left, right = arcs.reduced(lam)
    alpha = torch.cat([arcs.alone[:, :1], arcs.right + arcs.pair.forward(left)], 1)
    beta = torch.cat([arcs.left + arcs.pair.backward(right), arcs.alone[:, :1]], 1)
    first = (arcs.position == 0) & ~arcs.last
    incoming = torch.where(first.unsqueeze(-1), beta, alpha)
    outgoing = torch.where(arcs.last.unsqueeze(-1), alpha, beta)
    return (
        torch.where(arcs.live, incoming, -math.inf),
        torch.where(arcs.live, outgoing, -math.inf),
    )


def residual(arcs: Arcs, lam: Tensor) -> Tensor:
    """[B]: max |in - out| over positions and tags, 0 for sentences of at most two words."""
    incoming, outgoing = incoming_outgoing(arcs, lam)
    gap = (softmax(incoming + lam) - softmax(outgoing - lam)).abs()
    return gap.flatten(1).amax(1) if gap.shape[1] else gap.new_zeros(gap.shape[0])
