"""The compiled kernels as torch operators (`torch.ops.bcrf`), for graphs of torch.compile.

In eager mode the library calls the kernels directly, which is faster. If a sentence is invalid, an
eager call on the CPU runs the torch code, which finds the reason. An operator cannot do that: it
raises an error that names no sentence. The Triton kernels check nothing.

Each operator has an argument `backend`, the option of `select_backend`, which says which kernels
run: "triton", or "auto" for scores on a GPU, the Triton kernels; otherwise the native ones.
`finite` says whether all scores within the lengths are known to be finite; the native kernels look
for themselves.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from ..chain import LinearChain
from . import native
from .device_kernels import DeviceKernels
from .results import ProjectionSettings, ValueAndGradient

__all__ = ["bregman", "bregman_result", "certified", "crf", "most_probable", "viterbi"]

T = TypeVar("T")


def _triton_kernels(backend: str, unary: Tensor) -> DeviceKernels | None:
    """Return the Triton kernels, or None if the native kernels serve `unary`."""
    if backend == "native" or (backend == "auto" and unary.is_cpu):
        return None
    return cast(DeviceKernels, importlib.import_module(".triton", __package__))


def _chain(unary: Tensor, pair: Tensor, lengths: Tensor, finite: bool = False) -> LinearChain:
    """Return the chain of scores to which all rules have been applied."""
    return LinearChain._new(unary, pair, lengths, unary.dtype, None, finite)


def _answer(found: T | None) -> T:
    if found is None:
        raise ValueError(
            "a sentence is invalid: a score is NaN or +inf, a length or tag is out of range, a "
            "gold tag or transition is removed (-inf), no path is left, or the scores are so large "
            "that their sum overflows; "
            "the same call in eager mode says where"
        )
    return found


def _filled(found: ValueAndGradient) -> tuple[Tensor, Tensor, Tensor]:
    none = found.value.new_empty(0)
    return (
        found.value,
        none.clone() if found.by_unary is None else found.by_unary,
        none.clone() if found.by_pair is None else found.by_pair,
    )


@torch.library.custom_op("bcrf::crf", mutates_args=())
def crf(
    unary: Tensor,
    pair: Tensor,
    lengths: Tensor,
    tags: Tensor | None,
    gradients: bool,
    backend: str = "native",
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the value [B] (float64) of `native.crf` and its gradients, or empty tensors."""
    wanted = (gradients, gradients)
    kernels = _triton_kernels(backend, unary)
    if kernels is not None:
        return _filled(kernels.crf(_chain(unary, pair, lengths), tags, wanted))
    return _filled(_answer(native.crf(unary, pair, lengths, tags, wanted)))


@torch.library.custom_op("bcrf::bregman", mutates_args=())
def bregman(
    unary: Tensor,
    pair: Tensor,
    lengths: Tensor,
    tags: Tensor | None,
    omegas: Sequence[float],
    first: int,
    tolerance: float | None,
    gauge_right: bool,
    gradients: bool,
    backend: str = "native",
    finite: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the value [B] (float64) of `native.bregman` and its gradients, or empty tensors."""
    settings = ProjectionSettings(omegas, first, tolerance, gauge_right, False)
    wanted = (gradients, gradients)
    kernels = _triton_kernels(backend, unary)
    if kernels is not None:
        chain = _chain(unary, pair, lengths, finite)
        return _filled(kernels.bregman(chain, settings, tags, wanted))
    return _filled(_answer(native.bregman(unary, pair, lengths, settings, tags, wanted)))


@torch.library.custom_op("bcrf::bregman_result", mutates_args=())
def bregman_result(
    unary: Tensor,
    pair: Tensor,
    lengths: Tensor,
    omegas: Sequence[float],
    first: int,
    tolerance: float | None,
    gauge_right: bool,
    outgoing: bool,
    backend: str = "native",
    finite: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the fields of `native.bregman_result`."""
    settings = ProjectionSettings(omegas, first, tolerance, gauge_right, outgoing)
    kernels = _triton_kernels(backend, unary)
    if kernels is not None:
        found = kernels.bregman_result(_chain(unary, pair, lengths, finite), settings)
        # The results of an operator may not be parts of other tensors.
        found = found._replace(residual=found.residual.clone(), lam=found.lam.clone())
    else:
        found = _answer(native.bregman_result(unary, pair, lengths, settings))
    return found.value, found.residual, found.lam, found.marginals


@torch.library.custom_op("bcrf::most_probable", mutates_args=())
def most_probable(
    unary: Tensor,
    pair: Tensor,
    lengths: Tensor,
    omegas: Sequence[float],
    first: int,
    tolerance: float | None,
    gauge_right: bool,
    outgoing: bool,
    temperature: float,
    backend: str = "native",
    finite: bool = False,
) -> Tensor:
    """Return the tags [B, n] of `native.most_probable`."""
    settings = ProjectionSettings(omegas, first, tolerance, gauge_right, outgoing)
    kernels = _triton_kernels(backend, unary)
    if kernels is not None:
        chain = _chain(unary, pair, lengths, finite)
        return kernels.most_probable(chain, settings, temperature)
    return _answer(native.most_probable(unary, pair, lengths, settings, temperature))


@torch.library.custom_op("bcrf::viterbi", mutates_args=())
def viterbi(
    unary: Tensor, pair: Tensor, lengths: Tensor, backend: str = "native"
) -> tuple[Tensor, Tensor]:
    """Return tags [B, n] and score [B] (float64) of `native.viterbi`."""
    kernels = _triton_kernels(backend, unary)
    if kernels is not None:
        return kernels.viterbi(_chain(unary, pair, lengths))
    return _answer(native.viterbi(unary, pair, lengths))


@torch.library.custom_op("bcrf::certified", mutates_args=())
def certified(
    unary: Tensor,
    pair: Tensor,
    lengths: Tensor,
    omegas: Sequence[float],
    temperature: float,
    backend: str = "native",
    finite: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return tags [B, n], score [B] (float64) and certified [B] of `native.certified`."""
    kernels = _triton_kernels(backend, unary)
    if kernels is not None:
        chain = _chain(unary, pair, lengths, finite)
        tags, proved = kernels.certified(chain, omegas, temperature)
        # We decode all sentences: to decode only the others, the host would have to wait.
        best, score = kernels.viterbi(chain)
        return torch.where(proved.unsqueeze(1), tags, best), score, proved
    return _answer(native.certified(unary, pair, lengths, omegas, temperature))


# Fake implementations: the compiler needs the shapes and dtypes of the results.


def _per_sentence(unary: Tensor) -> Tensor:
    return unary.new_empty(unary.shape[0], dtype=torch.float64)


def _tags(unary: Tensor) -> Tensor:
    return unary.new_empty(unary.shape[:2], dtype=torch.int64)


def _fake_gradients(unary: Tensor, pair: Tensor, gradients: bool) -> tuple[Tensor, Tensor, Tensor]:
    value = _per_sentence(unary)
    if not gradients:
        return value, value.new_empty(0), value.new_empty(0)
    shape = (unary.shape[0], *pair.shape) if pair.dim() == 2 else pair.shape
    return value, unary.new_empty(unary.shape), unary.new_empty(shape)


@crf.register_fake
def _fake_crf(
    unary: Tensor,
    pair: Tensor,
    lengths: Tensor,
    tags: Tensor | None,
    gradients: bool,
    backend: str = "native",
) -> tuple[Tensor, Tensor, Tensor]:
    return _fake_gradients(unary, pair, gradients)


@bregman.register_fake
def _fake_bregman(
    unary: Tensor,
    pair: Tensor,
    lengths: Tensor,
    tags: Tensor | None,
    omegas: Sequence[float],
    first: int,
    tolerance: float | None,
    gauge_right: bool,
    gradients: bool,
    backend: str = "native",
    finite: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    return _fake_gradients(unary, pair, gradients)


bregman_result.register_fake(
    lambda unary, *rest: (
        _per_sentence(unary),
        _per_sentence(unary),
        unary.new_empty(unary.shape),
        unary.new_empty(unary.shape),
    )
)
most_probable.register_fake(lambda unary, *rest: _tags(unary))
viterbi.register_fake(lambda unary, *rest: (_tags(unary), _per_sentence(unary)))
certified.register_fake(
    lambda unary, *rest: (
        _tags(unary),
        _per_sentence(unary),
        unary.new_empty(unary.shape[0], dtype=torch.bool),
    )
)


# Backward passes: the operators return the gradients with the value, and autograd scales them.


def _save_gradients(
    ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...], gradients: bool
) -> None:
    ctx.set_materialize_grads(False)
    ctx.shared = inputs[1].dim() == 2
    ctx.rest = (None,) * (len(inputs) - 2)
    ctx.gradients = gradients
    ctx.save_for_backward(*output[1:])


def _save_crf(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    _save_gradients(ctx, inputs, output, inputs[4])


def _save_bregman(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    _save_gradients(ctx, inputs, output, inputs[8])


def _scale_gradients(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
    grad, *second = grads
    if any(g is not None for g in second) or not ctx.gradients:
        raise RuntimeError(
            "torch.ops.bcrf has first derivatives only, of values computed with gradients=True"
        )
    if grad is None:
        return (None, None, *ctx.rest)
    by_unary, by_pair = ctx.saved_tensors
    grad = grad.to(by_unary.dtype)
    by_unary = by_unary * grad.view(-1, 1, 1)
    if ctx.shared:
        by_pair = (by_pair * grad.view(-1, 1, 1)).sum(0)
    else:
        by_pair = by_pair * grad.view(-1, 1, 1, 1)
    return (by_unary, by_pair, *ctx.rest)


crf.register_autograd(_scale_gradients, setup_context=_save_crf)
bregman.register_autograd(_scale_gradients, setup_context=_save_bregman)
