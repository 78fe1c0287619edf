"""The live tags, by a scan over boolean products of depth log n."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ...chain import LinearChain
from ...numerics.static_trimming import has_tables, static_live
from . import product_tree, scratch

__all__ = ["live"]


def live(chain: LinearChain, unary: Tensor, pair: Tensor, outside: Tensor) -> Tensor:
    """Return the live tags, bool [B, n, T], False beyond the lengths.

    Args:
        unary, pair, outside: of the prepared chain.
    """
    batch, n, _ = unary.shape
    structure = chain.structure
    if chain.finite and structure is not None and has_tables(structure):
        return static_live(structure, chain.lengths, n)
    nodes = (unary != -math.inf).logical_and_(~outside.unsqueeze(-1))
    if not n:
        return nodes
    arcs = pair != -math.inf
    per_sentence = product_tree.num_leaves(n - 1) * unary.shape[-1] ** 2
    size = max(1, scratch.CHUNK // per_sentence)
    if batch <= size:
        return _live(nodes, arcs, outside)
    parts = [slice(b, b + size) for b in range(0, batch, size)]
    shared = arcs.dim() == 2
    return torch.cat([_live(nodes[s], arcs if shared else arcs[s], outside[s]) for s in parts])


def _live(nodes: Tensor, arcs: Tensor, outside: Tensor) -> Tensor:
    """Return the live tags, by products of matrices of 0 and 1.

    Beyond the length the matrices are the identity, which carries the last tags of a sentence to
    the end of the batch.
    """
    _, n, num_tags = nodes.shape
    edges = n - 1
    by_position = nodes.transpose(0, 1)
    if not edges:
        return nodes
    leaves = product_tree.num_leaves(edges)
    order = product_tree.bit_reversed(leaves, nodes.device)
    target = (order + 1).clamp_(max=edges)
    beyond = outside.mT[target].logical_or_((order >= edges).unsqueeze(-1))
    allowed = arcs if arcs.dim() == 2 else arcs.transpose(0, 1)[target - 1]
    identity = torch.eye(num_tags, dtype=torch.bool, device=nodes.device)
    matrices = allowed & by_position[target].unsqueeze(-2)
    torch.where(beyond[..., None, None], identity, matrices, out=matrices)
    tree = product_tree.levels(matrices.to(_dtype(nodes.device)), _product)
    del matrices
    # A sentence without arcs passes its last tags on; an empty one has no tags.
    start = by_position[0].to(_dtype(nodes.device))
    ones = torch.ones_like(start)
    reached = product_tree.enter_from_left(tree, start, _from_left)
    onward = product_tree.enter_from_right(tree, ones, _from_right)
    first, last = torch.empty_like(ones), torch.empty_like(ones)
    _from_right(tree[-1], ones.unsqueeze(0), first.unsqueeze(0))
    _from_left(tree[-1], start.unsqueeze(0), last.unsqueeze(0))
    ahead = torch.cat([first.unsqueeze(0), onward[order[:edges]]])
    behind = torch.cat([reached[order[:edges]], last.unsqueeze(0)])
    return (ahead.mul_(behind).transpose(0, 1) > 0).logical_and_(nodes)


def _dtype(device: torch.device) -> torch.dtype:
    """Return the dtype of the matrices: no sum of ones rounds to 0 in any precision."""
    return torch.float16 if device.type == "cuda" else torch.float32


def _product(a: Tensor, b: Tensor) -> Tensor:
    product = torch.empty_like(a)
    # Autocast leaves operations with `out` alone.
    torch.bmm(a.flatten(0, 1), b.flatten(0, 1), out=product.flatten(0, 1))
    return product.clamp_(max=1)


def _from_left(matrices: Tensor, vectors: Tensor, out: Tensor) -> None:
    found = out.flatten(0, 1).unsqueeze(-2)
    torch.bmm(vectors.flatten(0, 1).unsqueeze(-2), matrices.flatten(0, 1), out=found)
    out.clamp_(max=1)


def _from_right(matrices: Tensor, vectors: Tensor, out: Tensor) -> None:
    found = out.flatten(0, 1).unsqueeze(-1)
    torch.bmm(matrices.flatten(0, 1), vectors.flatten(0, 1).unsqueeze(-1), out=found)
    out.clamp_(max=1)
