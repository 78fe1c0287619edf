"""A balanced tree of matrix products over the edges, which serves both directions of a scan.

The leaves are N = 2^k matrices, one per edge and then identities. They are stored in bit-reversed
order: the first half of each level has the left children of the next level, the second half has
their right children, in the same order. So every level is two contiguous blocks:

    level 0   edges 0 4 2 6 | 1 5 3 7        N = 8
    level 1   edges 01 45   | 23 67
    level 2   edges 0123    | 4567
    level 3   edges 01234567

On the way down, a vector enters each node from the left, and another one from the right. The left
child gets the vector of its parent from the left, so the first half of the children's vectors is
already in place. The vectors from the right are stored at the end of their memory instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

__all__ = ["bit_reversed", "enter_from_left", "enter_from_right", "levels", "num_leaves"]

Step = Callable[[Tensor, Tensor, Tensor], None]
"""(matrices [h, B, T, T], vectors [h, B, T], out [h, B, T]): write the products to `out`."""


def num_leaves(m: int) -> int:
    """Return the least power of two that is at least m and 1."""
    return 1 << max(m - 1, 0).bit_length()


def bit_reversed(leaves: int, device: torch.device) -> Tensor:
    """Return the numbers of the leaves in bit-reversed order, which is its own inverse."""
    bits = leaves.bit_length() - 1
    order = torch.arange(leaves, device=device)
    return order.view((2,) * bits).permute(*reversed(range(bits))).reshape(-1) if bits else order


def levels(leaves: Tensor, product: Callable[[Tensor, Tensor], Tensor]) -> list[Tensor]:
    """Return the products of all nodes, [N, B, T, T], [N/2, B, T, T], ..., [1, B, T, T].

    All levels are contiguous: `product` may write its result through a flat view.
    """
    found = [leaves.contiguous()]
    while found[-1].shape[0] > 1:
        half = found[-1].shape[0] // 2
        found.append(product(found[-1][:half], found[-1][half:]))
    return found


def enter_from_left(nodes: Sequence[Tensor], start: Tensor, step: Step) -> Tensor:
    """Return the vectors [N, B, T] that enter the leaves from the left; `start` is [B, T]."""
    leaves = nodes[0].shape[0]
    vectors = start.new_empty(leaves, *start.shape)
    vectors[0] = start
    for level in reversed(nodes[:-1]):
        half = level.shape[0] // 2
        step(level[:half], vectors[:half], vectors[half : 2 * half])
    return vectors


def enter_from_right(nodes: Sequence[Tensor], end: Tensor, step: Step) -> Tensor:
    """Return the vectors [N, B, T] that enter the leaves from the right; `end` is [B, T]."""
    leaves = nodes[0].shape[0]
    vectors = end.new_empty(leaves, *end.shape)
    vectors[-1] = end
    for level in reversed(nodes[:-1]):
        half = level.shape[0] // 2
        step(level[half:], vectors[leaves - half :], vectors[leaves - 2 * half : leaves - half])
    return vectors
