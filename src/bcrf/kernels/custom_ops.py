"""The compiled kernels as torch operators (`torch.ops.bcrf`), for graphs of torch.compile.

In eager mode the library calls the kernels directly, which is faster. If a sentence is invalid, an
eager call runs the torch code, which finds the reason. An operator cannot do that: it raises an
error that names no sentence.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from . import native
from .results import ProjectionSettings, ValueAndGradient

__all__ = ["bregman", "bregman_result", "certified", "crf", "most_probable", "viterbi"]

T = TypeVar("T")


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
    unary: Tensor, pair: Tensor, lengths: Tensor, tags: Tensor | None, gradients: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the value [B] (float64) of `native.crf` and its gradients, or empty tensors."""
    found = native.crf(unary, pair, lengths, tags, (gradients, gradients))
    return _filled(_answer(found))


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
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the value [B] (float64) of `native.bregman` and its gradients, or empty tensors."""
    settings = ProjectionSettings(omegas, first, tolerance, gauge_right, False)
    found = native.bregman(unary, pair, lengths, settings, tags, (gradients, gradients))
    return _filled(_answer(found))


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
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the fields of `native.bregman_result`."""
    settings = ProjectionSettings(omegas, first, tolerance, gauge_right, outgoing)
    return tuple(_answer(native.bregman_result(unary, pair, lengths, settings)))  # type: ignore[return-value]


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
) -> Tensor:
    """Return the tags [B, n] of `native.most_probable`."""
    settings = ProjectionSettings(omegas, first, tolerance, gauge_right, outgoing)
    return _answer(native.most_probable(unary, pair, lengths, settings, temperature))


@torch.library.custom_op("bcrf::viterbi", mutates_args=())
def viterbi(unary: Tensor, pair: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Return tags [B, n] and score [B] (float64) of `native.viterbi`."""
    return _answer(native.viterbi(unary, pair, lengths))


@torch.library.custom_op("bcrf::certified", mutates_args=())
def certified(
    unary: Tensor, pair: Tensor, lengths: Tensor, omegas: Sequence[float], temperature: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return tags [B, n], score [B] (float64) and certified [B] of `native.certified`."""
    return _answer(native.certified(unary, pair, lengths, omegas, temperature))


# Fake implementations: the compiler needs the shapes and dtypes of the results.


def _per_sentence(unary: Tensor) -> Tensor:
    return unary.new_empty(unary.shape[0], dtype=torch.float64)


def _tags(unary: Tensor) -> Tensor:
    return unary.new_empty(unary.shape[:2], dtype=torch.int64)


def _fake_gradients(unary: Tensor, pair: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    value = _per_sentence(unary)
    if not rest[-1]:
        return value, value.new_empty(0), value.new_empty(0)
    shape = (unary.shape[0], *pair.shape) if pair.dim() == 2 else pair.shape
    return value, unary.new_empty(unary.shape), unary.new_empty(shape)


crf.register_fake(_fake_gradients)
bregman.register_fake(_fake_gradients)
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


def _save_gradients(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.set_materialize_grads(False)
    ctx.shared = inputs[1].dim() == 2
    ctx.rest = (None,) * (len(inputs) - 2)
    ctx.gradients = inputs[-1]
    ctx.save_for_backward(*output[1:])


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


crf.register_autograd(_scale_gradients, setup_context=_save_gradients)
bregman.register_autograd(_scale_gradients, setup_context=_save_gradients)
