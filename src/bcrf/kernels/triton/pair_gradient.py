"""The Triton kernel of the arc marginals q: the gradient with respect to the pair scores."""

from __future__ import annotations

from functools import partial

import triton
import triton.language as tl

from .arguments import Build, BuildArguments, chain_signature, layout, pointer
from .primitives import load_pair, sentence_pair

__all__ = ["BUILDS", "NUM_WARPS", "block_rows", "pair_gradient"]

NUM_WARPS = 4

_BLOCK_BYTES = 4096  # of a block of a matrix: 8 registers of each thread


def block_rows(num_tags: int, itemsize: int) -> int:
    """Return the constant ROWS: how many rows of a matrix a program has."""
    block = layout(num_tags).block
    return min(block, _BLOCK_BYTES // (block * itemsize))


@triton.jit
def _arc_marginals(half, lam, terms, edge, rows, columns, scores, inside, num_tags):
    """Return q [ROWS, BLOCK] of one edge, and whether the edge has an arc at all."""
    start = edge * num_tags + rows
    known = inside & (rows < num_tags)
    left = tl.load(half + start, known, float("-inf")) - tl.load(lam + start, known, 0.0)
    end = (edge + 1) * num_tags + columns
    known = inside & (columns < num_tags)
    right = tl.load(half + end, known, float("-inf")) + tl.load(lam + end, known, 0.0)
    peak = tl.load(terms + edge * 2, inside, 0.0)
    rest = tl.load(terms + edge * 2 + 1, inside, float("-inf"))
    some = rest > float("-inf")
    reduced = left[:, None] + (scores + right[None, :])
    return tl.exp(reduced - peak - tl.where(some, rest, 0.0)), some


@triton.jit
def pair_gradient(
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
    half,
    lam,
    terms,
    allowed_half,
    allowed_lam,
    allowed_terms,
    tags,
    by_pair,
    chunk,
    SUMMED: tl.constexpr,
    ROWS: tl.constexpr,
    SHARED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Store q, q - y or q - q~ of each edge, or their sums over the edges of a chunk.

    Grid [B, chunks, blocks of ROWS tags]; a program has `chunk` edges.

    Args:
        half, lam, terms: `Projections`, and the terms that `value` stores.
        allowed_half, allowed_lam, allowed_terms: those of the restricted problem; or None.
        tags: int64 [B, n], contiguous; or None.
        by_pair: [B, chunks, T, T] if SUMMED, otherwise [B, n-1, T, T], 0 beyond the length.
    """
    sentence = tl.program_id(0).to(tl.int64)
    dtype: tl.constexpr = half.dtype.element_ty
    length = tl.load(lengths + sentence).to(tl.int32)
    pairs = sentence_pair(pair, sentence, pair_batch)
    row = sentence * max_length
    half += row * num_tags
    lam += row * num_tags
    terms += row * 2
    rows = tl.program_id(2) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, BLOCK)
    before, after = rows[:, None], columns[None, :]
    arc = before * num_tags + after
    exists = (before < num_tags) & (after < num_tags)
    begin = tl.program_id(1) * chunk
    end = tl.minimum(begin + chunk, max_length - 1)
    if SUMMED:
        end = tl.minimum(end, length - 1)
    total = tl.zeros((ROWS, BLOCK), dtype)
    for edge in range(begin, end):
        inside = edge < length - 1
        scores = load_pair(
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
        q, _ = _arc_marginals(half, lam, terms, edge, rows, columns, scores, inside, num_tags)
        if allowed_half is not None:
            allowed, some = _arc_marginals(
                allowed_half + row * num_tags,
                allowed_lam + row * num_tags,
                allowed_terms + row * 2,
                edge,
                rows,
                columns,
                scores,
                inside,
                num_tags,
            )
            q = tl.where(some, q - allowed, 0.0)
        if tags is not None:
            gold = tl.load(tags + row + edge, inside, -1).to(tl.int32)
            next_gold = tl.load(tags + row + edge + 1, inside, -1).to(tl.int32)
            q -= tl.where((before == gold) & (after == next_gold), 1.0, 0.0).to(dtype)
        if SUMMED:
            total += q
        else:
            matrix = by_pair + (sentence * (max_length - 1) + edge) * num_tags * num_tags
            tl.store(matrix + arc, q, exists)
    if SUMMED:
        place = sentence * tl.num_programs(1) + tl.program_id(1)
        tl.store(by_pair + place * num_tags * num_tags + arc, total, exists)


def _arguments(dtype: str, num_tags: int, shared: bool, restricted: bool) -> BuildArguments:
    names, allowed = ("half", "lam", "terms"), ("allowed_half", "allowed_lam", "allowed_terms")
    others = dict.fromkeys((*names, "by_pair"), pointer(dtype)) | {"chunk": "i32"}
    absent: tuple[str, ...] = ("tags",)
    if restricted:
        others |= dict.fromkeys(allowed, pointer(dtype))
    else:
        others |= {"tags": pointer("i64")}
        absent = allowed
    rows = block_rows(num_tags, 4 if dtype == "fp32" else 8)
    signature, constants, _ = chain_signature(
        dtype, num_tags, shared, others, SUMMED=shared, ROWS=rows, **dict.fromkeys(absent)
    )
    return signature, constants, {"num_warps": NUM_WARPS, "num_stages": 1}


BUILDS = [
    Build("bregman_pair_gradient", pair_gradient, partial(_arguments, restricted=False)),
    Build("bregman_partial_pair_gradient", pair_gradient, partial(_arguments, restricted=True)),
]
