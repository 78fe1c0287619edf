"""Values of whole sentences from the compiled kernels, differentiable.

The kernels give a value and its slopes in one go. First derivatives are these slopes; for second
ones the value is written again in torch operations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .. import kernels
from ..chain import LinearChain
from ..kernels.native import Slopes
from ..logspace import matmul

__all__ = ["fused_value"]

Run = Callable[[Sequence[bool]], "Slopes | None"]
Again = Callable[[LinearChain], Tensor]


def fused_value(
    chain: LinearChain, run: Run, again: Again, dtype: torch.dtype | None = None
) -> Tensor | None:
    """A value [B] of each sentence of `chain`; None if one of them has no answer.

    Args:
        run: calls a kernel; it is told which slopes, by unary and pair scores, are wanted.
        again: the same value in torch operations, of a chain with the same scores.
        dtype: of the value; None: that of the scores.
    """
    unary, transitions = chain.unary, chain.transitions
    differentiable = torch.is_grad_enabled() and chain.requires_grad
    by_pair = transitions is not None and transitions.requires_grad
    found = run((unary.requires_grad, by_pair) if differentiable else (False, False))
    if found is None:
        return None
    value = found.value.to(unary.dtype if dtype is None else dtype)
    if not differentiable:
        return value
    known = _Known(value, found, run, again, chain)
    result: Tensor = _Value.apply(known, unary, transitions)  # type: ignore[no-untyped-call]
    return result


@dataclass
class _Known:
    """What the kernel found, and how to find it again."""

    value: Tensor
    slopes: Slopes | None
    run: Run
    again: Again
    chain: LinearChain


class _Value(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, known: _Known, unary: Tensor, transitions: Tensor | None) -> Tensor:
        ctx.known = known
        ctx.save_for_backward(unary, transitions)
        return known.value

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        known, needed, grad = ctx.known, ctx.needs_input_grad[1:], grads[0]
        scores = ctx.saved_tensors  # an error if the graph is gone, or the scores have changed
        if torch.is_grad_enabled():  # second derivatives are wanted
            return None, *_differentiable_slopes(known, scores, needed, grad)
        # Their memory becomes the gradient: a second call computes them again.
        slopes, known.slopes = known.slopes, None
        if slopes is None:
            slopes = known.run(needed)
            assert slopes is not None
        return None, *_scaled(slopes, grad, known.chain.shared)


def _scaled(slopes: Slopes, grad: Tensor, shared: bool) -> tuple[Tensor | None, ...]:
    """The slopes, of B sentences, times grad [B]; in their own memory, if that is one number."""
    _, unary, pair, total = slopes
    if not kernels.observed() and grad.numel() and grad.stride(0) == 0:
        factor = float(grad[0])  # the gradient of a sum or a mean: one number
        found = (unary, pair if total is None else total)
        for slope in found:
            if slope is not None and factor != 1:
                slope.mul_(factor)
        return found
    return _times(unary, grad), _added_up(pair, grad) if shared else _times(pair, grad)


def _times(slope: Tensor | None, grad: Tensor) -> Tensor | None:
    if slope is None:
        return None
    return slope * grad.to(slope.dtype).view(-1, *(1,) * (slope.dim() - 1))


def _added_up(slope: Tensor | None, grad: Tensor) -> Tensor | None:
    if slope is None:
        return None
    return matmul(grad.to(slope.dtype).unsqueeze(0), slope.flatten(1)).view(slope.shape[1:])


def _differentiable_slopes(
    known: _Known, scores: Sequence[Any], needed: Sequence[bool], grad: Tensor
) -> Sequence[Tensor | None]:
    # Fresh views: derivatives by them are derivatives by what was given.
    unary, transitions = (None if x is None else x.view_as(x) for x in scores)
    chain = known.chain
    value = known.again(LinearChain._new(unary, transitions, chain.lengths, chain.dtype))
    wanted: list[Any] = [x for x, n in zip((unary, transitions), needed, strict=True) if n]
    slopes = torch.autograd.grad(
        value, wanted, grad.to(value.dtype), create_graph=True, materialize_grads=True
    )
    found = iter(slopes)
    return [next(found) if n else None for n in needed]
