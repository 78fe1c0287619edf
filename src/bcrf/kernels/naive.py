"""The algorithms as they are written down: one sentence, one position at a time.

Slow on purpose; the oracle of every other kernel.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ..arcs import Arcs
from ..logspace import logsumexp

__all__ = ["backward_messages", "best_paths", "forward_messages", "project"]


def project(
    arcs: Arcs, lam: Tensor, omegas: Sequence[float], first: int, tolerance: float | None
) -> Tensor:
    """Algorithm 1 of the paper (BcrfInference), with relaxation and a stop rule.

    The k-th step projects the arcs around all interior positions of one parity, `first` (1 or 2)
    setting that of step 0. A projection at position i multiplies incoming arcs by exp(sigma) and
    outgoing ones by exp(-sigma), then normalises both (the paper's nu); relaxation raises the
    factor to the power omega. `lam` adds up the sigmas.

    With a tolerance a sentence stops once max |in - out| is within it and its last step had
    omega = 1; it takes that step as soon as it is within tolerance, or at the end of the budget.

    Args:
        arcs: the problem.
        lam: [B, n, T], where to start; 0 outside `arcs.free`.
        omegas: relaxation of each step; their number is k, or the maximum with a tolerance.
        first: 0-based position of the first projected one.
        tolerance: None runs all steps.
    Returns:
        [B, n, T], lam after the last step.
    """
    w = arcs.scores(lam)
    lam = lam.clone()
    for b, n in enumerate(arcs.lengths.tolist()):
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
                sigma = torch.where(arcs.free[b, i], omega * sigma, 0.0)
                log_q[i - 1] = _normalised(incoming + sigma[None, :])
                log_q[i] = _normalised(outgoing - sigma[:, None])
                lam[b, i] += sigma
    return lam


def _normalised(log_q: Tensor) -> Tensor:
    return log_q - logsumexp(log_q.flatten(), 0)


def _residual(log_q: Tensor) -> float:
    """max |in - out| over the interior positions of one sentence, log_q [n-1, T, T]."""
    q = torch.stack([_normalised(edge).exp() for edge in log_q]) if len(log_q) else log_q
    incoming, outgoing = q[:-1].sum(1), q[1:].sum(2)
    return float((incoming - outgoing).abs().max()) if incoming.numel() else 0.0


def backward_messages(arcs: Arcs) -> tuple[Tensor, Tensor]:
    """beta[i, s] = log of the summed weight of all path ends after tag s at position i.

    Returns:
        beta [B, n, T], -inf at dead tags and 0 beyond the length (its position 0 holds the start
        scores too), and a [B] log scale: the log-partition is logsumexp(beta[:, 0]) + scale.
    """
    w = arcs.scores()
    beta = arcs.alone.clone()  # 0 but for the only word of a sentence, which nothing follows
    for b, n in enumerate(arcs.lengths.tolist()):
        for i in reversed(range(n)):
            message = beta[b, i] if i == n - 1 else logsumexp(w[b, i] + beta[b, i + 1], 1)
            beta[b, i] = torch.where(arcs.live[b, i], message, -math.inf)
    return beta, w.new_zeros(len(beta))


def forward_messages(arcs: Arcs) -> Tensor:
    """alpha[i, t] = log of the summed weight of all path beginnings before tag t at position i.

    [B, n, T], up to a constant per position; 0 at live tags of position 0, -inf at dead tags; any
    finite number beyond the length.
    """
    w = arcs.scores()
    alpha = torch.zeros_like(arcs.alone)
    for b, n in enumerate(arcs.lengths.tolist()):
        for i in range(n):
            message = logsumexp(alpha[b, i - 1, :, None] + w[b, i - 1], 0) if i else alpha[b, 0]
            alpha[b, i] = torch.where(arcs.live[b, i], message, -math.inf)
    return alpha


def best_paths(arcs: Arcs) -> Tensor:
    """Viterbi: tags [B, n] of a best path of each sentence, 0 beyond the length."""
    tags = torch.zeros(arcs.live.shape[:2], dtype=torch.int64, device=arcs.live.device)
    w = arcs.scores().double()
    for b, n in enumerate(arcs.lengths.tolist()):
        if n == 1:
            tags[b, 0] = arcs.alone[b, 0].argmax()
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
