"""The Triton kernel that folds a chain and runs all projections, in one launch.

`kernels.dual` defines the dual point lam. One projection updates lam at all interior positions of
one parity, and reads lam at the two neighbours of each. So after k projections a position depends
on the k positions on each side only. A program solves a tile of positions of one sentence, together
with a halo on each side, and needs nothing from other programs:

    window   |-- halo --|------ tile ------|-- halo --|
    step 0         ########################              positions that the steps may update,
    step 1           ####################                for 3 projections
    step 2             ################

A program keeps its window of scores and of lam in its own part of two scratch tensors, so programs
never write to the same memory. The threads of a program exchange lam through this memory: a barrier
follows each projection.

A chain is folded in two halves: `half` [B, n, T] holds half of the unary score of an interior
position, the whole score at the first and the last position, and -inf at dead tags. The reduced
scores of edge e are

    half[e, s] - lam[e, s] + pair[e, s, t] + half[e+1, t] + lam[e+1, t].
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...chain import LinearChain
from ...numerics.static_trimming import has_tables, static_live
from ..results import ProjectionSettings
from .arguments import (
    Build,
    BuildArguments,
    ChainArguments,
    chain_signature,
    launch,
    layout,
    pointer,
)
from .primitives import load_node, load_pair, sentence_pair, sentence_unary
from .reachability import load_live, reachable_tags

__all__ = [
    "BUILDS",
    "OPTIONS",
    "LiveTags",
    "Projections",
    "block_sizes",
    "find_live_tags",
    "neighbour_sums",
    "projection_signature",
    "run_projections",
    "tile_size",
]

OPTIONS = {"num_warps": 4} | ({} if torch.version.hip else {"maxnreg": 255})
"""Options of all kernels that use `neighbour_sums`. Without an explicit number of registers, ptxas
spills a few of them to run one more program at the same time. The compiler for AMD has no such
option."""

# Each of k steps reads one position further, so a halo of k suffices. We load two positions more.
_HALO_MARGIN = 2

# Programs that run at the same time on a large device: 108 multiprocessors with 3 programs each.
_BUSY_PROGRAMS = 324

# A program that has this many positions spends about as much on its tile as on its halo.
_TILE = 32


def block_sizes(num_tags: int, itemsize: int) -> tuple[int, int]:
    """Return the constants POSITIONS and CHUNK of `neighbour_sums`.

    Their blocks have at most 8 kB, so 16 registers of each thread.
    """
    block = layout(num_tags).block
    return max(1, min(4, 128 // block)), 64 // itemsize


@triton.jit
def neighbour_sums(
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
    BACKWARD: tl.constexpr,
    POSITIONS: tl.constexpr,
    CHUNK: tl.constexpr,
    SHARED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Return the log mass of the arcs that enter each tag, or leave it if BACKWARD.

    alpha[i, t] = log sum_s exp(half[i-1, s] - lam[i-1, s] + pair[i-1, s, t])
    beta[i, s] = log sum_t exp(pair[i, s, t] + half[i+1, t] + lam[i+1, t])

    Blocks have the axes [neighbour's tag, position, own tag]: each thread adds over the first axis
    on its own. Neighbours come in chunks of CHUNK tags, with a running maximum.

    Args:
        half, lam: pointers to the first position of the sentence.
        position: block of POSITIONS positions. The result is -inf beyond the sentence, and for
            those without a neighbour on this side.
    Returns:
        block [POSITIONS, BLOCK].
    """
    dtype: tl.constexpr = half.dtype.element_ty
    tag = tl.arange(0, BLOCK)[None, None, :]
    row = position + 1 if BACKWARD else position - 1
    inside = (row >= 0) & (row < length) & (position >= 0) & (position < length)
    edge = tl.minimum(row, position)
    peak = tl.full((POSITIONS, BLOCK), float("-inf"), dtype)
    mass = tl.full((POSITIONS, BLOCK), 0.0, dtype)
    for start in tl.range(0, num_tags, CHUNK):
        other = start + tl.arange(0, CHUNK)
        known = (other < num_tags)[:, None, None] & inside[None, :, None]
        place = row[None, :, None] * num_tags + other[:, None, None]
        neighbour = tl.load(half + place, known, float("-inf"))
        dual = tl.load(lam + place, known, 0.0)
        neighbour = neighbour + dual if BACKWARD else neighbour - dual
        # All edges have the shared matrix: we load it once, not for each position.
        matrix = tl.zeros((1, 1, 1), tl.int32) if SHARED else edge[None, :, None]
        before = tag if BACKWARD else other[:, None, None]
        after = other[:, None, None] if BACKWARD else tag
        scores = neighbour + load_pair(
            pairs,
            follow,
            matrix,
            length,
            before,
            after,
            num_tags,
            pair_edge,
            pair_from,
            pair_to,
            dtype,
        )
        higher = tl.maximum(peak, tl.max(scores, 0))
        base = tl.where(higher == float("-inf"), 0.0, higher)
        mass = mass * tl.exp(peak - base) + tl.sum(tl.exp(scores - base[None, :, :]), 0)
        peak = higher
    return tl.where(mass > 0.0, peak + tl.log(tl.where(mass > 0.0, mass, 1.0)), float("-inf"))


@triton.jit
def project(
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
    live,
    live_batch,
    initial,
    omegas,
    half_window,
    lam_window,
    half,
    lam,
    tile,
    halo,
    window,
    steps,
    first,
    GAUGE_RIGHT: tl.constexpr,
    POSITIONS: tl.constexpr,
    CHUNK: tl.constexpr,
    SHARED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Fold one tile of a sentence, and project lam; see `pytorch._step` for one projection.

    The grid is (sentences, tiles). With one tile, the windows are the results `half` and `lam`.

    Args:
        live, live_batch: see `LiveTags`.
        initial: [B, n, T], the starting point; None: that of GAUGE_RIGHT, or 0.
        omegas: [steps].
        half_window, lam_window: [B, tiles, window, T].
        half, lam: [B, n, T], the results; lam is 0 beyond the length, `half` -inf.
    """
    sentence = tl.program_id(0).to(tl.int64)
    length = tl.load(lengths + sentence).to(tl.int32)
    begin = tl.program_id(1) * tile
    end = tl.minimum(begin + tile, max_length)
    low = tl.maximum(begin - halo, 0)
    high = tl.minimum(end + halo, max_length)
    own = ((sentence * tl.num_programs(1) + tl.program_id(1)) * window - low) * num_tags
    half_window += own
    lam_window += own
    result = sentence * max_length * num_tags
    nodes = sentence_unary(unary, sentence, unary_batch)
    pairs = sentence_pair(pair, sentence, pair_batch)
    tag = tl.arange(0, BLOCK)[None, :]
    for base in range(low, high, POSITIONS):
        position = base + tl.arange(0, POSITIONS)[:, None]
        place = position * num_tags + tag
        stored = (position < high) & (tag < num_tags)
        scores = load_node(nodes, start_end, position, length, tag, num_tags, unary_position)
        if live is not None:
            alive = load_live(
                live, live_batch, sentence, position, length, max_length, tag, num_tags
            )
            scores = tl.where(alive & stored, scores, float("-inf"))
        interior = (position > 0) & (position < length - 1)
        scores = tl.where(interior, scores * 0.5, scores)
        free = interior & (scores > float("-inf"))
        point = tl.zeros_like(scores)
        if initial is not None:
            point = tl.load(initial + result + place, stored & free, 0.0)
        elif GAUGE_RIGHT:
            point = tl.where(free, scores, 0.0)
        tl.store(half_window + place, scores, stored)
        tl.store(lam_window + place, point, stored)
    tl.debug_barrier()
    for step in range(steps):
        omega = tl.load(omegas + step)
        reach = steps - 1 - step
        start = tl.maximum(begin - reach, 1)
        start += (start + first + step) % 2
        stop = tl.minimum(end + reach, length - 1)
        for base in range(start, stop, 2 * POSITIONS):
            position = base + 2 * tl.arange(0, POSITIONS)
            alpha = neighbour_sums(
                half_window,
                lam_window,
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
            beta = neighbour_sums(
                half_window,
                lam_window,
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
            place = position[:, None] * num_tags + tag
            stored = (position < stop)[:, None] & (tag < num_tags)
            free = tl.load(half_window + place, stored, float("-inf")) > float("-inf")
            # lam is defined up to a constant per position; a mean of 0 keeps it small and precise.
            new = tl.where(free, (beta - alpha) * 0.5, 0.0)
            count = tl.maximum(tl.sum(free.to(tl.int32), 1), 1)
            new -= (tl.sum(new, 1) / count.to(new.dtype))[:, None]
            old = tl.load(lam_window + place, stored, 0.0)
            tl.store(lam_window + place, tl.where(free, old + omega * (new - old), 0.0), stored)
        tl.debug_barrier()
    if tl.num_programs(1) > 1:
        for base in range(begin, end, POSITIONS):
            position = base + tl.arange(0, POSITIONS)[:, None]
            place = position * num_tags + tag
            stored = (position < end) & (tag < num_tags)
            tl.store(half + result + place, tl.load(half_window + place, stored), stored)
            tl.store(lam + result + place, tl.load(lam_window + place, stored), stored)


class LiveTags(NamedTuple):
    """The live tags of a batch, as `load_live` of the module `reachability` reads them.

    Args:
        live: uint8 [B, n, T], or the result [2, B, n, T] of `reachable_tags`; None: all tags.
        live_batch: B with the second form, 0 with the first one.
    """

    live: Tensor | None
    live_batch: int


def find_live_tags(chain: LinearChain, arguments: ChainArguments) -> LiveTags:
    """Return the live tags.

    With `chain.finite` we do not read scores, unless the structure has no tables (see
    `ReachableTags`); without tables, one launch of a kernel is the fastest way.

    Args:
        arguments: those of `chain`, start and end scores included.
    """
    if chain.known_finite:
        return LiveTags(None, 0)
    if not chain.finite or chain.structure is None or not has_tables(chain.structure):
        return LiveTags(reachable_tags(arguments), chain.batch_size)
    live = static_live(chain.structure, chain.lengths, chain.max_length)
    return LiveTags(live.contiguous().view(torch.uint8), 0)


class Projections(NamedTuple):
    """The folded chain and the dual point, which the kernels after `project` read.

    Args:
        half: [B, n, T], the folded unary scores; -inf at dead tags and beyond the length.
        lam: [B, n, T], 0 at dead tags, at the ends, and beyond the length.
    """

    half: Tensor
    lam: Tensor


def run_projections(
    chain: ChainArguments,
    live: LiveTags,
    settings: ProjectionSettings,
    initial: Tensor | None = None,
    tile: int | None = None,
) -> Projections:
    """Run all projections of a batch in one launch.

    Args:
        live: the result of `find_live_tags`.
        initial: [B, n, T], contiguous, the starting point; None: that of the settings.
        tile: positions of a program; None: chosen by the shape. It changes no result.
    """
    unary = chain.unary
    batch, n, num_tags = unary.shape
    half, lam = unary.new_empty(2, batch, n, num_tags)
    steps = len(settings.omegas)
    halo = steps + _HALO_MARGIN
    if tile is None:
        tile = tile_size(batch, n, halo)
    tiles = triton.cdiv(n, tile)
    window, half_window, lam_window = n, half, lam
    if tiles > 1:
        window = min(n, tile + 2 * halo)
        half_window, lam_window = unary.new_empty(2, batch, tiles, window, num_tags)
    omegas = _omegas(tuple(settings.omegas), unary.dtype, unary.device)
    scratch = (half_window, lam_window, half, lam)
    sizes = (tile, halo, window, steps, settings.first)
    positions, neighbours = block_sizes(num_tags, unary.element_size())
    launch(
        project,
        (batch, tiles),
        chain,
        *live,
        initial,
        omegas,
        *scratch,
        *sizes,
        **OPTIONS,
        GAUGE_RIGHT=settings.gauge_right,
        POSITIONS=positions,
        CHUNK=neighbours,
    )
    return Projections(half, lam)


def tile_size(batch: int, n: int, halo: int) -> int:
    """Return the positions of a tile: as few as one wave of programs allows, but at least `_TILE`.

    A sentence that is hardly longer than a tile is one tile, which needs no halo.
    """
    tile = max(_TILE, triton.cdiv(batch * n, _BUSY_PROGRAMS))
    return max(n, 1) if n <= tile + halo else tile


@lru_cache(maxsize=64)
def _omegas(omegas: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return the relaxations on the device; only the first call copies them there."""
    with torch.inference_mode(False):
        return torch.tensor(omegas, dtype=dtype, device=device)


def _project_arguments(dtype: str, num_tags: int, shared: bool) -> BuildArguments:
    scores = pointer(dtype)
    names = ("initial", "omegas", "half_window", "lam_window", "half", "lam")
    others = dict.fromkeys(names, scores) | {"live": pointer("u8"), "live_batch": "i32"}
    others |= dict.fromkeys(("tile", "halo", "window", "steps", "first"), "i32")
    return projection_signature(dtype, num_tags, shared, others, {"GAUGE_RIGHT": False})


def projection_signature(
    dtype: str,
    num_tags: int,
    shared: bool,
    others: Mapping[str, str],
    constants: Mapping[str, Any] | None = None,
) -> BuildArguments:
    """Return what compiles a kernel that uses `neighbour_sums`: see `chain_signature`.

    Args:
        constants: values of constants; `POSITIONS` and `CHUNK` are always there.
    """
    positions, chunk = block_sizes(num_tags, 4 if dtype == "fp32" else 8)
    constants = {"POSITIONS": positions, "CHUNK": chunk} | dict(constants or {})
    signature, all_constants, _ = chain_signature(dtype, num_tags, shared, others, **constants)
    return signature, all_constants, OPTIONS | {"num_stages": 1}


BUILDS = [Build("bregman_projections", project, _project_arguments)]
