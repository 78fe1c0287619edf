"""The tags that a path can reach from the start of a sentence, and those that reach its end."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .arguments import (
    UNSPECIALIZED,
    Build,
    BuildArguments,
    ChainArguments,
    chain_signature,
    launch,
    pointer,
)
from .primitives import load_node, load_pair, sentence_pair, sentence_unary

__all__ = ["BUILDS", "load_live", "reachable_tags"]


def reachable_tags(chain: ChainArguments) -> Tensor:
    """Return uint8 [2, B, n, T]: the tags that the start reaches, and those that reach the end.

    A tag is live if both are 1: see `load_live`. Beyond the length, the result has no meaning.
    """
    batch = chain.unary.shape[0]
    shape = (2, batch, chain.max_length, chain.num_tags)
    reachable = chain.unary.new_empty(shape, dtype=torch.uint8)
    launch(_reachable_tags, (batch, 2), chain, reachable, batch)
    return reachable


@triton.jit
def load_live(reachable, batch, sentence, position, length, max_length, tag, num_tags):
    """Return whether tags are live, from the result of `reachable_tags`.

    Args:
        batch: B; `sentence`: an integer.
        position, tag: integers or blocks that broadcast with each other. Positions that are not in
            0..length-1 have no live tags.
    """
    within = (position >= 0) & (position < length) & (tag >= 0) & (tag < num_tags)
    row = tl.cast(sentence, tl.int64) * max_length + position
    offset = row * num_tags + tag
    direction = tl.cast(batch, tl.int64) * max_length * num_tags
    from_start = tl.load(reachable + offset, mask=within, other=0)
    to_end = tl.load(reachable + direction + offset, mask=within, other=0)
    return (from_start & to_end) != 0


@triton.jit(do_not_specialize=UNSPECIALIZED)
def _reachable_tags(
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
    reachable,
    batch,
    SHARED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Grid [B, 2]: a program passes over the positions of one sentence in one direction."""
    sentence, direction = tl.program_id(0), tl.program_id(1)
    length = tl.load(lengths + sentence).to(tl.int32)
    nodes = sentence_unary(unary, sentence, unary_batch)
    pairs = sentence_pair(pair, sentence, pair_batch)
    dtype: tl.constexpr = unary.dtype.element_ty
    tag = tl.arange(0, BLOCK)
    out = reachable + (direction.to(tl.int64) * batch + sentence) * max_length * num_tags
    forward = direction == 0
    # The transitions of an edge are held as [tag of this step, tag of the previous one].
    reached = tl.full((BLOCK,), 1, tl.int32)
    for step in range(length):
        position = tl.where(forward, step, length - 1 - step)
        edge = tl.where(forward, step - 1, length - 1 - step)
        node = load_node(nodes, start_end, position, length, tag, num_tags, unary_position)
        if step > 0:
            before = tl.where(forward, tag[None, :], tag[:, None])
            after = tl.where(forward, tag[:, None], tag[None, :])
            arcs = load_pair(
                pairs,
                follow,
                edge,
                length,
                before,
                after,
                num_tags,
                pair_edge,
                pair_from,
                pair_to,
                dtype,
            )
            found = (arcs > float("-inf")) & (reached[None, :] != 0)
            reached = tl.max(found.to(tl.int32), 1)
        reached = reached & (node > float("-inf")).to(tl.int32)
        row = out + tl.cast(position, tl.int64) * num_tags
        tl.store(row + tag, reached.to(tl.uint8), mask=tag < num_tags)


def _arguments(dtype: str, num_tags: int, shared: bool) -> BuildArguments:
    return chain_signature(dtype, num_tags, shared, {"reachable": pointer("u8"), "batch": "i32"})


BUILDS = [Build("reachable_tags", _reachable_tags, _arguments)]
