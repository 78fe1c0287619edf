"""Messages of the exact CRF by an associative scan: depth log n, work n T^3."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ...numerics.logspace import widest_dtype
from . import product_tree, scratch
from .messages import Messages, subtract_peak
from .prepared import PreparedChain
from .scratch import log_sum

__all__ = ["scan_messages"]


def scan_messages(problem: PreparedChain) -> Messages:
    """Return the messages of a chain with n > 0.

    The matrix of edge e holds pair[s, t] + unary[e+1, t]. One tree of matrix products serves both
    directions: see `product_tree`. Beyond the length the matrices are the identity.
    """
    unary = problem.unary
    edges = unary.shape[1] - 1
    wide = widest_dtype(unary.device)
    by_position = unary.transpose(0, 1)
    start = by_position[0]
    if not edges:
        total = log_sum(start.to(wide, copy=True), -1)  # `log_sum` overwrites its argument
        return Messages(unary, unary, total)
    order = product_tree.bit_reversed(product_tree.num_leaves(edges), unary.device)
    scales: list[Tensor] = []

    def product(a: Tensor, b: Tensor) -> Tensor:
        found, peaks = _product(problem, a, b)
        scales.append(peaks.sum(0, dtype=wide))
        return found

    def from_left(matrices: Tensor, vectors: Tensor, out: Tensor) -> None:
        subtract_peak(problem, log_sum(vectors.unsqueeze(-1) + matrices, -2), out)

    def from_right(matrices: Tensor, vectors: Tensor, out: Tensor) -> None:
        subtract_peak(problem, log_sum(vectors.unsqueeze(-2) + matrices, -1), out)

    tree = product_tree.levels(_leaves(problem, order, edges), product)
    end = torch.zeros_like(start)
    reached = product_tree.enter_from_left(tree, start, from_left)
    onward = product_tree.enter_from_right(tree, end, from_right)
    last, first = torch.empty(2, 1, *start.shape, dtype=start.dtype, device=start.device)
    from_left(tree[-1], start.unsqueeze(0), last)
    from_right(tree[-1], end.unsqueeze(0), first)
    place = order[:edges]
    alpha = torch.cat([reached[place], last]).transpose(0, 1)
    beta = torch.cat([first, onward[place]]).transpose(0, 1) + unary
    total = log_sum((start.unsqueeze(-1) + tree[-1][0]).flatten(1).to(wide), -1)
    for scale in scales:
        total = total + scale
    return Messages(alpha, beta, total)


def _leaves(problem: PreparedChain, order: Tensor, edges: int) -> Tensor:
    """Return the matrices of the edges, and identities, [N, B, T, T] in the order of the tree."""
    unary, pair = problem.unary, problem.pair
    target = (order + 1).clamp_(max=edges)
    beyond = problem.outside.mT[target].logical_or_((order >= edges).unsqueeze(-1))
    if not problem.shared:
        pair = pair.transpose(0, 1)[target - 1]
    scores = pair + unary.transpose(0, 1)[target].unsqueeze(-2)
    num_tags = unary.shape[-1]
    identity = unary.new_full((num_tags, num_tags), -math.inf).fill_diagonal_(0)
    return torch.where(beyond[..., None, None], identity, scores)


def _product(problem: PreparedChain, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Return the products of two blocks of matrices minus their peaks, and the peaks [h, B]."""
    num_tags = a.shape[-1]
    rows, columns = a.flatten(0, 1).unsqueeze(-1), b.flatten(0, 1).unsqueeze(-3)
    found, peaks = torch.empty_like(a), a.new_empty(a.shape[:2])
    flat, flat_peaks = found.flatten(0, 1), peaks.flatten()
    size = max(1, scratch.CHUNK // num_tags**3)
    for begin in range(0, flat.shape[0], size):
        part = slice(begin, begin + size)
        sums = log_sum(rows[part] + columns[part], -2)
        peak = torch.amax(sums, (-2, -1), out=flat_peaks[part])
        if not problem.plain:
            peak.clamp_(min=torch.finfo(peak.dtype).min)  # -inf - -inf is NaN
        torch.sub(sums, peak[:, None, None], out=flat[part])
    return found, peaks
