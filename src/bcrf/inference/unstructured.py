"""The unstructured model: a softmax per position; transitions are ignored."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..chain import LinearChain
from ..checks import check_sums
from ..lazy import cached_property
from ..logspace import log_softmax, logsumexp
from .factorized import FactorizedSolution, factor_scores

__all__ = ["Unstructured"]


@dataclass(frozen=True)
class Unstructured:
    """Every position on its own: r_i = softmax(unary[i]), value = sum_i log sum_t exp unary[i, t].

    Removed tags are absent; transitions, removed ones included, play no part.
    """

    def __call__(self, chain: LinearChain) -> FactorizedSolution:
        unary, _ = factor_scores(chain)
        return _UnstructuredSolution(chain, unary)


class _UnstructuredSolution(FactorizedSolution):
    def __init__(self, chain: LinearChain, unary: Tensor) -> None:
        self._sums = logsumexp(unary)
        super().__init__(chain, log_softmax(unary))

    @cached_property
    def value(self) -> Tensor:
        return check_sums("value", torch.where(self.chain.mask, self._sums, 0.0).sum(1))
