"""Interchangeable implementations of the hot functions, selected by name.

The backend "naive" (module `reference`) follows the paper. "torch" (module `pytorch`) is vectorised
and runs on any device. "native" (module `native`) is compiled for the CPU; a graph of torch.compile
calls the same kernels through the operators of `custom_ops`. "auto" selects "native" where
possible, else "torch".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

import torch
from torch import Tensor

from ..compat.private_torch import may_be_exporting, must_stay_in_torch
from . import native, pytorch, reference
from .folded_chain import FoldedChain

__all__ = ["Backend", "BackendModule", "backends", "check_backend", "select_backend"]

Backend = Literal["native", "custom_op", "torch", "naive"]
"""The implementation that runs a call: compiled kernels, the operators that call them in a graph,
vectorised torch code, or the reference code."""


class BackendModule(Protocol):
    """The functions of a kernel module; the docstrings of `reference` define what they compute."""

    def project(
        self,
        folded: FoldedChain,
        lam: Tensor,
        omegas: Sequence[float],
        first: int,
        tolerance: float | None,
    ) -> Tensor:
        """Return lam [B, n, T] after the projections; without gradient."""

    def backward_messages(self, folded: FoldedChain) -> tuple[Tensor, Tensor]:
        """Return beta [B, n, T] and a log scale [B]; differentiable."""

    def forward_messages(self, folded: FoldedChain) -> Tensor:
        """Return alpha [B, n, T]; differentiable."""

    def best_paths(self, folded: FoldedChain) -> Tensor:
        """Return the tags [B, n] of a best path; without gradient."""


BACKEND_MODULES: dict[Backend, BackendModule] = {
    "naive": reference,
    "torch": pytorch,
    "native": native,
    "custom_op": pytorch,  # the operators only solve whole chains
}


def backends() -> dict[str, str | None]:
    """Return a dict from the name of each backend to None, or to the reason why it is unavailable.

    Example:
        >>> import bcrf
        >>> sorted(bcrf.backends())
        ['naive', 'native', 'torch']
        >>> bcrf.backends()["torch"] is None
        True
    """
    return {"naive": None, "torch": None, "native": native.UNAVAILABLE}


def check_backend(backend: str) -> None:
    """Raise unless `backend` is "auto" or the name of an available backend."""
    if backend == "auto":
        return
    known = backends()
    if backend not in known:
        raise ValueError(f"backend must be 'auto' or one of {sorted(known)}, got {backend!r}")
    if known[backend] is not None:
        raise RuntimeError(f"backend {backend!r} is not available: {known[backend]}")


def select_backend(backend: str, scores: Tensor) -> Backend:
    """Return the implementation for a call with the option `backend` on these scores.

    Compiled kernels run on plain CPU tensors in eager mode. Exported programs use torch operations
    only. So do calls under a tracer, a function transform or a dispatch mode.
    """
    if backend == "naive":
        return "naive"
    if backend == "torch":
        return "torch"
    if native.UNAVAILABLE is not None:
        return "torch"
    if not scores.is_cpu:
        if backend == "native":
            raise ValueError(f"backend 'native' is for the CPU, the scores are on {scores.device}")
        return "torch"
    if torch.compiler.is_compiling():
        return "torch" if may_be_exporting() else "custom_op"
    if type(scores) not in _PLAIN_TENSORS or must_stay_in_torch():
        return "torch"
    return "native"


_PLAIN_TENSORS = (Tensor, torch.nn.Parameter)
