"""Mean field: a factorised approximation of the CRF by parallel updates (Wang et al. 2020)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..chain import LinearChain
from ..checks import check_count, check_number, check_sums
from ..lazy import cached_property
from ..room import roomy, without_room
from .factorized import FactorizedSolution, factor_scores
from .mean_field_updates import expected, update

__all__ = ["MeanField"]


@dataclass(frozen=True)
class MeanField:
    """k parallel updates of all positions, from the softmax of the unary scores:

        r_i <- softmax( unary[i] + E_{s ~ r_{i-1}} w[i-1, s, .] + E_{t ~ r_{i+1}} w[i, ., t] )

    Gradients go through the updates. Tags removed from a position are absent. Removed transitions
    cannot be represented (an expectation over -inf is meaningless): they cost `penalty` instead,
    and the output may use them.

    Args:
        iterations: number of updates, k.
        penalty: finite cost of a removed transition. Large ones make parallel updates oscillate
            between the tags that they exclude; small ones let them be ignored. The default was
            the best of nine values up to 1000 for a CRF that segments Chinese (MF-10, on dev).
    """

    iterations: int = 10
    penalty: float = 2.0

    def __post_init__(self) -> None:
        check_count("iterations", self.iterations)
        check_number("penalty", self.penalty)
        if not 0 <= self.penalty < math.inf:
            raise ValueError(f"penalty must be finite and >= 0, got {self.penalty}")

    def __call__(self, chain: LinearChain) -> FactorizedSolution:
        problem = roomy(chain)
        unary, pair = factor_scores(problem)
        pair = torch.where(pair == -math.inf, -self.penalty, pair)
        log_r = update(unary, pair, problem.mask[:, 1:], self.iterations)
        pair = pair if chain.shared else without_room(pair)
        return _MeanFieldSolution(chain, without_room(log_r), without_room(unary), pair)


class _MeanFieldSolution(FactorizedSolution):
    def __init__(self, chain: LinearChain, log_r: Tensor, unary: Tensor, pair: Tensor) -> None:
        super().__init__(chain, log_r)
        self._unary = unary
        self._pair = pair

    @cached_property
    def value(self) -> Tensor:
        """<r, w> + H(r), the bound from below of A (with the penalties in place of -inf)."""
        r = self.tag_probabilities()
        present = self.log_r > -math.inf
        gain = torch.where(present, self._unary, 0.0) - torch.where(present, self.log_r, 0.0)
        pairs = (expected(r[:, :-1], self._pair) * r[:, 1:]).sum(-1)
        pairs = torch.where(self.chain.mask[:, 1:], pairs, 0.0)
        return check_sums("value", (r * gain).sum((1, 2)) + pairs.sum(1))
