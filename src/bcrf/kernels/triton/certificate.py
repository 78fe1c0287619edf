"""Certified decoding on the backend "triton": see `inference.certified`.

Projections give a dual point lam. One kernel finds a best arc of each edge under the reduced
scores, and another one tests whether the tags at which these arcs begin are joined by best arcs.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...chain import LinearChain
from ..results import ProjectionSettings
from .arguments import (
    Build,
    BuildArguments,
    chain_arguments,
    chain_signature,
    chunk_size,
    launch,
    pointer,
)
from .primitives import load_node, load_pair, sentence_pair, sentence_unary
from .projections import (
    OPTIONS,
    block_sizes,
    find_live_tags,
    projection_signature,
    run_projections,
)

__all__ = ["BUILDS", "certified"]

_ROUNDS = 4  # a program of `_best_arcs` works on this many blocks of positions
_CHECKED = 128  # positions that `_check_arcs` tests at a time


def certified(
    chain: LinearChain, omegas: Sequence[float], temperature: float | Tensor
) -> tuple[Tensor, Tensor]:
    """Return tags [B, n] and a certificate bool [B]: see `DeviceKernels.certified`.

    The scores are compared in float64, and a score is compared with the same sum of the same
    numbers. So rounding does not decide the certificate.
    """
    arguments = chain_arguments(chain)
    settings = ProjectionSettings(omegas, 1, None, False, False)
    at_temperature = chain_arguments(chain / temperature)
    half, lam = run_projections(at_temperature, find_live_tags(chain, arguments), settings)
    lam *= temperature
    batch, n, num_tags = half.shape
    tags = torch.empty(batch, n, dtype=torch.int64, device=half.device)
    peaks = torch.empty(batch, n, dtype=torch.float64, device=half.device)
    proved = torch.empty(batch, dtype=torch.uint8, device=half.device)
    positions, neighbours = block_sizes(num_tags, 8)
    size = chunk_size(n, _ROUNDS * positions)
    launch(
        _best_arcs,
        (batch, triton.cdiv(n, size)),
        arguments,
        *(half, lam, tags, peaks, size),
        **OPTIONS,
        POSITIONS=positions,
        CHUNK=neighbours,
    )
    launch(
        _check_arcs,
        (batch,),
        arguments,
        *(half, lam, tags, peaks, proved),
        **OPTIONS,
        POSITIONS=_CHECKED,
    )
    return tags, proved.view(torch.bool)


@triton.jit
def _load_scores(nodes, half, lam, position, length, tag, num_tags, unary_position):
    """Return folded unary scores and lam in float64; the scores are -inf at dead tags.

    Args:
        half: folded scores at another temperature, which say what is dead.
        position, tag: blocks that broadcast with each other.
    """
    scores = load_node(nodes, None, position, length, tag, num_tags, unary_position)
    known = (position >= 0) & (position < length) & (tag >= 0) & (tag < num_tags)
    place = position * num_tags + tag
    live = tl.load(half + place, known, float("-inf")) > float("-inf")
    interior = (position > 0) & (position < length - 1)
    scores = scores.to(tl.float64) * tl.where(interior, 0.5, 1.0)
    dual = tl.load(lam + place, known, 0.0).to(tl.float64)
    return tl.where(live, scores, float("-inf")), dual


@triton.jit
def _best_arcs(
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
    peaks,
    chunk,
    POSITIONS: tl.constexpr,
    CHUNK: tl.constexpr,
    SHARED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Store the tag at which the best arc of each edge begins, and the score of this arc.

    The best arc of the last edge also says the last tag. Grid [B, chunks]; a program has `chunk`
    positions.

    Args:
        half: see `_load_scores`.
        lam: [B, n, T], the dual point at temperature 1.
        tags: int64 [B, n], -100 beyond the length.
        peaks: float64 [B, n], the score of the best arc of each edge.
    """
    sentence = tl.program_id(0).to(tl.int64)
    dtype: tl.constexpr = unary.dtype.element_ty
    length = tl.load(lengths + sentence).to(tl.int32)
    nodes = sentence_unary(unary, sentence, unary_batch)
    pairs = sentence_pair(pair, sentence, pair_batch)
    row = sentence * max_length
    half += row * num_tags
    lam += row * num_tags
    tags += row
    peaks += row
    tag = tl.arange(0, BLOCK)
    begin = tl.program_id(1) * chunk
    for base in range(begin, tl.minimum(begin + chunk, max_length), POSITIONS):
        position = base + tl.arange(0, POSITIONS)
        edge = position[None, :, None]
        best = tl.full((POSITIONS, BLOCK), float("-inf"), tl.float64)
        for start in tl.range(0, num_tags, CHUNK):
            other = (start + tl.arange(0, CHUNK))[:, None, None]
            score, dual = _load_scores(
                nodes, half, lam, edge + 1, length, other, num_tags, unary_position
            )
            # All edges have the shared matrix: we load it once, not for each position.
            matrix = tl.zeros((1, 1, 1), tl.int32) if SHARED else edge
            arcs = load_pair(
                pairs,
                follow,
                matrix,
                length,
                tag[None, None, :],
                other,
                num_tags,
                pair_edge,
                pair_from,
                pair_to,
                dtype,
            )
            best = tl.maximum(best, tl.max(arcs.to(tl.float64) + (score + dual), 0))
        score, dual = _load_scores(
            nodes, half, lam, position[:, None], length, tag[None, :], num_tags, unary_position
        )
        single = (length == 1) & (position == 0)
        total = tl.where(single[:, None], score, (score - dual) + best)
        source = tl.argmax(total, 1)
        tl.store(peaks + position, tl.max(total, 1), position < length)
        found = tl.where(position < length, source, -100).to(tl.int64)
        owned = (position < length - 1) | single | (position >= length)
        tl.store(tags + position, found, owned & (position < max_length))
        arcs = load_pair(
            pairs,
            follow,
            position[:, None],
            length,
            source[:, None],
            tag[None, :],
            num_tags,
            pair_edge,
            pair_from,
            pair_to,
            dtype,
        )
        score, dual = _load_scores(
            nodes, half, lam, position[:, None] + 1, length, tag[None, :], num_tags, unary_position
        )
        target = tl.argmax(arcs.to(tl.float64) + (score + dual), 1)
        tl.store(tags + position + 1, target.to(tl.int64), position == length - 2)


@triton.jit
def _check_arcs(
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
    peaks,
    proved,
    POSITIONS: tl.constexpr,
    SHARED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Store whether each arc between the tags of `_best_arcs` scores as much as the best arc.

    Grid [B]; `proved` is uint8 [B].
    """
    sentence = tl.program_id(0).to(tl.int64)
    dtype: tl.constexpr = unary.dtype.element_ty
    length = tl.load(lengths + sentence).to(tl.int32)
    nodes = sentence_unary(unary, sentence, unary_batch)
    pairs = sentence_pair(pair, sentence, pair_batch)
    row = sentence * max_length
    half += row * num_tags
    lam += row * num_tags
    missed = tl.full((POSITIONS,), 0, tl.int32)
    for base in range(0, length - 1, POSITIONS):
        edge = base + tl.arange(0, POSITIONS)
        inside = edge < length - 1
        before = tl.load(tags + row + edge, inside, 0).to(tl.int32)
        after = tl.load(tags + row + edge + 1, inside, 0).to(tl.int32)
        peak = tl.load(peaks + row + edge, inside, 0.0)
        left, dual = _load_scores(nodes, half, lam, edge, length, before, num_tags, unary_position)
        right, next_dual = _load_scores(
            nodes, half, lam, edge + 1, length, after, num_tags, unary_position
        )
        arc = load_pair(
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
        # In the order of the sum of `_best_arcs`.
        score = (left - dual) + (arc.to(tl.float64) + (right + next_dual))
        missed += tl.where(inside & (score != peak), 1, 0)
    tl.store(proved + sentence, (tl.sum(missed, 0) == 0).to(tl.uint8))


def _best_arguments(dtype: str, num_tags: int, shared: bool) -> BuildArguments:
    others = dict.fromkeys(("half", "lam"), pointer(dtype))
    others |= {"tags": pointer("i64"), "peaks": pointer("fp64"), "chunk": "i32"}
    _, neighbours = block_sizes(num_tags, 8)
    return projection_signature(dtype, num_tags, shared, others, {"CHUNK": neighbours})


def _check_arguments(dtype: str, num_tags: int, shared: bool) -> BuildArguments:
    others = dict.fromkeys(("half", "lam"), pointer(dtype))
    others |= {"tags": pointer("i64"), "peaks": pointer("fp64"), "proved": pointer("u8")}
    signature, constants, _ = chain_signature(dtype, num_tags, shared, others, POSITIONS=_CHECKED)
    return signature, constants, OPTIONS | {"num_stages": 1}


BUILDS = [
    Build("certificate_arcs", _best_arcs, _best_arguments),
    Build("certificate_check", _check_arcs, _check_arguments),
]
