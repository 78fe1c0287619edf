"""Dropout in a fraction of the time that torch takes on a CPU."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["Dropout"]


class Dropout(nn.Module):
    """Each number becomes 0 with probability `rate` in training, the others grow by 1 / (1 - rate).

    On a CPU most of the time of `nn.Dropout` goes into drawing one random number per entry. Here a
    draw of 64 bits decides four entries; the rate is rounded to a multiple of 2^-16.
    """

    def __init__(self, rate: float = 0.0) -> None:
        super().__init__()
        if not 0 <= rate < 1:
            raise ValueError(f"rate must be in [0, 1), got {rate}")
        self.rate = rate

    def forward(self, states: Tensor) -> Tensor:
        if not self.training or not self.rate:
            return states
        if not states.is_cpu:
            return F.dropout(states, self.rate)
        lost = round(self.rate * 2**16)
        kept = _random_int16(states.shape) >= lost - 2**15
        return states * kept.to(states.dtype).mul_(2**16 / (2**16 - lost))

    def extra_repr(self) -> str:
        return f"rate={self.rate}"


def _random_int16(shape: torch.Size) -> Tensor:
    draws = torch.empty((shape.numel() + 3) // 4, dtype=torch.int64)
    draws.random_(-(2**63), None)  # all 64 bits; the default range leaves out the sign
    return draws.view(torch.int16)[: shape.numel()].view(shape)
