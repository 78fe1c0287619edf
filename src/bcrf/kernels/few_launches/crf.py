"""The exact CRF: log-partition, negative log-likelihood, and marginals."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ...chain import LinearChain
from ...numerics.logspace import widest_dtype
from ..results import ValueAndGradient
from .edges import arc_sums, no_edge
from .gold import subtract_gold_pairs
from .messages import Messages, sequential_messages
from .prepared import PreparedChain, prepare
from .scan import scan_messages
from .scratch import Scratch

__all__ = ["crf"]


def crf(
    chain: LinearChain,
    tags: Tensor | None = None,
    wanted: Sequence[bool] = (False, False),
    *,
    start_end: Tensor | None = None,
    every_edge: bool = False,
    parallel: bool = False,
) -> ValueAndGradient:
    """Return A(w), or the negative log-likelihood of `tags`: see `DeviceKernels.crf`."""
    problem = prepare(chain, start_end)
    if not problem.unary.shape[1]:
        return _empty(problem, wanted, every_edge)
    messages = scan_messages(problem) if parallel else sequential_messages(problem)
    by_unary, by_pair = wanted
    one_hot = None
    if tags is None:
        value = messages.total.masked_fill(problem.lengths == 0, 0.0)
    else:
        index, _ = problem.gold(tags)
        value = _negative_log_likelihood(problem, messages.beta, index)
        if by_unary or by_pair:
            one_hot = problem.minus_one_hot(index)
    unary = _tag_marginals(problem, messages) if by_unary else None
    pair = None
    if by_pair:
        potentials = torch.stack([messages.alpha, messages.beta])
        form = "sum" if problem.shared and not every_edge else "each"
        memory = Scratch(problem.unary) if problem.shared else None
        absent = no_edge(problem)
        pair = arc_sums(problem, potentials, absent, memory, pair=form).pair  # type: ignore[arg-type]
    if one_hot is not None:
        if unary is not None:
            unary.add_(one_hot)
        if pair is not None:
            subtract_gold_pairs(pair, one_hot)
    return ValueAndGradient(value, unary, pair, None)


def _negative_log_likelihood(problem: PreparedChain, beta: Tensor, index: Tensor) -> Tensor:
    """Return -log p(y_0) - sum_e log p(y_{e+1} | y_e), [B], which has no cancellation.

    The logits of the next tag are pair[y_e] + unary[e+1] + beta[e+1].
    """
    before = index[:, :-1]
    logits = beta.clone()
    if problem.shared:
        logits[:, 1:] += problem.pair[before]
    else:
        rows = before[..., None, None].expand(*before.shape, 1, beta.shape[-1])
        logits[:, 1:] += problem.pair.gather(2, rows).squeeze(2)
    terms = torch.log_softmax(logits, -1).gather(-1, index.unsqueeze(-1)).squeeze(-1)
    terms.masked_fill_(problem.outside, 0.0)
    return terms.sum(1, dtype=widest_dtype(beta.device)).neg_()


def _tag_marginals(problem: PreparedChain, messages: Messages) -> Tensor:
    """Return the tag marginals [B, n, T], 0 beyond the length."""
    unary = problem.unary
    if not problem.plain:
        unary = unary.clamp(min=torch.finfo(unary.dtype).min)  # -inf - -inf is NaN
    marginals = torch.softmax(messages.alpha + messages.beta - unary, -1)
    if not problem.plain:
        marginals.nan_to_num_(0.0)  # a sentence without a path
    return marginals.masked_fill_(problem.outside.unsqueeze(-1), 0.0)


def _empty(problem: PreparedChain, wanted: Sequence[bool], every_edge: bool) -> ValueAndGradient:
    """Return the result for a chain without positions."""
    unary, pair = problem.unary, None
    batch, _, num_tags = unary.shape
    if wanted[1]:
        edges = () if problem.shared and not every_edge else (0,)
        pair = unary.new_zeros(batch, *edges, num_tags, num_tags)
    value = unary.new_zeros(batch, dtype=widest_dtype(unary.device))
    return ValueAndGradient(value, torch.zeros_like(unary) if wanted[0] else None, pair, None)
