"""Trimming: the tags that lie on at least one allowed path."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..checks import values_readable
from ..compat.control_flow import is_static, loop
from .associative_scan import suffix_products

__all__ = ["live_tags"]


def live_tags(allowed_nodes: Tensor, allowed_pairs: Tensor, lengths: Tensor) -> Tensor:
    """Return the live tags, which lie on at least one allowed path through their sentence.

    A node is a tag at a position. A node is live if allowed nodes and pairs connect it to the first
    position and to the last position of its sentence. A sentence without an allowed path has no
    live tag at any position.

    Args:
        allowed_nodes: bool [B, n, T], which tags each position may have. Constraints on the first
            and the last tag of a sentence belong here too.
        allowed_pairs: bool [T, T], shared by all edges, or bool [B, n - 1, T, T], axes from -> to.
        lengths: int64 [B], between 0 and n.

    Returns:
        bool [B, n, T], False at and beyond the length.

    The control flow depends on the shapes only, so the host never waits for the device. On a CPU we
    loop over positions. On other devices, where a loop of small steps is slow, we use an
    associative scan of depth log n; also in a graph, unless it must serve all lengths.
    """
    n = allowed_nodes.shape[1]
    if n == 0:
        return allowed_nodes.clone()
    position = torch.arange(n, device=allowed_nodes.device)
    last = (position == lengths.unsqueeze(-1) - 1).unsqueeze(-1)
    if values_readable(allowed_nodes) or not is_static(n):
        return _live_by_loop(allowed_nodes, allowed_pairs, last)
    return _live_by_scan(allowed_nodes, allowed_pairs, last)


def _live_by_loop(nodes: Tensor, pairs: Tensor, last: Tensor) -> Tensor:
    """Return the live tags by two passes over the positions.

    `last` (bool [B, n, 1]) marks the last position of each sentence.
    """
    if nodes.shape[1] == 1:
        return nodes & last
    # `_successors` converts one edge at a time: all edges as floats would take four times the
    # memory.
    shared = pairs.float() if pairs.dim() == 2 else None
    edges = () if shared is not None else (pairs,)

    def arrive(carry: tuple[Tensor, ...], here: tuple[Any, ...]) -> Any:
        node, *edge = here
        reached = node & _successors(carry[0], edge[0] if shared is None else shared)
        return (reached,), reached

    # The successors of a reached tag are reached too. So a backward pass over the reached tags
    # gives the intersection of both passes.
    def leave(carry: tuple[Tensor, ...], here: tuple[Any, ...]) -> Any:
        node, end, *edge = here
        onward = _successors(carry[0], edge[0].mT if shared is None else shared.mT)
        live = node & (end | onward)
        return (live,), live

    (final,), reached = loop(arrive, (nodes[:, 0],), (nodes[:, 1:], *edges))
    final = final & last[:, -1]
    reached = torch.cat([nodes[:, :1], reached[:, :-1]], 1)
    _, live = loop(leave, (final,), (reached, last[:, :-1], *edges), reverse=True)
    return torch.cat([live, final.unsqueeze(1)], 1)


def _live_by_scan(nodes: Tensor, pairs: Tensor, last: Tensor) -> Tensor:
    """Return the live tags by an associative scan over products of 0/1 matrices, of depth log n.

    Beyond the end of a sentence the matrices are the identity. They carry the last tags of the
    sentence to the last position of the batch.
    """
    beyond = (last.cumsum(1) > 0)[:, :-1].unsqueeze(-1) | (~last.any(1, keepdim=True)).unsqueeze(-1)
    identity = torch.eye(nodes.shape[-1], dtype=torch.bool, device=nodes.device)
    arcs = nodes[:, :-1].unsqueeze(-1) & pairs & nodes[:, 1:].unsqueeze(-2)
    matrices = torch.where(beyond, identity, arcs).float()
    start, end = nodes[:, 0].float(), (nodes & last).any(1).float()
    onward = suffix_products(matrices, end, _and_or, _and_or_vector) > 0
    back = suffix_products(matrices.mT.flip(1), start, _and_or, _and_or_vector).flip(1) > 0
    inside = last.flip(1).cumsum(1).flip(1) > 0
    return nodes & onward & back & inside


def _and_or(a: Tensor, b: Tensor) -> Tensor:
    """Return the boolean product of two 0/1 matrices as a 0/1 matrix."""
    return (a @ b > 0).to(a.dtype)


def _and_or_vector(matrix: Tensor, vector: Tensor) -> Tensor:
    return _and_or(matrix, vector.unsqueeze(-1)).squeeze(-1)


def _successors(tags: Tensor, edge: Tensor) -> Tensor:
    """Return the tags bool [..., T] that may follow one of `tags` (bool [..., T]).

    `edge` is [T, T] or [..., T, T]. A float matrix product counts the predecessors of each tag. On
    a CPU it is much faster than a boolean `any`, except with few tags and one matrix per pair,
    where it takes a quarter longer. The result is exact in any precision, because no sum of ones
    rounds to 0.
    """
    return (tags.float().unsqueeze(-2) @ edge.float()).squeeze(-2) > 0
