"""Samples, entropy and KL divergence of a CRF, computed as a Markov chain from left to right."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..chain import LinearChain
from ..checks import check_count, checks_enabled
from ..compat.graph_padding import remove_graph_padding
from ..numerics.logspace import clamp_rounding, softmax
from .crf import CRFSolution, ForwardBackward

__all__ = ["entropy", "kl", "sample"]


@torch.no_grad()
def sample(
    chain: LinearChain, num_samples: int, generator: torch.Generator | None = None
) -> Tensor:
    """Return independent tag sequences, drawn from the CRF p(y) = exp(<w, y> - A(w)).

    Returns:
        [S, B, n], -100 beyond the length.

    Example:
        >>> import torch, bcrf
        >>> chain = bcrf.LinearChain(torch.tensor([[[50.0, 0.0], [0.0, 50.0]]]))
        >>> bcrf.sample(chain, 3, torch.Generator().manual_seed(0))
        tensor([[[0, 1]],
        <BLANKLINE>
                [[0, 1]],
        <BLANKLINE>
                [[0, 1]]])
    """
    check_count("num_samples", num_samples)
    solution = ForwardBackward()(chain.detach())
    folded, beta = solution.folded, solution.beta
    batch, n, num_tags = chain.unary.shape
    tags = torch.zeros(num_samples, batch, n, dtype=torch.int64, device=beta.device)
    pairs = folded.transitions.edge_scores(n - 1)
    for i in range(n if num_samples and batch else 0):
        if i == 0:
            logits = beta[:, 0].expand(num_samples, batch, num_tags)
        else:
            e = i - 1
            pair = pairs[e].expand(batch, -1, -1)
            before = tags[..., e].unsqueeze(-1).expand(-1, -1, num_tags).unsqueeze(2)
            rows = pair.expand(num_samples, -1, -1, -1).gather(2, before).squeeze(2)
            logits = rows + (folded.right[:, e] + beta[:, i])
        logits = torch.where(folded.inside[:, i].unsqueeze(-1), logits, 0.0)
        probabilities = softmax(logits).flatten(0, 1)
        draw = torch.multinomial(probabilities, 1, generator=generator)
        tags[..., i] = draw.view(num_samples, batch)
    return chain.pad(tags)


def entropy(chain: LinearChain) -> Tensor:
    """Return the entropy of the CRF in nats, [B], differentiable, never negative.

    Example:
        >>> import torch, bcrf
        >>> bcrf.entropy(bcrf.LinearChain(torch.zeros(1, 2, 3)))  # log 9
        tensor([2.1972])
    """
    solution = ForwardBackward()(chain)
    first, following = (_row_entropy(log_p) for log_p in solution.log_conditionals())
    return _expectation(solution, first, following)


def kl(chain: LinearChain, other: LinearChain) -> Tensor:
    """Return KL(p || q) of two CRFs over the same sentences, [B], differentiable, never negative.

    It is +inf where `other` has removed a path that `chain` allows.

    Example:
        >>> import torch, bcrf
        >>> chain = bcrf.LinearChain(torch.zeros(1, 2, 2))
        >>> bcrf.kl(chain, chain)
        tensor([0.])
        >>> allowed = torch.tensor([[[True, False], [True, True]]])
        >>> bcrf.kl(chain.restrict(allowed), chain), bcrf.kl(chain, chain.restrict(allowed))
        (tensor([0.6931]), tensor([inf]))
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
    # We test which arcs exist, not whether their probabilities are 0: these may underflow.
    live, inside = remove_graph_padding(solution.folded.live), chain.mask
    first, following = (_lacking(*pair) for pair in zip(p, q, strict=True))
    taken = live[:, :-1] & inside[:, 1:].unsqueeze(-1)
    lacking = (following & taken).flatten(1).any(1) | (first & inside[:, :1]).any(1)
    divergence = _expectation(solution, _row_kl(p[0], q[0]), _row_kl(p[1], q[1]))
    return torch.where(lacking, math.inf, divergence)


def _row_entropy(log_p: Tensor) -> Tensor:
    """Return -sum_t p log p over the last axis, with 0 log 0 = 0."""
    return -(torch.exp(log_p) * torch.where(log_p > -math.inf, log_p, 0.0)).sum(-1)


def _lacking(log_p: Tensor, log_q: Tensor) -> Tensor:
    """Return whether q = 0 < p somewhere on the last axis."""
    return ((log_p > -math.inf) & (log_q == -math.inf)).any(-1)


def _row_kl(log_p: Tensor, log_q: Tensor) -> Tensor:
    """Return sum_t p (log p - log q) over the last axis, over the tags with p > 0 and q > 0."""
    both = (log_p > -math.inf) & (log_q > -math.inf)
    difference = torch.where(both, log_p, 0.0) - torch.where(both, log_q, 0.0)
    return clamp_rounding((torch.exp(log_p) * difference).sum(-1))


def _expectation(solution: CRFSolution, first: Tensor, following: Tensor) -> Tensor:
    """Return first [B, 1] + sum_e E_{s ~ p_e} following[e, s], for following [B, m, T]."""
    p, inside = solution.tag_probabilities(), solution.chain.mask
    terms = torch.where(inside[:, 1:].unsqueeze(-1), p[:, :-1] * following, 0.0)
    return torch.where(inside[:, :1], first, 0.0).sum(1) + terms.sum((1, 2))
