"""Trimming: the tags that lie on at least one allowed path."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..checks import values_readable
from ..compat.control_flow import fixpoint, is_tracing
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

    In eager mode the control flow depends on the shapes only, so the host never waits for the
    device. On a CPU we loop over positions. On other devices, where a loop of small steps is slow,
    we use an associative scan of depth log n. In a graph, which must serve all lengths, we repeat
    one parallel step.
    """
    n = allowed_nodes.shape[1]
    if n == 0:
        return allowed_nodes.clone()
    position = torch.arange(n, device=allowed_nodes.device)
    last = (position == lengths.unsqueeze(-1) - 1).unsqueeze(-1)
    if values_readable(allowed_nodes):
        return _live_by_loop(allowed_nodes, allowed_pairs, last)
    if is_tracing():
        inside = (position < lengths.unsqueeze(-1)).unsqueeze(-1)
        return _live_by_rounds(allowed_nodes & inside, allowed_pairs, last)
    return _live_by_scan(allowed_nodes, allowed_pairs, last)


def _live_by_loop(nodes: Tensor, pairs: Tensor, last: Tensor) -> Tensor:
    """Return the live tags by two passes over the positions.

    `last` (bool [B, n, 1]) marks the last position of each sentence.
    """
    n = nodes.shape[1]
    node, end = nodes.unbind(1), last.unbind(1)
    if pairs.dim() == 2:
        edges: Sequence[Tensor] = [pairs.float()] * (n - 1)
    else:
        # `_successors` converts one edge at a time: all edges as floats would take four times the
        # memory.
        edges = pairs.unbind(1)

    reached = [node[0]]
    for i in range(1, n):
        reached.append(node[i] & _successors(reached[-1], edges[i - 1]))

    # The successors of a reached tag are reached too. So a backward pass over the reached tags
    # gives the intersection of both passes.
    live = [reached[-1] & end[-1]]
    for i in range(n - 2, -1, -1):
        live.append(reached[i] & (end[i] | _successors(live[-1], edges[i].mT)))
    return torch.stack(live[::-1], dim=1)


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


def _live_by_rounds(nodes: Tensor, pairs: Tensor, last: Tensor) -> Tensor:
    """Return the live tags by parallel rounds over all positions, until nothing changes.

    A round removes each tag without a live predecessor or successor. Each tag that remains at the
    end has live neighbours on both sides, and so lies on a path. Usually one or two rounds suffice;
    the maximum is n. `nodes` is False beyond the length.
    """
    arrive, leave = pairs.float(), pairs.float().mT

    def round_(live: Tensor) -> Tensor:
        reached = live[:, 1:] & _successors(live[:, :-1], arrive)
        live = torch.cat([live[:, :1], reached], 1)
        onward = live[:, :-1] & (last[:, :-1] | _successors(live[:, 1:], leave))
        return torch.cat([onward, live[:, -1:]], 1)

    return fixpoint(round_, nodes)


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
