"""Floors: the least that touching every arc costs."""

from __future__ import annotations

from collections.abc import Callable

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


SYSTEMS = (
    _floor("torch.exp", "torch.exp on the arc tensor [B, n-1, T, T]", torch.exp),
    _floor("copy", "a copy of the arc tensor", torch.clone),
)
