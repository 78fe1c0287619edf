"""Functions that the kernels share: masked loads of scores, and sums of exponentials.

A block has a power of two of entries, so blocks of tags hold more than T. Scores of the entries
that do not exist are -inf: as a removed tag, they take part in nothing. No load touches memory
beyond the length of a sentence, which may hold NaN.

Pitfalls, none of which the interpreter shows:

- `tl.dot`, and a sum of products over the middle one of three axes, which the compiler turns into
  a `tl.dot`, round float32 to TF32 by default.
- A variable must keep its type and shape in a loop; start sums with `tl.full((), 0.0, dtype)`.
- Programs and threads run one after another in the interpreter. A thread that reads what another
  one has written to memory needs `tl.debug_barrier()` in between.
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = [
    "finite_peak",
    "load_node",
    "load_pair",
    "log_sum_exp",
    "normalised_exp",
    "sentence_pair",
    "sentence_unary",
    "take",
]


@triton.jit
def sentence_unary(unary, sentence, unary_batch):
    """Return the pointer to the unary scores of a sentence; offsets are 64 bits wide."""
    return unary + sentence.to(tl.int64) * unary_batch


@triton.jit
def sentence_pair(pair, sentence, pair_batch):
    """Return the pointer to the transitions of a sentence, or None if there are none."""
    if pair is None:
        return None
    else:
        return pair + sentence.to(tl.int64) * pair_batch


@triton.jit
def load_node(row, start_end, position, length, tag, num_tags, unary_position):
    """Return unary scores with start and end scores added; -inf where there is no such tag.

    Args:
        row: the result of `sentence_unary`.
        position, tag: integers or blocks that broadcast with each other. Positions that are not in
            0..length-1 score -inf.
    """
    within = (position >= 0) & (position < length) & (tag >= 0) & (tag < num_tags)
    offset = tl.cast(position, tl.int64) * unary_position + tag
    scores = tl.load(row + offset, mask=within, other=float("-inf"))
    if start_end is not None:
        start = within & (position == 0)
        end = within & (position == length - 1)
        scores += tl.load(start_end + tag + tl.zeros_like(offset), mask=start, other=0.0)
        scores += tl.load(start_end + num_tags + tag + tl.zeros_like(offset), mask=end, other=0.0)
    return scores


@triton.jit
def load_pair(
    pairs, follow, edge, length, before, after, num_tags, pair_edge, pair_from, pair_to, dtype
):
    """Return the scores of transitions; -inf for forbidden ones, and where there is no such tag.

    Args:
        pairs: the result of `sentence_pair`; None: the scores are 0.
        follow: see `ChainArguments`.
        edge, before, after: integers or blocks that broadcast with each other: edges, tags before
            and after the edge. Edges that are not in 0..length-2 score -inf. For a shared matrix,
            `edge` may be any edge of the sentence.
        dtype: the dtype of the scores.
    """
    within = (edge >= 0) & (edge < length - 1)
    within &= (before >= 0) & (before < num_tags) & (after >= 0) & (after < num_tags)
    if pairs is None:
        return tl.where(within, 0.0, float("-inf")).to(dtype)
    else:
        if follow is not None:
            allowed = tl.load(follow + before * num_tags + after, mask=within, other=0)
            within &= allowed != 0
        # The offsets within a matrix have 32 bits, which saves registers.
        matrix = pairs + tl.cast(edge, tl.int64) * pair_edge
        offset = before * pair_from + after * pair_to
        return tl.load(matrix + offset, mask=within, other=float("-inf"))


@triton.jit
def finite_peak(x, axis: tl.constexpr):
    """Return the maximum of a block over an axis, or 0 where all of it is -inf."""
    peak = tl.max(x, axis)
    return tl.where(peak == float("-inf"), 0.0, peak)


@triton.jit
def log_sum_exp(x, axis: tl.constexpr):
    """Return log sum exp of a block over an axis; -inf where all of it is -inf.

    The result is at least as large as every entry.
    """
    peak = finite_peak(x, axis)
    total = tl.sum(tl.exp(x - tl.expand_dims(peak, axis)), axis)
    return tl.where(total > 0.0, peak + tl.log(tl.where(total > 0.0, total, 1.0)), float("-inf"))


@triton.jit
def normalised_exp(x):
    """Return the softmax of a block over all its axes; 0 where all of it is -inf."""
    peak = tl.max(x)
    p = tl.exp(x - tl.where(peak == float("-inf"), 0.0, peak))
    total = tl.sum(p)
    return p / tl.where(total > 0.0, total, 1.0)


@triton.jit
def take(x, index, wanted):
    """Return the entry of the block `x` where the block `index` is `wanted`; -inf if there is none.

    Other lanes hold the entry, so this is a maximum over the block.
    """
    return tl.max(tl.where(index == wanted, x, float("-inf")))
