"""Differentiable gradients, for the double backward of handwritten backward passes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["differentiable_gradients"]


def differentiable_gradients(
    function: Callable[..., Tensor], inputs: Sequence[Any], needed: Sequence[bool], grad: Tensor
) -> list[Tensor | None]:
    """Return the gradients of `function(*inputs)`, weighted by `grad`, as part of a graph.

    A handwritten backward pass normally computes gradients without a graph. If second derivatives
    are wanted, it calls this function instead. The gradient of an input that is not `needed` is
    None.
    """
    # We differentiate by fresh views: one input may have been computed from another.
    views = [None if x is None else x.view_as(x) for x in inputs]
    value = function(*views)
    wanted: list[Any] = [x for x, is_needed in zip(views, needed, strict=True) if is_needed]
    gradients = iter(
        torch.autograd.grad(
            value, wanted, grad.to(value.dtype), create_graph=True, materialize_grads=True
        )
    )
    return [next(gradients) if is_needed else None for is_needed in needed]
