"""The Bregman functions of the backend "triton": see the protocol `DeviceKernels`.

A call launches one kernel for all projections, one for values and gradients with respect to the
unary scores, and one for the gradient with respect to the pairs. It launches one more for the live
tags, unless the chain is declared finite.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
from torch import Tensor

from ...chain import LinearChain
from ..results import BregmanResult, ProjectionSettings, ValueAndGradient
from . import pair_gradient as pair_kernel
from .arguments import ChainArguments, chain_arguments, chunk_size, launch, layout
from .bregman_kernels import tag_results, value
from .partial_value import partial_value
from .projections import (
    OPTIONS,
    LiveTags,
    Projections,
    block_sizes,
    find_live_tags,
    run_projections,
)
from .reachability import reachable_tags

__all__ = ["bregman", "bregman_partial", "bregman_result", "most_probable"]

_ROUNDS = 4
"""A program of `value` and `tag_results` works on this many blocks of positions."""

_EDGES_SUMMED = 32
"""Edges of a program of `pair_gradient` that adds over edges."""

_EDGES_STORED = 4
"""Edges of a program of `pair_gradient` that stores the matrix of each edge."""


def bregman(
    chain: LinearChain,
    settings: ProjectionSettings,
    tags: Tensor | None = None,
    wanted: Sequence[bool] = (False, False),
    *,
    start_end: Tensor | None = None,
    every_edge: bool = False,
) -> ValueAndGradient:
    """Return D(lam), or the Fenchel-Young loss of `tags`: see `DeviceKernels.bregman`.

    A tag that is out of range has no path, so the loss is inf.
    """
    arguments = chain_arguments(chain, start_end)
    point = run_projections(arguments, find_live_tags(chain, arguments), settings)
    tags = None if tags is None else tags.contiguous()
    size, grid = _position_grid(arguments)
    values = point.lam.new_empty(grid, dtype=torch.float64)
    terms = _new_terms(point) if wanted[1] else None
    by_unary = torch.empty_like(point.lam) if wanted[0] else None
    _launch_by_position(value, arguments, *point, tags, values, terms, by_unary, size)
    by_pair = None
    if terms is not None:
        by_pair = _by_pair(arguments, point, terms, None, None, tags, every_edge)
    return ValueAndGradient(_total(values), by_unary, by_pair, None)


def bregman_partial(
    chain: LinearChain,
    allowed: Tensor,
    settings: ProjectionSettings,
    wanted: Sequence[bool] = (False, False),
) -> ValueAndGradient:
    """Return D(lam) - D~(lam~), clamped to >= 0: see `DeviceKernels.bregman_partial`.

    The two problems have the same scores. They differ in their live tags.
    """
    arguments = chain_arguments(chain)
    point = run_projections(arguments, find_live_tags(chain, arguments), settings)
    restricted = chain_arguments(chain.restrict(allowed))
    live = LiveTags(reachable_tags(restricted), chain.batch_size)
    allowed_point = run_projections(restricted, live, settings, point.lam)
    size, grid = _position_grid(arguments)
    values = point.lam.new_empty((*grid, 2), dtype=torch.float64)
    terms = _new_terms(point) if wanted[1] else None
    allowed_terms = _new_terms(point) if wanted[1] else None
    by_unary = torch.empty_like(point.lam) if wanted[0] else None
    stored = (values, terms, allowed_terms, by_unary)
    _launch_by_position(partial_value, arguments, *point, *allowed_point, *stored, size)
    mass, descent = _total(values).unbind(1)
    by_pair = None
    if terms is not None:
        by_pair = _by_pair(arguments, point, terms, allowed_point, allowed_terms, None, False)
    return ValueAndGradient(mass + descent.clamp(min=0), by_unary, by_pair, None)


def bregman_result(chain: LinearChain, settings: ProjectionSettings) -> BregmanResult:
    """Return the value, residual, dual point and tag marginals."""
    arguments = chain_arguments(chain)
    point = run_projections(arguments, find_live_tags(chain, arguments), settings)
    size, grid = _position_grid(arguments)
    values, residuals = point.lam.new_empty((2, *grid), dtype=torch.float64)
    marginals = torch.empty_like(point.lam)
    stored = (values, residuals, marginals, None)
    _launch_by_position(tag_results, arguments, *point, *stored, size, OUTGOING=settings.outgoing)
    residual = residuals.amax(1) if grid[1] > 1 else _total(residuals)
    return BregmanResult(_total(values), residual, point.lam, marginals)


def most_probable(
    chain: LinearChain, settings: ProjectionSettings, temperature: float | Tensor
) -> Tensor:
    """Return the most probable tags [B, n] at a temperature, -100 beyond the length."""
    if isinstance(temperature, Tensor) or temperature != 1.0:
        chain = chain / temperature
    arguments = chain_arguments(chain)
    point = run_projections(arguments, find_live_tags(chain, arguments), settings)
    size, _ = _position_grid(arguments)
    best = torch.empty(point.lam.shape[:2], dtype=torch.int64, device=point.lam.device)
    stored = (None, None, None, best)
    _launch_by_position(tag_results, arguments, *point, *stored, size, OUTGOING=settings.outgoing)
    return best


def _position_grid(chain: ChainArguments) -> tuple[int, tuple[int, int]]:
    """Return the positions of a program, and the grid, of the kernels `value` and `tag_results`."""
    positions, _ = block_sizes(chain.num_tags, chain.unary.element_size())
    size = chunk_size(chain.max_length, _ROUNDS * positions)
    return size, (chain.unary.shape[0], triton.cdiv(chain.max_length, size))


def _launch_by_position(
    kernel: triton.JITFunction, chain: ChainArguments, *others: Any, **constants: Any
) -> None:
    _, grid = _position_grid(chain)
    positions, neighbours = block_sizes(chain.num_tags, chain.unary.element_size())
    constants |= {"POSITIONS": positions, "CHUNK": neighbours}
    launch(kernel, grid, chain, *others, **OPTIONS, **constants)


def _new_terms(point: Projections) -> Tensor:
    batch, n, _ = point.lam.shape
    return point.lam.new_empty(batch, n, 2)


def _total(parts: Tensor) -> Tensor:
    """Return the sum over the chunks, [B, ...], of `parts` [B, chunks, ...]."""
    return parts.squeeze(1) if parts.shape[1] == 1 else parts.sum(1)


def _by_pair(
    chain: ChainArguments,
    point: Projections,
    terms: Tensor,
    allowed_point: Projections | None,
    allowed_terms: Tensor | None,
    tags: Tensor | None,
    every_edge: bool,
) -> Tensor:
    """Return the gradient with respect to the pairs.

    It is q minus the gold arcs, or q minus the marginals of the allowed tags.
    """
    batch, n, num_tags = point.lam.shape
    summed = chain.shared and not every_edge
    edges = max(n - 1, 0)
    size = chunk_size(edges, _EDGES_SUMMED if summed else _EDGES_STORED)
    chunks = max(1, triton.cdiv(edges, size)) if summed else triton.cdiv(edges, size)
    count = chunks if summed else edges
    by_pair = point.lam.new_empty(batch, count, num_tags, num_tags)
    rows = pair_kernel.block_rows(num_tags, by_pair.element_size())
    allowed = (None, None) if allowed_point is None else allowed_point
    launch(
        pair_kernel.pair_gradient,
        (batch, chunks, layout(num_tags).block // rows),
        chain,
        *point,
        terms,
        *allowed,
        allowed_terms,
        tags,
        by_pair,
        size,
        num_warps=pair_kernel.NUM_WARPS,
        SUMMED=summed,
        ROWS=rows,
    )
    return _total(by_pair) if summed else by_pair
