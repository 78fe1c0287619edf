"""Is it right? Every system is checked against ours, in float64, before it is timed."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

import bcrf

from .cases import Problem
from .systems.base import System, brief
from .systems.ours import reference_loss

__all__ = ["Judge"]

LOSS = 1e-3
"""Relative error of a loss that passes."""

GRADIENT = 1e-2
"""Absolute error of a derivative (a probability less 0 or 1) that passes. Loops in float32 are off
by a few thousandths at n = 2048; what is wrong is off by more."""

SCORE = 1e-5
"""Relative difference of scores that rounding in float32 explains."""


class Judge:
    """Knows the right answers to one problem."""

    def __init__(self, problem: Problem, task: str) -> None:
        self.problem = problem
        self.task = task
        self._losses: dict[str, tuple[Tensor, Tensor]] = {}

    @cached_property
    def _best(self) -> Tensor:
        """[B]: score of the best sequences."""
        return bcrf.viterbi(self.problem.double().chain(), "torch")[0]

    def verdict(self, system: System, call: Callable[[], Any]) -> dict[str, Any]:
        """Facts for the log: an `error`, or how exact it was (for decoders, the share of
        sentences whose best sequence it found)."""
        try:
            result = call()
            if system.role == "floor":
                return {}
            return self._loss(system, result) if self.task == "loss" else self._tags(system, result)
        except Exception as error:
            return {"error": brief(error)}

    def _loss(self, system: System, result: tuple[Tensor, tuple[Tensor, ...]]) -> dict[str, Any]:
        if system.family not in self._losses:
            self._losses[system.family] = reference_loss(system.family, self.problem)
        value, grad = self._losses[system.family]
        found, (by_unary, *_) = result[0].detach(), result[1]
        off = float((found.double() - value).abs() / value.abs().clamp(min=1.0))
        if not off <= LOSS:
            return {"error": f"wrong loss: {float(found):.6g}, should be {float(value):.6g}"}
        gap = float((by_unary.double() - grad).abs().max())
        if not gap <= GRADIENT:
            return {"error": f"wrong gradient: off by {gap:.2g}"}
        return {"loss_error": off, "gradient_error": gap}

    def _tags(self, system: System, result: Any) -> dict[str, Any]:
        tags = result if isinstance(result, Tensor) else torch.tensor(result)
        score = self.problem.double().chain().score(tags)
        slack = SCORE * self._best.abs().clamp(min=1.0)
        share = float((score >= self._best - slack).double().mean())
        if system.exact and share < 1:
            return {"error": f"wrong tags: {share:.0%} of the sentences have a best sequence"}
        return {"optimal": share}
