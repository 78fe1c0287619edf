"""An associative scan of depth log m over products of m matrices, in any semiring."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["suffix_products"]

Product = Callable[[Tensor, Tensor], Tensor]


def suffix_products(matrices: Tensor, end: Tensor, matmul: Product, matvec: Product) -> Tensor:
    """Return the vectors M_i M_{i+1} ... M_{m-1} end for every i.

    We multiply adjacent matrices in pairs, and solve the chain of half the length recursively. This
    gives the vectors of the even positions. One more matrix-vector product gives each vector of an
    odd position. In all there are m matrix products in log2(m) rounds.

    Args:
        matrices: [B, m, T, T].
        end: [B, T].
        matmul: [B, h, T, T] x [B, h, T, T] -> [B, h, T, T] of the semiring.
        matvec: [B, h, T, T] x [B, h, T] -> [B, h, T].
    Returns:
        [B, m + 1, T]; the last vector is `end`.
    """
    m = matrices.shape[1]
    if m == 0:
        return end.unsqueeze(1)
    if m == 1:
        return torch.cat([matvec(matrices, end.unsqueeze(1)), end.unsqueeze(1)], 1)
    odd = matrices[:, 1::2]
    h = odd.shape[1]
    halves = matmul(matrices[:, : 2 * h : 2], odd)
    if m % 2:
        halves = torch.cat([halves, matrices[:, -1:]], 1)
    coarse = suffix_products(halves, end, matmul, matvec)
    fine = matvec(odd, coarse[:, 1 : h + 1])
    both = torch.stack([coarse[:, :h], fine], 2).flatten(1, 2)
    return torch.cat([both, coarse[:, h:]], 1)
