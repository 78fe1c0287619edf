"""The Triton kernel of the partial Fenchel-Young loss and its gradient for the unary scores."""

from __future__ import annotations

import triton
import triton.language as tl

from .arguments import Build, BuildArguments, pointer
from .bregman_kernels import incoming_outgoing, normalise, outgoing_logits, store_own
from .primitives import sentence_pair
from .projections import projection_signature

__all__ = ["BUILDS", "partial_value"]


@triton.jit
def partial_value(
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
    allowed_half,
    allowed_lam,
    values,
    terms,
    allowed_terms,
    by_unary,
    chunk,
    POSITIONS: tl.constexpr,
    CHUNK: tl.constexpr,
    SHARED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Store the two parts of D(lam) - D~(lam~), where ~ marks the problem of the allowed tags.

    Grid [B, chunks]; a program has `chunk` positions. The first part is the sum over the edges of
    max(0, D(lam) - D~(lam)), the second one that of D~(lam) - D~(lam~): see
    `BregmanSolution.partial_loss`.

    Args:
        half, lam, allowed_half, allowed_lam: the `Projections` of both problems.
        values: float64 [B, chunks, 2]; the first part is inf in a sentence without an allowed path.
        terms, allowed_terms, by_unary: as in `value`; or None. Without an allowed path the
            gradient is 0.
    """
    sentence = tl.program_id(0).to(tl.int64)
    length = tl.load(lengths + sentence).to(tl.int32)
    pairs = sentence_pair(pair, sentence, pair_batch)
    row = sentence * max_length
    half += row * num_tags
    lam += row * num_tags
    allowed_half += row * num_tags
    allowed_lam += row * num_tags
    begin = tl.program_id(1) * chunk
    mass = tl.full((POSITIONS,), 0.0, tl.float64)
    descent = tl.full((POSITIONS,), 0.0, tl.float64)
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
        q_in, _, _ = normalise(incoming)
        q_out, peak, rest = normalise(outgoing)
        gradient = (q_in + q_out) * 0.5
        # D~ at lam: its point differs from lam at dead tags only, which take part in nothing.
        between = outgoing_logits(
            allowed_half,
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
        _, middle_peak, middle_rest = normalise(between)
        incoming, outgoing = incoming_outgoing(
            allowed_half,
            allowed_lam,
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
        q_in, _, _ = normalise(incoming)
        q_out, allowed_peak, allowed_rest = normalise(outgoing)
        gradient -= (q_in + q_out) * 0.5
        lost = allowed_rest == float("-inf")
        counted = (position < length - 1) | ((position == 0) & (length == 1))
        # The differences of peaks and of the rests cancel less than those of the sums.
        term = (peak.to(tl.float64) - middle_peak) + (rest.to(tl.float64) - middle_rest)
        term = tl.where(lost, float("inf"), tl.where(term < 0.0, 0.0, term))
        mass += tl.where(counted, term, 0.0)
        middle_rest = tl.where(lost, 0.0, middle_rest).to(tl.float64)
        term = middle_peak.to(tl.float64) - allowed_peak + (middle_rest - allowed_rest)
        descent += tl.where(counted & (lost == 0), term, 0.0)
        if terms is not None:
            place = (row + position) * 2
            tl.store(terms + place, peak, position < max_length)
            tl.store(terms + place + 1, rest, position < max_length)
            tl.store(allowed_terms + place, allowed_peak, position < max_length)
            tl.store(allowed_terms + place + 1, allowed_rest, position < max_length)
        if by_unary is not None:
            gradient = tl.where(((position < length) & (lost == 0))[:, None], gradient, 0.0)
            store_own(by_unary + row * num_tags, position, max_length, num_tags, gradient, BLOCK)
    place = (sentence * tl.num_programs(1) + tl.program_id(1)) * 2
    tl.store(values + place, tl.sum(mass, 0))
    tl.store(values + place + 1, tl.sum(descent, 0))


def _arguments(dtype: str, num_tags: int, shared: bool) -> BuildArguments:
    names = ("half", "lam", "allowed_half", "allowed_lam", "terms", "allowed_terms", "by_unary")
    others = dict.fromkeys(names, pointer(dtype)) | {"values": pointer("fp64"), "chunk": "i32"}
    return projection_signature(dtype, num_tags, shared, others)


BUILDS = [Build("bregman_partial_value", partial_value, _arguments)]
