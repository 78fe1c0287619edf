"""What Adam does to a number between two of its gradients, in closed form.

Without a gradient Adam's moments only decay, and the number moves on by what is left of them: it
*coasts*. From step s, where the moments are m and v, to step t the number changes by

    - sum_{u = s+1..t}  a_u b1^(u-s) m / ( sqrt(v) / z_u + eps ),    a_u = lr_u / (1 - b1^u),
                                                                     z_u = sqrt((1 - b2^u) b2^(s-u))
    = - m sum_u  a_u b1^(u-s) z_u / ( sqrt(v) + eps z_u ).

The weights a b1^(u-s) z and the nodes z depend on s and t only, and the sum is an integral of the
smooth function z -> 1 / (sqrt(v) + eps z) under them. The two-point Gauss rule, which has the same
first four moments, replaces it: two divisions instead of t - s. What is lost is far below the
rounding of a float32 (nothing at all for eps << sqrt(v); tests/test_nn_adam.py has the numbers).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Coast", "Coasting"]

# Steps beyond which the first moment has decayed to nothing: b1^age below this.
_NOTHING = 1e-20


class Coast(NamedTuple):
    """The way from each of R steps to now: the number p with moments m, v becomes

    p - m sum_i weights[i] / (sqrt(v) + nodes[i]);  m becomes first * m, v becomes second * v.
    """

    weights: tuple[Tensor, Tensor]
    nodes: tuple[Tensor, Tensor]
    first: Tensor
    second: Tensor


class Coasting:
    """Learning rates so far, summed up for every step from which a number may have to coast.

    Args:
        betas, eps: Adam's.
        step: number of steps done; nothing coasts from an earlier one.
    """

    def __init__(self, betas: tuple[float, float], eps: float, step: int = 0) -> None:
        self.betas, self.eps, self.step = betas, eps, step
        b1, b2 = betas
        reach = math.ceil(math.log(_NOTHING) / math.log(b1)) if b1 > 0 else 0
        age = torch.arange(reach, 0, -1, dtype=torch.float64)
        self._weight_by_age = b1**age * b2 ** (-age / 2)
        self._node_by_age = b2 ** (-age / 2)
        self.forget()

    def forget(self) -> None:
        """Nothing coasts from before the present step any more."""
        self._origin = self.step
        self._starts = self._new_starts(64)

    def advance(self, lr: float) -> None:
        """One step more, at this learning rate."""
        self.step += 1
        b1, b2 = self.betas
        size = self.step - self._origin
        if size == self._starts.shape[1]:
            self._starts = torch.cat([self._starts, self._new_starts(size)], 1)
        reach = min(size, len(self._weight_by_age))
        if not reach:
            return
        scale = math.sqrt(-math.expm1(self.step * math.log(b2)))
        weight = self._weight_by_age[-reach:] * (lr * scale / (1 - b1**self.step))
        start, *moments = self._starts[:, size - reach : size]
        node = self._node_by_age[-reach:] * scale - start
        for moment in moments:
            moment += weight
            weight *= node

    def since(self, step: Tensor) -> Coast:
        """The way from each of these steps (int64 [R], not after now).

        Columns [R, 1] in float64, on the CPU.
        """
        step = step.cpu()
        start, *moments = self._starts[:, step - self._origin].unsqueeze(-1)
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
        return Coast(
            (total * (1 - tilt) / 2, total * (1 + tilt) / 2),
            (
                self.eps * (centre + deviation * (skew + root)),
                self.eps * (centre + deviation * (skew - root)),
            ),
            b1**age,
            b2**age,
        )

    def _new_starts(self, size: int) -> Tensor:
        """[5, size] float64: for each s, z_{s+1} and four moments of z - z_{s+1}, 0 as yet.

        Relative to z_{s+1}, which is close to all that matter, the moments do not cancel.
        """
        first = self.step + 1 + torch.arange(size, dtype=torch.float64)
        starts = torch.zeros(5, size, dtype=torch.float64)
        b2 = self.betas[1]
        starts[0] = torch.sqrt(-torch.expm1(first * math.log(b2)) / b2)
        return starts
