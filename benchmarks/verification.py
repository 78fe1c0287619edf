"""Compare the result of each system with our float64 result before the system is timed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import bcrf

from .cases import Problem
from .systems.base import System, brief
from .systems.ours import reference_loss

__all__ = ["Verifier"]

LOSS = 1e-3
"""A loss passes if its relative error is at most this."""

GRADIENT = 1e-2
"""A gradient passes if its absolute error is at most this. Each derivative is a probability minus 0
or 1. Loops in float32 have errors of a few thousandths at n = 2048; wrong gradients have larger
errors."""

SCORE = 1e-5
"""Relative differences of two scores up to this count as float32 rounding."""


class Verifier:
    """Comparison of results with the right answers to one problem.

    Args:
        problem: the problem; its right answers are computed when they are first needed.
        task: "loss", "peaked" or "normal".
    """

    def __init__(self, problem: Problem, task: str) -> None:
        self.problem = problem
        self.task = task
        self._losses: dict[tuple[str, bool], tuple[Tensor, Tensor]] = {}
        self._best: dict[bool, Tensor] = {}

    def _chain(self, masked: bool) -> bcrf.LinearChain:
        """Return the chain in float64, for systems with or without the mask."""
        problem = self.problem.double()
        return problem.chain(lengths=problem.lengths if masked else None)

    def _best_scores(self, masked: bool) -> Tensor:
        """Return the scores [B] of the best sequences."""
        if masked not in self._best:
            self._best[masked] = bcrf.viterbi(self._chain(masked), "torch")[0]
        return self._best[masked]

    def check(self, system: System, call: Callable[[], Any]) -> dict[str, Any]:
        """Return fields for the log: an `error`, or the accuracy of the result.

        The accuracy of a decoder is `optimal`, the share of sentences whose best sequence it found.
        """
        try:
            result = call()
            if system.role == "floor":
                return {}
            return self._loss(system, result) if self.task == "loss" else self._tags(system, result)
        except Exception as error:
            return {"error": brief(error)}

    def _loss(self, system: System, result: tuple[Tensor, tuple[Tensor, ...]]) -> dict[str, Any]:
        key = (system.family, system.masked)
        if key not in self._losses:
            self._losses[key] = reference_loss(system.family, self.problem, system.masked)
        value, grad = self._losses[key]
        found, (by_unary, *_) = result[0].detach(), result[1]
        off = float((found.double() - value).abs() / value.abs().clamp(min=1.0))
        if not off <= LOSS:
            return {"error": f"wrong loss: {float(found):.6g}, should be {float(value):.6g}"}
        gap = float((by_unary.double() - grad).abs().max())
        if not gap <= GRADIENT:
            return {"error": f"wrong gradient: off by {gap:.2g}"}
        return {"loss_error": off, "gradient_error": gap}

    def _tags(self, system: System, result: Any) -> dict[str, Any]:
        tags = result if isinstance(result, Tensor) else _padded(result, self.problem.sizes[1])
        tags = tags.to(self.problem.device)
        score = self._chain(system.masked).score(tags)
        best = self._best_scores(system.masked)
        slack = SCORE * best.abs().clamp(min=1.0)
        share = float((score >= best - slack).double().mean())
        if system.exact and share < 1:
            return {"error": f"wrong tags: {share:.0%} of the sentences have a best sequence"}
        return {"optimal": share}


def _padded(sentences: list[list[int]], length: int) -> Tensor:
    """Return the tags of sentences of different lengths as [B, n], padded with tag 0."""
    return torch.tensor([[*tags, *[0] * (length - len(tags))] for tags in sentences])
