"""Interchangeable implementations of the hot functions, chosen by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from ..arcs import Arcs
from . import naive, vectorized

__all__ = ["Kernel", "get"]


class Kernel(Protocol):
    """What a kernel, a module, has to offer; `naive` says what the functions compute."""

    def project(
        self, arcs: Arcs, lam: Tensor, omegas: Sequence[float], first: int, tolerance: float | None
    ) -> Tensor:
        """lam [B, n, T] after the projections; no gradient."""

    def backward_messages(self, arcs: Arcs) -> tuple[Tensor, Tensor]:
        """beta [B, n, T] and a log scale [B]; differentiable."""

    def forward_messages(self, arcs: Arcs) -> Tensor:
        """alpha [B, n, T]; differentiable."""

    def best_paths(self, arcs: Arcs) -> Tensor:
        """Tags [B, n]; no gradient."""


KERNELS: dict[str, Kernel] = {"naive": naive, "torch": vectorized}


def get(backend: str) -> Kernel:
    """The kernel called `backend`; "auto" is the fastest that is available."""
    name = "torch" if backend == "auto" else backend
    if name not in KERNELS:
        raise ValueError(f"backend must be 'auto' or one of {sorted(KERNELS)}, got {backend!r}")
    return KERNELS[name]
