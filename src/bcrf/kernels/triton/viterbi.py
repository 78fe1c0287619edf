"""Viterbi decoding in one launch: scores forward, then the path backward."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...chain import PAD, LinearChain
from .arguments import (
    UNSPECIALIZED,
    Build,
    BuildArguments,
    chain_arguments,
    chain_signature,
    launch,
    pointer,
)
from .primitives import load_node, load_pair, sentence_pair, sentence_unary

__all__ = ["BUILDS", "viterbi"]


def viterbi(chain: LinearChain) -> tuple[Tensor, Tensor]:
    """Return the tags [B, n] of a best path and its score [B] in float64.

    Scores are added in float64, as the torch backend does.
    """
    arguments = chain_arguments(chain)
    unary = arguments.unary
    batch, n, _ = unary.shape
    tags = unary.new_empty(batch, n, dtype=torch.int64)
    score = unary.new_empty(batch, dtype=torch.float64)
    choices = unary.new_empty(unary.shape, dtype=torch.uint8)
    launch(_viterbi, (batch,), arguments, choices, tags, score, PADDING=PAD)
    return tags, score


@triton.jit(do_not_specialize=UNSPECIALIZED)
def _viterbi(
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
    choices,
    tags,
    score,
    SHARED: tl.constexpr,
    BLOCK: tl.constexpr,
    PADDING: tl.constexpr,
):
    """Grid [B]: a program decodes one sentence.

    `choices` [B, n, T] receives the best tag before each tag.
    """
    sentence = tl.program_id(0)
    length = tl.load(lengths + sentence).to(tl.int32)
    nodes = sentence_unary(unary, sentence, unary_batch)
    pairs = sentence_pair(pair, sentence, pair_batch)
    dtype: tl.constexpr = unary.dtype.element_ty
    row = sentence.to(tl.int64) * max_length
    tags += row
    choices += row * num_tags
    tag = tl.arange(0, BLOCK)
    before, after = tag[:, None], tag[None, :]
    # Scores are loaded one step ahead, because a load takes about as long as a step.
    best = load_node(nodes, start_end, 0, length, tag, num_tags, unary_position).to(tl.float64)
    node = load_node(nodes, start_end, 1, length, tag, num_tags, unary_position)
    scores = load_pair(
        pairs, follow, 0, length, before, after, num_tags, pair_edge, pair_from, pair_to, dtype
    )
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
        best, choice = tl.max(best[:, None] + scores.to(tl.float64), 0, return_indices=True)
        best += node.to(tl.float64)
        offset = tl.cast(i, tl.int64) * num_tags + tag
        tl.store(choices + offset, choice.to(tl.uint8), mask=tag < num_tags)
        node, scores = next_node, next_scores
    total, current = tl.max(best, 0, return_indices=True)
    tl.store(score + sentence, tl.where(length > 0, total, 0.0))
    tl.debug_barrier()  # other threads have stored the choices
    current = current.to(tl.int32)
    for step in range(length):
        i = length - 1 - step
        tl.store(tags + i, current.to(tl.int64))
        choice = tl.load(choices + tl.cast(i, tl.int64) * num_tags + current, mask=i > 0, other=0)
        current = choice.to(tl.int32)
    for start in range(0, max_length, BLOCK):
        position = start + tag
        beyond = (position >= length) & (position < max_length)
        tl.store(tags + position, tl.full((BLOCK,), PADDING, tl.int64), mask=beyond)


def _arguments(dtype: str, num_tags: int, shared: bool) -> BuildArguments:
    others = {"choices": pointer("u8"), "tags": pointer("i64"), "score": pointer("fp64")}
    return chain_signature(dtype, num_tags, shared, others, PADDING=PAD)


BUILDS = [Build("viterbi", _viterbi, _arguments)]
