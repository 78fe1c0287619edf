"""Interchangeable implementations of the hot functions, selected by name.

The backend "naive" (module `reference`) follows the paper. "torch" (module `pytorch`) is vectorised
and runs on any device. "native" (module `native`) is compiled for the CPU; a graph of torch.compile
calls the same kernels through the operators of `custom_ops`. "auto" selects "native" where
possible, else "torch".

Two backends are for devices on which the launch of a kernel takes longer than its arithmetic:
"few_launches" consists of torch operations, "triton" of compiled kernels. "torch" selects
"few_launches" on devices other than the CPU, and "auto" selects "triton" where possible; a graph of
torch.compile then calls the same kernels through the operators of `custom_ops`. triton is imported
at the first call that runs its kernels.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Literal, Protocol, cast

import torch
from torch import Tensor

from ..checks import values_readable
from ..compat.private_torch import in_function_transform, may_be_exporting, must_stay_in_torch
from . import native, pytorch, reference, triton_support
from .device_kernels import DeviceKernels
from .folded_chain import FoldedChain

__all__ = [
    "BACKEND_MODULES",
    "Backend",
    "BackendModule",
    "DeviceKernels",
    "backends",
    "check_backend",
    "device_kernels",
    "select_backend",
]

Backend = Literal["native", "custom_op", "triton", "few_launches", "torch", "naive"]
"""The implementation that runs a call: compiled kernels, the operators that call them in a graph,
kernels for GPUs, few torch operations, vectorised torch code, or the reference code."""


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
    # These only solve whole chains.
    "custom_op": pytorch,
    "triton": pytorch,
    "few_launches": pytorch,
}


def device_kernels(backend: Backend) -> DeviceKernels | None:
    """Return the module of "triton" or "few_launches", imported at first use; None for others."""
    if backend not in ("triton", "few_launches"):
        return None
    return cast(DeviceKernels, importlib.import_module(f".{backend}", __name__))


def backends() -> dict[str, str | None]:
    """Return a dict from the name of each backend to None, or to the reason why it is unavailable.

    Example:
        >>> import bcrf
        >>> sorted(bcrf.backends())
        ['few_launches', 'naive', 'native', 'torch', 'triton']
        >>> bcrf.backends()["torch"] is None
        True
    """
    return {name: _unavailable(name) for name in _NAMES}


def _unavailable(backend: str) -> str | None:
    """Return None, or the reason why the backend of this name is unavailable."""
    if backend == "native":
        return native.UNAVAILABLE
    return triton_unavailable() if backend == "triton" else None


def triton_unavailable() -> str | None:
    """Return None, or the reason why the backend "triton" cannot run; triton is not imported."""
    if triton_support.UNAVAILABLE is not None or triton_support.INTERPRETED:
        return triton_support.UNAVAILABLE
    return None if torch.cuda.is_available() else "torch finds no CUDA device"


def check_backend(backend: str) -> None:
    """Raise unless `backend` is "auto" or the name of an available backend."""
    if backend == "auto":
        return
    if backend not in _NAMES:
        raise ValueError(f"backend must be 'auto' or one of {sorted(_NAMES)}, got {backend!r}")
    reason = _unavailable(backend)
    if reason is not None:
        raise RuntimeError(f"backend {backend!r} is not available: {reason}")


def select_backend(backend: str, scores: Tensor, fixed_steps: bool = True) -> Backend:
    """Return the implementation for a call with the option `backend` on these scores [B, n, T].

    Compiled kernels run on plain tensors in eager mode. Exported programs use torch operations
    only. So do calls under a tracer, a function transform or a dispatch mode.

    Args:
        fixed_steps: whether the number of iterations is fixed, as kernels for devices require.
    """
    if backend == "naive":
        return "naive"
    if backend == "native" and not scores.is_cpu:
        raise ValueError(f"backend 'native' is for the CPU, the scores are on {scores.device}")
    if not scores.is_cpu or backend not in ("auto", "native"):
        return _select_for_device(backend, scores, fixed_steps)
    if native.UNAVAILABLE is not None:
        return _select_for_device("torch", scores, fixed_steps)
    if torch.compiler.is_compiling():
        return "torch" if may_be_exporting() else "custom_op"
    if type(scores) not in _PLAIN_TENSORS or must_stay_in_torch():
        return "torch"
    return "native"


def _select_for_device(backend: str, scores: Tensor, fixed_steps: bool) -> Backend:
    """Return the implementation where launches may take longer than arithmetic."""
    runs_triton = backend == "triton" or (backend == "auto" and _runs_triton(scores))
    if torch.compiler.is_compiling():
        if runs_triton and fixed_steps and not may_be_exporting():
            return "custom_op"
        return "torch"
    if in_function_transform() or not fixed_steps:
        return "torch"
    if runs_triton:
        if type(scores) not in _PLAIN_TENSORS or must_stay_in_torch():
            return "torch"
        reason = triton_support.refusal(scores)
        if reason is not None:
            raise ValueError(reason)
        return "triton"
    few = backend == "few_launches" or not values_readable(scores)
    return "few_launches" if few else "torch"


def _runs_triton(scores: Tensor) -> bool:
    """Whether "auto" selects the Triton kernels."""
    return (
        scores.device.type == "cuda"
        and scores.shape[-1] <= triton_support.MOST_TAGS
        and triton_support.UNAVAILABLE is None
    )


_NAMES = ("naive", "torch", "few_launches", "native", "triton")
_PLAIN_TENSORS = (Tensor, torch.nn.Parameter)
