"""Define the floors: the minimum time to read every arc, and the overhead of autograd."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..cases import Problem
from .base import Floor, System

__all__ = ["SYSTEMS"]


def _on_arcs(function: Callable[[Tensor], Tensor]) -> Callable[[Problem], Floor]:
    def prepare(problem: Problem) -> Floor:
        batch, length, tags = problem.sizes
        arcs = problem.transitions.expand(batch, length - 1, tags, tags).contiguous()
        return lambda: function(arcs)

    return prepare


def _floor(name: str, settings: str, function: Callable[[Tensor], Tensor]) -> System:
    prepare = _on_arcs(function)
    return System(
        name, "floor", settings, prepare, prepare, family="", exact=False, package="torch"
    )


class _Nothing(torch.autograd.Function):
    """A loss that computes nothing, neither forward nor backward."""

    @staticmethod
    def forward(ctx: Any, unary: Tensor, transitions: Tensor) -> Tensor:
        ctx.gradients = torch.empty_like(unary), torch.empty_like(transitions)
        return unary.new_zeros(len(unary))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        return ctx.gradients  # type: ignore[no-any-return]


def _empty_function(problem: Problem) -> Floor:
    leaves = problem.leaves()

    def call() -> Tensor:
        value = _Nothing.apply(*leaves)  # type: ignore[no-untyped-call]
        return torch.autograd.grad(value.sum(), leaves)[0]

    return call


SYSTEMS = (
    _floor("torch.exp", "torch.exp on the arc tensor [B, n-1, T, T]", torch.exp),
    _floor("copy", "a copy of the arc tensor", torch.clone),
    System(
        "empty function",
        "floor",
        "torch.autograd.Function that computes nothing: its call, sum and torch.autograd.grad",
        _empty_function,
        family="",
        exact=False,
        package="torch",
    ),
)
