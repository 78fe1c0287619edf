"""Values of whole sentences from the compiled kernels, differentiable.

The kernels give a value and its slopes in one go. First derivatives are these slopes; for second
ones the value is written again in torch operations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

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
    arguments = (value, found[1:], run, again, chain, unary, transitions)
    result: Tensor = _Value.apply(*arguments)  # type: ignore[no-untyped-call]
    return result


class _Value(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        value: Tensor,
        slopes: Sequence[Tensor | None],
        run: Run,
        again: Again,
        chain: LinearChain,
        unary: Tensor,
        transitions: Tensor | None,
    ) -> Tensor:
        ctx.slopes, ctx.run, ctx.again, ctx.chain = slopes, run, again, chain
        ctx.save_for_backward(unary, transitions)
        return value

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        none = (None,) * 5
        if torch.is_grad_enabled():  # second derivatives are wanted
            return *none, *_differentiable_slopes(ctx, grads[0])
        # Their memory becomes the gradient: a second call computes them again.
        slopes, ctx.slopes = ctx.slopes, None
        by_unary, by_pair = ctx.run(ctx.needs_input_grad[5:])[1:] if slopes is None else slopes
        grad = grads[0]
        return *none, _scaled(by_unary, grad, False), _scaled(by_pair, grad, ctx.chain.shared)


def _scaled(slope: Tensor | None, grad: Tensor, shared: bool) -> Tensor | None:
    """slope [B, ...] times grad [B], in its own memory; of shared scores, added up over B."""
    if slope is None:
        return None
    uniform = grad.numel() > 0 and grad.stride(0) == 0  # the gradient of a sum or a mean
    if not uniform:
        grad = grad.to(slope.dtype)
        if shared:
            return matmul(grad.unsqueeze(0), slope.flatten(1)).view(slope.shape[1:])
        return slope.mul_(grad.view(-1, *(1,) * (slope.dim() - 1)))
    factor = float(grad[0])
    if shared:
        slope = slope.sum(0)
    return slope if factor == 1 else slope.mul_(factor)


def _differentiable_slopes(ctx: Any, grad: Tensor) -> Sequence[Tensor | None]:
    chain = ctx.chain
    # Fresh views: derivatives by them are derivatives by what was given.
    unary, transitions = (None if x is None else x.view_as(x) for x in ctx.saved_tensors)
    value = ctx.again(LinearChain._new(unary, transitions, chain.lengths, chain.dtype))
    needed = ctx.needs_input_grad[5:]
    wanted: list[Any] = [x for x, n in zip((unary, transitions), needed, strict=True) if n]
    slopes = torch.autograd.grad(
        value, wanted, grad.to(value.dtype), create_graph=True, materialize_grads=True
    )
    found = iter(slopes)
    return [next(found) if n else None for n in needed]
