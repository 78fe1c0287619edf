"""The CRF as a Markov chain from left to right: samples, entropy, divergence."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..chain import LinearChain
from ..checks import check_count, checks_enabled
from ..logspace import clamp_rounding, softmax
from ..room import without_room
from .crf import CRFSolution, ForwardBackward

__all__ = ["entropy", "kl", "sample"]


@torch.no_grad()
def sample(
    chain: LinearChain, num_samples: int, generator: torch.Generator | None = None
) -> Tensor:
    """Independent tag sequences from the CRF p(y) = exp(<w, y> - A(w)).

    Returns:
        [S, B, n], -100 beyond the length.
    """
    check_count("num_samples", num_samples)
    solution = ForwardBackward()(chain.detach())
    arcs, beta = solution.arcs, solution.beta
    batch, n, num_tags = chain.unary.shape
    tags = torch.zeros(num_samples, batch, n, dtype=torch.int64, device=beta.device)
    pairs = arcs.pair.edge_scores(n - 1)
    for i in range(n if num_samples and batch else 0):
        if i == 0:
            logits = beta[:, 0].expand(num_samples, batch, num_tags)
        else:
            e = i - 1
            pair = pairs[e].expand(batch, -1, -1)
            before = tags[..., e].unsqueeze(-1).expand(-1, -1, num_tags).unsqueeze(2)
            rows = pair.expand(num_samples, -1, -1, -1).gather(2, before).squeeze(2)
            logits = rows + (arcs.right[:, e] + beta[:, i])
        logits = torch.where(arcs.inside[:, i].unsqueeze(-1), logits, 0.0)
        probabilities = softmax(logits).flatten(0, 1)
        draw = torch.multinomial(probabilities, 1, generator=generator)
        tags[..., i] = draw.view(num_samples, batch)
    return chain.pad(tags)


def entropy(chain: LinearChain) -> Tensor:
    """[B]: entropy of the CRF in nats, differentiable, never negative."""
    solution = ForwardBackward()(chain)
    first, following = (_row_entropy(log_p) for log_p in solution.log_conditionals())
    return _expectation(solution, first, following)


def kl(chain: LinearChain, other: LinearChain) -> Tensor:
    """[B]: KL(p || q) of two CRFs over the same sentences, differentiable, never negative.

    +inf where `other` has removed a path that `chain` can take.
    """
    if chain.unary.shape != other.unary.shape:
        raise ValueError(
            f"both chains must have one shape [B, n, T], got {list(chain.unary.shape)} and "
            f"{list(other.unary.shape)}"
        )
    if checks_enabled(chain.unary) and not torch.equal(chain.lengths, other.lengths):
        sentence = int((chain.lengths != other.lengths).nonzero()[0])
        raise ValueError(
            f"sentence {sentence} has length {int(chain.lengths[sentence])} in one chain and "
            f"{int(other.lengths[sentence])} in the other"
        )
    solution = ForwardBackward()(chain)
    p, q = solution.log_conditionals(), ForwardBackward()(other).log_conditionals()
    # By the arcs, not by their probabilities: those may be too small for a float.
    live, inside = without_room(solution.arcs.live), chain.mask
    first, following = (_lacking(*pair) for pair in zip(p, q, strict=True))
    taken = live[:, :-1] & inside[:, 1:].unsqueeze(-1)
    lacking = (following & taken).flatten(1).any(1) | (first & inside[:, :1]).any(1)
    divergence = _expectation(solution, _row_kl(p[0], q[0]), _row_kl(p[1], q[1]))
    return torch.where(lacking, math.inf, divergence)


def _row_entropy(log_p: Tensor) -> Tensor:
    """-sum_t p log p over the last axis, 0 log 0 = 0."""
    return -(torch.exp(log_p) * torch.where(log_p > -math.inf, log_p, 0.0)).sum(-1)


def _lacking(log_p: Tensor, log_q: Tensor) -> Tensor:
    """Whether q = 0 < p somewhere on the last axis."""
    return ((log_p > -math.inf) & (log_q == -math.inf)).any(-1)


def _row_kl(log_p: Tensor, log_q: Tensor) -> Tensor:
    """sum_t p (log p - log q) over the last axis, where both are positive."""
    both = (log_p > -math.inf) & (log_q > -math.inf)
    difference = torch.where(both, log_p, 0.0) - torch.where(both, log_q, 0.0)
    return clamp_rounding((torch.exp(log_p) * difference).sum(-1))


def _expectation(solution: CRFSolution, first: Tensor, following: Tensor) -> Tensor:
    """first [B, 1] + sum_e E_{s ~ p_e} following[e, s] (following [B, m, T]), within the length."""
    p, inside = solution.tag_probabilities(), solution.chain.mask
    terms = torch.where(inside[:, 1:].unsqueeze(-1), p[:, :-1] * following, 0.0)
    return torch.where(inside[:, :1], first, 0.0).sum(1) + terms.sum((1, 2))
