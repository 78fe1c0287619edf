"""The Triton kernels that read the result of the projections: values, gradients and marginals.

A program takes some positions of one sentence, POSITIONS at a time. For each position it computes
the log mass that enters and leaves each tag, as the projections do; no kernel holds a whole matrix
of an edge. The log mass that leaves position e, summed over tags, is the term of edge e in D.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .arguments import Build, BuildArguments, pointer
from .primitives import load_pair, sentence_pair
from .projections import neighbour_sums, projection_signature

__all__ = [
    "BUILDS",
    "incoming_outgoing",
    "normalise",
    "outgoing_logits",
    "store_own",
    "tag_results",
    "value",
]


@triton.jit
def _load_own(row, position, length, num_tags, other, BLOCK: tl.constexpr):
    """Return [POSITIONS, BLOCK] of a tensor [B, n, T]; `other` beyond the sentence and the tags."""
    tag = tl.arange(0, BLOCK)[None, :]
    known = (position < length)[:, None] & (tag < num_tags)
    return tl.load(row + position[:, None] * num_tags + tag, known, other)


@triton.jit
def store_own(row, position, stop, num_tags, x, BLOCK: tl.constexpr):
    """Store [POSITIONS, BLOCK] at positions before `stop` of a tensor [B, n, T]."""
    tag = tl.arange(0, BLOCK)[None, :]
    stored = (position < stop)[:, None] & (tag < num_tags)
    tl.store(row + position[:, None] * num_tags + tag, x, stored)


@triton.jit
def outgoing_logits(
    half,
    lam,
    pairs,
    follow,
    position,
    length,
    num_tags,
    pair_edge,
    pair_from,
    pair_to,
    POSITIONS: tl.constexpr,
    CHUNK: tl.constexpr,
    SHARED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Return the log mass that leaves each tag, including its own lam; see `incoming_outgoing`."""
    beta = neighbour_sums(
        half,
        lam,
        pairs,
        follow,
        position,
        length,
        num_tags,
        pair_edge,
        pair_from,
        pair_to,
        True,
        POSITIONS,
        CHUNK,
        SHARED,
        BLOCK,
    )
    own = _load_own(half, position, length, num_tags, float("-inf"), BLOCK)
    beta = tl.where((position == length - 1)[:, None], 0.0, beta)
    return own + beta - _load_own(lam, position, length, num_tags, 0.0, BLOCK)


@triton.jit
def incoming_outgoing(
    half,
    lam,
    pairs,
    follow,
    position,
    length,
    num_tags,
    pair_edge,
    pair_from,
    pair_to,
    POSITIONS: tl.constexpr,
    CHUNK: tl.constexpr,
    SHARED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Return logits of the mass that enters, and of the mass that leaves, each tag.

    Other than those of `dual.incoming_outgoing`, they include the tag's own lam. At the ends of a
    sentence both results are the logits of the side that has arcs; in a sentence of one position
    they are the unary scores.
    """
    alpha = neighbour_sums(
        half,
        lam,
        pairs,
        follow,
        position,
        length,
        num_tags,
        pair_edge,
        pair_from,
        pair_to,
        False,
        POSITIONS,
        CHUNK,
        SHARED,
        BLOCK,
    )
    own = _load_own(half, position, length, num_tags, float("-inf"), BLOCK)
    own_lam = _load_own(lam, position, length, num_tags, 0.0, BLOCK)
    outgoing = outgoing_logits(
        half,
        lam,
        pairs,
        follow,
        position,
        length,
        num_tags,
        pair_edge,
        pair_from,
        pair_to,
        POSITIONS,
        CHUNK,
        SHARED,
        BLOCK,
    )
    first = (position == 0)[:, None]
    last = (position == length - 1)[:, None]
    incoming = tl.where(first, outgoing, own + alpha + own_lam)
    return incoming, tl.where(last, incoming, outgoing)


@triton.jit
def normalise(logits):
    """Return the softmax of each row, and the parts of its log sum: a finite peak, and the rest.

    The rest and the softmax of a row without finite logits are -inf and 0.
    """
    peak = tl.max(logits, 1)
    peak = tl.where(peak == float("-inf"), 0.0, peak)
    p = tl.exp(logits - peak[:, None])
    mass = tl.sum(p, 1)
    some = tl.where(mass > 0.0, mass, 1.0)
    return p / some[:, None], peak, tl.where(mass > 0.0, tl.log(some), float("-inf"))


@triton.jit
def _gold_scores(
    half,
    lam,
    pairs,
    follow,
    tags,
    position,
    length,
    num_tags,
    pair_edge,
    pair_from,
    pair_to,
    dtype,
):
    """Return the gold tags, and the reduced scores of the gold arcs that begin at `position`.

    In a sentence of one position the score is that of the gold tag. Tags that are out of range have
    the score -inf.
    """
    tag = tl.load(tags + position, position < length, -1).to(tl.int32)
    after = tl.load(tags + position + 1, position + 1 < length, -1).to(tl.int32)
    known = (position < length) & (tag >= 0) & (tag < num_tags)
    here = position * num_tags + tag
    score = tl.load(half + here, known, float("-inf")) - tl.load(lam + here, known, 0.0)
    known = (position + 1 < length) & (after >= 0) & (after < num_tags)
    there = (position + 1) * num_tags + after
    end = tl.load(half + there, known, float("-inf")) + tl.load(lam + there, known, 0.0)
    arc = load_pair(
        pairs,
        follow,
        position,
        length,
        tag,
        after,
        num_tags,
        pair_edge,
        pair_from,
        pair_to,
        dtype,
    )
    return tag, tl.where(length == 1, score, score + (arc + end))


@triton.jit
def value(
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
    tags,
    values,
    terms,
    by_unary,
    chunk,
    POSITIONS: tl.constexpr,
    CHUNK: tl.constexpr,
    SHARED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Store the sum of the terms of D, or of the loss of `tags`, and the gradient.

    Grid [B, chunks]; a program has `chunk` positions.

    Args:
        half, lam: see `Projections`.
        tags: int64 [B, n], contiguous; None: the value.
        values: float64 [B, chunks], the sum over the positions of each chunk.
        terms: [B, n, 2], the finite peak of each edge and the rest of its log sum; or None.
        by_unary: [B, n, T]: the mean of incoming and outgoing mass, minus 1 at the gold tags; 0
            beyond the length; or None.
    """
    sentence = tl.program_id(0).to(tl.int64)
    dtype: tl.constexpr = half.dtype.element_ty
    length = tl.load(lengths + sentence).to(tl.int32)
    pairs = sentence_pair(pair, sentence, pair_batch)
    row = sentence * max_length
    half += row * num_tags
    lam += row * num_tags
    begin = tl.program_id(1) * chunk
    total = tl.full((POSITIONS,), 0.0, tl.float64)
    for base in range(begin, tl.minimum(begin + chunk, max_length), POSITIONS):
        position = base + tl.arange(0, POSITIONS)
        if by_unary is not None:
            incoming, outgoing = incoming_outgoing(
                half,
                lam,
                pairs,
                follow,
                position,
                length,
                num_tags,
                pair_edge,
                pair_from,
                pair_to,
                POSITIONS,
                CHUNK,
                SHARED,
                BLOCK,
            )
        else:
            outgoing = outgoing_logits(
                half,
                lam,
                pairs,
                follow,
                position,
                length,
                num_tags,
                pair_edge,
                pair_from,
                pair_to,
                POSITIONS,
                CHUNK,
                SHARED,
                BLOCK,
            )
        q_out, peak, rest = normalise(outgoing)
        counted = (position < length - 1) | ((position == 0) & (length == 1))
        if tags is not None:
            gold, score = _gold_scores(
                half,
                lam,
                pairs,
                follow,
                tags + row,
                position,
                length,
                num_tags,
                pair_edge,
                pair_from,
                pair_to,
                dtype,
            )
            # Both parts are relative to the peak, so the difference has no cancellation.
            absent = score == float("-inf")
            term = rest - (tl.where(absent, 0.0, score) - peak)
            term = tl.where(absent, float("inf"), tl.where(term < 0.0, 0.0, term)).to(tl.float64)
        else:
            term = peak.to(tl.float64) + rest.to(tl.float64)
        total += tl.where(counted, term, 0.0)
        if terms is not None:
            place = terms + (row + position) * 2
            tl.store(place, peak, position < max_length)
            tl.store(place + 1, rest, position < max_length)
        if by_unary is not None:
            q_in, _, _ = normalise(incoming)
            gradient = (q_in + q_out) * 0.5
            if tags is not None:
                is_gold = tl.arange(0, BLOCK)[None, :] == gold[:, None]
                gradient -= tl.where(is_gold, 1.0, 0.0).to(dtype)
            gradient = tl.where((position < length)[:, None], gradient, 0.0)
            store_own(by_unary + row * num_tags, position, max_length, num_tags, gradient, BLOCK)
    place = sentence * tl.num_programs(1) + tl.program_id(1)
    tl.store(values + place, tl.sum(total, 0))


@triton.jit
def tag_results(
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
    values,
    residuals,
    marginals,
    best,
    chunk,
    OUTGOING: tl.constexpr,
    POSITIONS: tl.constexpr,
    CHUNK: tl.constexpr,
    SHARED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Store the tag marginals, or the most probable tags.

    Grid [B, chunks]; a program has `chunk` positions. Either `best` is None, or the other three.

    Args:
        half, lam: see `Projections`.
        values: float64 [B, chunks], the sum of the terms of D of each chunk.
        residuals: float64 [B, chunks], the maximum of |incoming - outgoing| mass.
        marginals: [B, n, T], 0 beyond the length.
        best: int64 [B, n], -100 beyond the length.
        OUTGOING: whether marginals are the outgoing mass, not the geometric mean of both.
    """
    sentence = tl.program_id(0).to(tl.int64)
    length = tl.load(lengths + sentence).to(tl.int32)
    pairs = sentence_pair(pair, sentence, pair_batch)
    row = sentence * max_length
    half += row * num_tags
    lam += row * num_tags
    begin = tl.program_id(1) * chunk
    total = tl.full((POSITIONS,), 0.0, tl.float64)
    residual = tl.full((POSITIONS,), 0.0, tl.float64)
    for base in range(begin, tl.minimum(begin + chunk, max_length), POSITIONS):
        position = base + tl.arange(0, POSITIONS)
        incoming, outgoing = incoming_outgoing(
            half,
            lam,
            pairs,
            follow,
            position,
            length,
            num_tags,
            pair_edge,
            pair_from,
            pair_to,
            POSITIONS,
            CHUNK,
            SHARED,
            BLOCK,
        )
        # The terms of lam cancel in the mean: it is the marginal after one more projection.
        logits = outgoing if OUTGOING else (incoming + outgoing) * 0.5
        if best is not None:
            found = tl.where(position < length, tl.argmax(logits, 1), -100)
            tl.store(best + row + position, found.to(tl.int64), position < max_length)
        else:
            p, _, _ = normalise(logits)
            store_own(marginals + row * num_tags, position, max_length, num_tags, p, BLOCK)
            q_in, _, _ = normalise(incoming)
            q_out, peak, rest = normalise(outgoing)
            gap = tl.max(tl.abs(q_in - q_out), 1).to(tl.float64)
            residual = tl.where(position < length, tl.maximum(residual, gap), residual)
            counted = (position < length - 1) | ((position == 0) & (length == 1))
            term = peak.to(tl.float64) + rest.to(tl.float64)
            total += tl.where(counted, term, 0.0)
    if best is None:
        place = sentence * tl.num_programs(1) + tl.program_id(1)
        tl.store(values + place, tl.sum(total, 0))
        tl.store(residuals + place, tl.max(residual, 0))


def _value_arguments(dtype: str, num_tags: int, shared: bool) -> BuildArguments:
    others = dict.fromkeys(("half", "lam", "terms", "by_unary"), pointer(dtype))
    others |= {"tags": pointer("i64"), "values": pointer("fp64"), "chunk": "i32"}
    return projection_signature(dtype, num_tags, shared, others)


def _result_arguments(dtype: str, num_tags: int, shared: bool) -> BuildArguments:
    others = dict.fromkeys(("half", "lam", "marginals"), pointer(dtype))
    others |= dict.fromkeys(("values", "residuals"), pointer("fp64")) | {"chunk": "i32"}
    return projection_signature(dtype, num_tags, shared, others, {"best": None, "OUTGOING": False})


def _best_arguments(dtype: str, num_tags: int, shared: bool) -> BuildArguments:
    others = dict.fromkeys(("half", "lam"), pointer(dtype))
    others |= {"best": pointer("i64"), "chunk": "i32"}
    constants = dict.fromkeys(("values", "residuals", "marginals")) | {"OUTGOING": False}
    return projection_signature(dtype, num_tags, shared, others, constants)


BUILDS = [
    Build("bregman_value", value, _value_arguments),
    Build("bregman_results", tag_results, _result_arguments),
    Build("bregman_best_tags", tag_results, _best_arguments),
]
