"""First derivatives that can be derived again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["differentiable_slopes"]


def differentiable_slopes(
    function: Callable[..., Tensor], inputs: Sequence[Any], needed: Sequence[bool], grad: Tensor
) -> list[Tensor | None]:
    """Derivatives of `function(*inputs)`, weighted by `grad`, with a graph of their own: for the
    backward pass of a function that computes its derivatives without one. None where not needed."""
    # Fresh views: derivatives by them are derivatives by what was given, even if one input was
    # made from another.
    views = [None if x is None else x.view_as(x) for x in inputs]
    value = function(*views)
    wanted: list[Any] = [x for x, is_needed in zip(views, needed, strict=True) if is_needed]
    slopes = torch.autograd.grad(
        value, wanted, grad.to(value.dtype), create_graph=True, materialize_grads=True
    )
    found = iter(slopes)
    return [next(found) if is_needed else None for is_needed in needed]
