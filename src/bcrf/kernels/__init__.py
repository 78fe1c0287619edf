"""Interchangeable implementations of the hot functions, chosen by name.

`naive` reads like the paper, `torch` is vectorised for any device, `native` is compiled for the
CPU. "auto" is native where that can be, else torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

import torch
from torch import Tensor

from ..arcs import Arcs
from ..checks import values_visible
from ..torch_internals import may_be_exporting, observed
from . import naive, native, vectorized

__all__ = ["Kernel", "backends", "check", "get", "observed", "route"]


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


KERNELS: dict[str, Kernel] = {"naive": naive, "torch": vectorized, "native": native}


def backends() -> dict[str, str | None]:
    """Name of each backend -> None if it is available here, else why not."""
    return {name: native.UNAVAILABLE if name == "native" else None for name in KERNELS}


def check(backend: str) -> None:
    """Raise unless `backend` is "auto" or the name of a kernel that is available."""
    if backend == "auto":
        return
    known = backends()
    if backend not in known:
        raise ValueError(f"backend must be 'auto' or one of {sorted(known)}, got {backend!r}")
    if known[backend] is not None:
        raise RuntimeError(f"backend {backend!r} is not available: {known[backend]}")


def route(backend: str, scores: Tensor) -> Literal["native", "op"] | None:
    """How `backend` solves whole sentences with these scores: by calling the compiled kernels, by
    an operator that stands for them in a compiled graph, or not at all.

    Exported programs are made of torch operations only, and so is what other devices run and what
    tracers, function transforms and dispatch modes have to see.
    """
    if native.UNAVAILABLE is not None or backend not in ("auto", "native"):
        return None
    if not scores.is_cpu:
        if backend == "native":
            raise ValueError(f"backend 'native' is for the CPU, the scores are on {scores.device}")
        return None
    if torch.compiler.is_compiling():
        return None if may_be_exporting() else "op"
    return "native" if values_visible(scores) and not observed() else None


def get(backend: str, scores: Tensor) -> Kernel:
    """The kernel called `backend`, for functions of arcs with these scores."""
    check(backend)
    if backend in ("auto", "native"):
        return native if route(backend, scores) == "native" else vectorized
    return KERNELS[backend]
