"""The "naive" backend: the algorithms as the paper states them, one position at a time.

It is slow. The tests compare the other backends with it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ..numerics.logspace import logsumexp
from .folded_chain import FoldedChain

__all__ = ["backward_messages", "best_paths", "forward_messages", "project"]


def project(
    folded: FoldedChain, lam: Tensor, omegas: Sequence[float], first: int, tolerance: float | None
) -> Tensor:
    """Run Algorithm 1 of the paper (BcrfInference) with relaxation; return the dual point lam.

    Step k projects the arcs around all interior positions of one parity; step 0 begins at position
    `first` (1 or 2). A projection at position i multiplies the incoming arcs by exp(sigma) and the
    outgoing arcs by exp(-sigma), then normalises both (the paper's nu). Relaxation raises these
    factors to the power omega. `lam` is the starting point plus the sum of the sigmas.

    With a tolerance, a sentence stops once its residual max |incoming - outgoing| is within the
    tolerance and its last step had omega = 1. A sentence whose residual is within the tolerance
    takes its next step with omega = 1. So does every sentence in the last iteration.

    Args:
        folded: the problem.
        lam: [B, n, T], the starting point; 0 outside `folded.interior_live`.
        omegas: the relaxation of each step. Without a tolerance, all of these steps are made.
        first: 0-based position at which step 0 begins.
        tolerance: the largest residual at which a sentence stops; None: run all steps.
    Returns:
        [B, n, T], lam after the last step.
    """
    w = folded.scores(lam)
    lam = lam.clone()
    for b, n in enumerate(folded.lengths.tolist()):
        log_q = w[b].clone()
        omega = 1.0
        for k, planned in enumerate(omegas):
            if tolerance is not None:
                close = _residual(log_q[: n - 1]) <= tolerance
                if close and omega == 1.0:
                    break
                omega = 1.0 if close or k == len(omegas) - 1 else planned
            else:
                omega = planned
            for i in range(first if k % 2 == 0 else 3 - first, n - 1, 2):
                incoming, outgoing = log_q[i - 1], log_q[i]
                sigma = (logsumexp(outgoing, 1) - logsumexp(incoming, 0)) / 2
                sigma = torch.where(folded.interior_live[b, i], omega * sigma, 0.0)
                log_q[i - 1] = _normalised(incoming + sigma[None, :])
                log_q[i] = _normalised(outgoing - sigma[:, None])
                lam[b, i] += sigma
    return lam


def _normalised(log_q: Tensor) -> Tensor:
    return log_q - logsumexp(log_q.flatten(), 0)


def _residual(log_q: Tensor) -> float:
    """Return max |incoming - outgoing| over the interior positions of log_q [n-1, T, T]."""
    q = torch.stack([_normalised(edge).exp() for edge in log_q]) if len(log_q) else log_q
    incoming, outgoing = q[:-1].sum(1), q[1:].sum(2)
    return float((incoming - outgoing).abs().max()) if incoming.numel() else 0.0


def backward_messages(folded: FoldedChain) -> tuple[Tensor, Tensor]:
    """Return beta[i, s]: log of the total weight of all continuations of tag s at position i.

    Returns:
        beta [B, n, T], -inf at dead tags and 0 beyond the length, and a log scale [B]. The messages
        of position 0 include the start scores. So the log-partition is
        logsumexp(beta[:, 0]) + scale.
    """
    w = folded.scores()
    beta = folded.single_scores.clone()  # 0, except in sentences of one position
    for b, n in enumerate(folded.lengths.tolist()):
        for i in reversed(range(n)):
            message = beta[b, i] if i == n - 1 else logsumexp(w[b, i] + beta[b, i + 1], 1)
            beta[b, i] = torch.where(folded.live[b, i], message, -math.inf)
    return beta, w.new_zeros(len(beta))


def forward_messages(folded: FoldedChain) -> Tensor:
    """Return alpha[i, t]: log of the total weight of all partial paths to tag t at position i.

    The shape is [B, n, T]. Messages are defined up to a constant per position. They are 0 at live
    tags of position 0, -inf at dead tags, and any finite number beyond the length.
    """
    w = folded.scores()
    alpha = torch.zeros_like(folded.single_scores)
    for b, n in enumerate(folded.lengths.tolist()):
        for i in range(n):
            message = logsumexp(alpha[b, i - 1, :, None] + w[b, i - 1], 0) if i else alpha[b, 0]
            alpha[b, i] = torch.where(folded.live[b, i], message, -math.inf)
    return alpha


def best_paths(folded: FoldedChain) -> Tensor:
    """Return the tags [B, n] of a best path (Viterbi), 0 beyond the length."""
    tags = torch.zeros(folded.live.shape[:2], dtype=torch.int64, device=folded.live.device)
    w = folded.scores().double()
    for b, n in enumerate(folded.lengths.tolist()):
        if n == 1:
            tags[b, 0] = folded.single_scores[b, 0].argmax()
        if n < 2:
            continue
        best = w.new_zeros(w.shape[-1])
        choices = []
        for e in range(n - 1):
            best, choice = (best[:, None] + w[b, e]).max(0)
            choices.append(choice)
        tags[b, n - 1] = best.argmax()
        for e in reversed(range(n - 1)):
            tags[b, e] = choices[e][tags[b, e + 1]]
    return tags
