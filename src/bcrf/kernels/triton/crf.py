"""The exact CRF: value, loss and gradients, by forward and backward messages.

At most three launches: one for the messages and the value, one for the gradients, and one sum for
the gradient with respect to a shared matrix.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...chain import LinearChain
from ..results import ValueAndGradient
from .arguments import (
    UNSPECIALIZED,
    Build,
    BuildArguments,
    chain_arguments,
    chain_signature,
    chunk_size,
    launch,
    pointer,
)
from .primitives import (
    finite_peak,
    load_node,
    load_pair,
    log_sum_exp,
    normalised_exp,
    sentence_pair,
    sentence_unary,
    take,
)

__all__ = ["BUILDS", "crf"]

# Positions that a program of `_crf_gradients` handles. Where it adds matrices up, a longer chunk
# writes fewer sums; elsewhere, a shorter one makes more programs, which fill the device.
_SUMMED_CHUNK = 16
_SINGLE_CHUNK = 4


def crf(
    chain: LinearChain,
    tags: Tensor | None = None,
    wanted: Sequence[bool] = (False, False),
    *,
    start_end: Tensor | None = None,
    every_edge: bool = False,
    parallel: bool = False,
) -> ValueAndGradient:
    """Return A(w), or the negative log-likelihood of `tags`: see `DeviceKernels.crf`.

    A tag that is out of range has no path, so the loss is inf. There is no associative scan.
    """
    arguments = chain_arguments(chain, start_end)
    unary = arguments.unary
    batch, n, num_tags = unary.shape
    tags = None if tags is None else tags.contiguous()
    value = unary.new_empty(batch, dtype=torch.float64)
    gradients = any(wanted)
    # forward messages with the unary scores of their position, backward ones without
    forward, backward = unary.new_empty(2, batch, n, num_tags) if gradients else (None, None)
    grid = (batch, 2 if gradients else 1)
    launch(_crf_messages, grid, arguments, tags, value, forward, backward)
    if not gradients:
        return ValueAndGradient(value, None, None, None)
    summed = arguments.shared and not every_edge
    chunk = chunk_size(n, _SUMMED_CHUNK if summed else _SINGLE_CHUNK)
    chunks = triton.cdiv(n, chunk)
    by_unary = unary.new_empty(batch, n, num_tags) if wanted[0] else None
    by_pair = None
    if wanted[1]:
        rows = chunks if summed else max(n - 1, 0)
        by_pair = unary.new_empty(batch, rows, num_tags, num_tags)
    others = (tags, forward, backward, by_unary, by_pair)
    launch(_crf_gradients, (batch, chunks), arguments, *others, SUMMED=summed, CHUNK=chunk)
    if by_pair is not None and summed:
        by_pair = by_pair.squeeze(1) if chunks == 1 else by_pair.sum(1)
    return ValueAndGradient(value, by_unary, by_pair, None)


@triton.jit(do_not_specialize=UNSPECIALIZED)
def _crf_messages(
    unary,
    pair,
    lengths,
    start_end,
    follow,
    max_length,
    num_tags,
    unary_batch,
    unary_position,
    pair_batch,
    pair_edge,
    pair_from,
    pair_to,
    tags,
    value,
    forward,
    backward,
    SHARED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Grid [B, 2]: a program passes over the positions of one sentence in one direction.

    Program 0 computes the backward messages and the value, or the loss of `tags`; program 1 the
    forward messages.
    """
    sentence = tl.program_id(0)
    length = tl.load(lengths + sentence).to(tl.int32)
    nodes = sentence_unary(unary, sentence, unary_batch)
    pairs = sentence_pair(pair, sentence, pair_batch)
    row = sentence.to(tl.int64) * max_length
    if tl.program_id(1) == 0:
        _backward(
            nodes,
            pairs,
            length,
            start_end,
            follow,
            num_tags,
            unary_position,
            pair_edge,
            pair_from,
            pair_to,
            None if tags is None else tags + row,
            value + sentence,
            None if backward is None else backward + row * num_tags,
            SHARED,
            BLOCK,
        )
    else:
        if forward is not None:
            _forward(
                nodes,
                pairs,
                length,
                start_end,
                follow,
                num_tags,
                unary_position,
                pair_edge,
                pair_from,
                pair_to,
                forward + row * num_tags,
                SHARED,
                BLOCK,
            )


@triton.jit
def _forward(
    nodes,
    pairs,
    length,
    start_end,
    follow,
    num_tags,
    unary_position,
    pair_edge,
    pair_from,
    pair_to,
    forward,
    SHARED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Store the messages forward[i, t] = unary[i, t] + LSE_s(forward[i-1, s] + pair[i-1, s, t]).

    At each position their maximum is 0. Scores are loaded one step ahead, because a load takes
    about as long as a step.
    """
    dtype: tl.constexpr = nodes.dtype.element_ty
    tag = tl.arange(0, BLOCK)
    before, after = tag[:, None], tag[None, :]
    message = load_node(nodes, start_end, 0, length, tag, num_tags, unary_position)
    node = load_node(nodes, start_end, 1, length, tag, num_tags, unary_position)
    scores = load_pair(
        pairs, follow, 0, length, before, after, num_tags, pair_edge, pair_from, pair_to, dtype
    )
    message -= finite_peak(message, 0)
    tl.store(forward + tag, message, mask=(tag < num_tags) & (length > 0))
    for i in range(1, length):
        next_node = load_node(nodes, start_end, i + 1, length, tag, num_tags, unary_position)
        next_scores = scores
        if not SHARED:
            next_scores = load_pair(
                pairs,
                follow,
                i,
                length,
                before,
                after,
                num_tags,
                pair_edge,
                pair_from,
                pair_to,
                dtype,
            )
        message = log_sum_exp(message[:, None] + scores, 0) + node
        message -= finite_peak(message, 0)
        tl.store(forward + tl.cast(i, tl.int64) * num_tags + tag, message, mask=tag < num_tags)
        node, scores = next_node, next_scores


@triton.jit
def _backward(
    nodes,
    pairs,
    length,
    start_end,
    follow,
    num_tags,
    unary_position,
    pair_edge,
    pair_from,
    pair_to,
    tags,
    value,
    backward,
    SHARED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Store the value, and backward[i, s] = LSE_t(pair[i, s, t] + after[i+1, t]) if requested.

    Here after[i] = unary[i] + backward[i], up to a constant per position. With tags y the value is
    the loss -log p(y_0) - sum_i log p(y_{i+1} | y_i), whose terms

        LSE_t(pair[i, y_i, t] + after[i+1, t]) - (pair[i, y_i, y_{i+1}] + after[i+1, y_{i+1}])

    are >= 0 also after rounding, because the second part is one of the terms of the first.
    """
    dtype: tl.constexpr = nodes.dtype.element_ty
    tag = tl.arange(0, BLOCK)
    before, behind = tag[:, None], tag[None, :]
    last = length - 1
    message = tl.where(tag < num_tags, 0.0, float("-inf")).to(dtype)
    if backward is not None:
        offset = tl.cast(last, tl.int64) * num_tags + tag
        tl.store(backward + offset, message, mask=(tag < num_tags) & (length > 0))
    after = message + load_node(nodes, start_end, last, length, tag, num_tags, unary_position)
    node = load_node(nodes, start_end, last - 1, length, tag, num_tags, unary_position)
    scores = load_pair(
        pairs,
        follow,
        last - 1,
        length,
        before,
        behind,
        num_tags,
        pair_edge,
        pair_from,
        pair_to,
        dtype,
    )
    total = tl.full((), 0.0, tl.float64)
    gold = tl.full((), 0, tl.int32)
    gold_after = tl.full((), 0.0, dtype)
    if tags is not None:
        gold = tl.load(tags + last, mask=length > 0, other=0).to(tl.int32)
        gold_after = take(after, tag, gold)
    for step in range(1, length):
        i = last - step
        next_node = load_node(nodes, start_end, i - 1, length, tag, num_tags, unary_position)
        next_scores = scores
        if not SHARED:
            next_scores = load_pair(
                pairs,
                follow,
                i - 1,
                length,
                before,
                behind,
                num_tags,
                pair_edge,
                pair_from,
                pair_to,
                dtype,
            )
        message = log_sum_exp(scores + after[None, :], 1)
        peak = finite_peak(message, 0)
        if tags is not None:
            next_gold = gold
            gold = tl.load(tags + i).to(tl.int32)
            arc = load_pair(
                pairs,
                follow,
                i,
                length,
                gold,
                next_gold,
                num_tags,
                pair_edge,
                pair_from,
                pair_to,
                dtype,
            )
            total += _loss_term(take(message, tag, gold), arc + gold_after).to(tl.float64)
        else:
            total += peak.to(tl.float64)
        message -= peak
        if backward is not None:
            offset = tl.cast(i, tl.int64) * num_tags + tag
            tl.store(backward + offset, message, mask=tag < num_tags)
        after = message + node
        if tags is not None:
            gold_after = take(after, tag, gold)
        node, scores = next_node, next_scores
    first = log_sum_exp(after, 0)
    if tags is not None:
        first = _loss_term(first, gold_after)
    total += first.to(tl.float64)
    tl.store(value, tl.where(length > 0, total, 0.0))


@triton.jit
def _loss_term(log_sum, term):
    """Return `log_sum - term` >= 0 for one term of a sum of exponentials; inf if it is absent."""
    absent = term == float("-inf")
    difference = log_sum - tl.where(absent, 0.0, term)
    difference = tl.where(difference < 0.0, 0.0, difference)
    return tl.where(absent, float("inf"), difference)


@triton.jit(do_not_specialize=UNSPECIALIZED)
def _crf_gradients(
    unary,
    pair,
    lengths,
    start_end,
    follow,
    max_length,
    num_tags,
    unary_batch,
    unary_position,
    pair_batch,
    pair_edge,
    pair_from,
    pair_to,
    tags,
    forward,
    backward,
    by_unary,
    by_pair,
    SHARED: tl.constexpr,
    BLOCK: tl.constexpr,
    SUMMED: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """Grid [B, chunks]: a program stores the marginals of CHUNK positions and edges of a sentence.

    With tags it subtracts the gold tags and arcs. If SUMMED, `by_pair` is [B, chunks, T, T], the
    sums over the edges of each chunk, otherwise [B, n-1, T, T].
    """
    sentence, chunk = tl.program_id(0), tl.program_id(1)
    length = tl.load(lengths + sentence).to(tl.int32)
    nodes = sentence_unary(unary, sentence, unary_batch)
    pairs = sentence_pair(pair, sentence, pair_batch)
    dtype: tl.constexpr = unary.dtype.element_ty
    tag = tl.arange(0, BLOCK)
    before, after = tag[:, None], tag[None, :]
    exists = tag < num_tags
    arc_exists = (before < num_tags) & (after < num_tags)
    arc = before * num_tags + after
    row = sentence.to(tl.int64) * max_length
    if SHARED:
        scores = load_pair(
            pairs, follow, 0, length, before, after, num_tags, pair_edge, pair_from, pair_to, dtype
        )
    if SUMMED:
        total = tl.zeros((BLOCK, BLOCK), dtype)
    for i in range(chunk * CHUNK, tl.minimum((chunk + 1) * CHUNK, max_length)):
        offset = (row + i) * num_tags + tag
        here = tl.load(forward + offset, mask=exists & (i < length), other=float("-inf"))
        if tags is not None:
            gold = tl.load(tags + row + i, mask=i < length, other=-1).to(tl.int32)
        if by_unary is not None:
            message = tl.load(backward + offset, mask=exists & (i < length), other=float("-inf"))
            p = normalised_exp(here + message)
            if tags is not None:
                p -= tl.where(tag == gold, 1.0, 0.0).to(dtype)
            tl.store(by_unary + offset, p, mask=exists)
        if by_pair is not None:
            within = i + 1 < length
            there = load_node(nodes, start_end, i + 1, length, tag, num_tags, unary_position)
            there += tl.load(
                backward + offset + num_tags, mask=exists & within, other=float("-inf")
            )
            if not SHARED:
                scores = load_pair(
                    pairs,
                    follow,
                    i,
                    length,
                    before,
                    after,
                    num_tags,
                    pair_edge,
                    pair_from,
                    pair_to,
                    dtype,
                )
            q = normalised_exp(here[:, None] + scores + there[None, :])
            if tags is not None:
                next_gold = tl.load(tags + row + i + 1, mask=within, other=-1).to(tl.int32)
                is_gold = (before == gold) & (after == next_gold)
                q -= tl.where(is_gold, 1.0, 0.0).to(dtype)
            if SUMMED:
                total += q
            else:
                edge = sentence.to(tl.int64) * (max_length - 1) + i
                store = arc_exists & (i < max_length - 1)
                tl.store(by_pair + edge * num_tags * num_tags + arc, q, mask=store)
    if by_pair is not None and SUMMED:
        place = sentence.to(tl.int64) * tl.num_programs(1) + chunk
        tl.store(by_pair + place * num_tags * num_tags + arc, total, mask=arc_exists)


def _message_arguments(dtype: str, num_tags: int, shared: bool) -> BuildArguments:
    scores = pointer(dtype)
    others = {"tags": pointer("i64"), "value": pointer("fp64")}
    others |= {"forward": scores, "backward": scores}
    return chain_signature(dtype, num_tags, shared, others)


def _gradient_arguments(dtype: str, num_tags: int, shared: bool) -> BuildArguments:
    names = ("forward", "backward", "by_unary", "by_pair")
    others = dict.fromkeys(names, pointer(dtype)) | {"tags": pointer("i64")}
    chunk = _SUMMED_CHUNK if shared else _SINGLE_CHUNK
    return chain_signature(dtype, num_tags, shared, others, SUMMED=shared, CHUNK=chunk)


BUILDS = [
    Build("crf_messages", _crf_messages, _message_arguments),
    Build("crf_gradients", _crf_gradients, _gradient_arguments),
]
