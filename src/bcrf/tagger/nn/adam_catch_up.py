"""Compute in closed form how Adam changes a weight in steps without a gradient.

In a step without a gradient, Adam's moments only decay, and the decayed moments still move the
weight. Let m and v be the moments after step s. From step s to step t the weight changes by

    - sum_{u = s+1..t}  a_u b1^(u-s) m / ( sqrt(v) / z_u + eps ),    a_u = lr_u / (1 - b1^u),
                                                                     z_u = sqrt((1 - b2^u) b2^(s-u))
    = - m sum_u  a_u b1^(u-s) z_u / ( sqrt(v) + eps z_u ).

The factors a_u b1^(u-s) z_u and the nodes z_u depend on s and t only. So the sum is an integral of
the smooth function z -> 1 / (sqrt(v) + eps z) under a discrete measure. We replace this measure by
the two-point Gauss rule with the same first four moments, which needs two divisions instead of
t - s. The error is far below the rounding of float32, and zero in the limit eps << sqrt(v);
tests/tagger/test_nn_adam.py measures it.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["CatchUp", "CatchUpTable"]

# A first moment that has decayed by this factor no longer moves a weight.
_NEGLIGIBLE = 1e-20


class CatchUp(NamedTuple):
    """The update of R rows for the steps that they missed since their last update.

    A weight p with the moments m and v becomes

        p - m sum_i weights[i] / (sqrt(v) + nodes[i]);  m becomes first * m, v becomes second * v.

    All tensors are [R, 1], float64, on the CPU.
    """

    weights: tuple[Tensor, Tensor]
    nodes: tuple[Tensor, Tensor]
    first: Tensor
    second: Tensor


class CatchUpTable:
    """Sums over past learning rates, one for each step at which a row may last have been updated.

    Args:
        betas, eps: the settings of Adam.
        step: number of steps done; all rows are up to date at that step.
    """

    def __init__(self, betas: tuple[float, float], eps: float, step: int = 0) -> None:
        self.betas, self.eps, self.step = betas, eps, step
        b1, b2 = betas
        reach = math.ceil(math.log(_NEGLIGIBLE) / math.log(b1)) if b1 > 0 else 0
        age = torch.arange(reach, 0, -1, dtype=torch.float64)
        self._weight_by_age = b1**age * b2 ** (-age / 2)
        self._node_by_age = b2 ** (-age / 2)
        self.forget()

    def forget(self) -> None:
        """Drop all sums: from now on, all rows are up to date at the present step."""
        self._origin = self.step
        self._sums = self._empty_sums(64)

    def advance(self, lr: float) -> None:
        """Add one step with this learning rate."""
        self.step += 1
        b1, b2 = self.betas
        size = self.step - self._origin
        if size == self._sums.shape[1]:
            self._sums = torch.cat([self._sums, self._empty_sums(size)], 1)
        reach = min(size, len(self._weight_by_age))
        if not reach:
            return
        scale = math.sqrt(-math.expm1(self.step * math.log(b2)))
        weight = self._weight_by_age[-reach:] * (lr * scale / (1 - b1**self.step))
        start, *moments = self._sums[:, size - reach : size]
        node = self._node_by_age[-reach:] * scale - start
        for moment in moments:
            moment += weight
            weight *= node

    def since(self, step: Tensor) -> CatchUp:
        """Return the update of R rows that were last updated in the steps `step` (int64 [R])."""
        step = step.cpu()
        start, *moments = self._sums[:, step - self._origin].unsqueeze(-1)
        total = moments[0]
        mean, square, cube = (m / torch.where(total > 0, total, 1.0) for m in moments[1:])
        variance = (square - mean**2).clamp_min(0)
        third = cube - 3 * mean * square + 2 * mean**3
        deviation = variance.sqrt()
        skew = torch.where(variance > 0, third / (2 * variance * deviation), 0.0)
        root = (1 + skew**2).sqrt()
        centre, tilt = start + mean, skew / root
        age = (self.step - step).unsqueeze(-1).double()
        b1, b2 = self.betas
        return CatchUp(
            (total * (1 - tilt) / 2, total * (1 + tilt) / 2),
            (
                self.eps * (centre + deviation * (skew + root)),
                self.eps * (centre + deviation * (skew - root)),
            ),
            b1**age,
            b2**age,
        )

    def _empty_sums(self, size: int) -> Tensor:
        """Return [5, size] float64: for each step s, z_{s+1} and four zeros.

        `advance` adds to the zeros, which become the moments of z - z_{s+1}. We subtract z_{s+1},
        which is close to all nodes with a notable weight, because the variance would lose digits
        if it were computed from the moments of z itself.
        """
        first = self.step + 1 + torch.arange(size, dtype=torch.float64)
        sums = torch.zeros(5, size, dtype=torch.float64)
        b2 = self.betas[1]
        sums[0] = torch.sqrt(-torch.expm1(first * math.log(b2)) / b2)
        return sums
