"""The unstructured model (a softmax per position), and solutions that factorise over positions."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..chain import LinearChain
from ..compat.caching import cached_result
from ..diagnosis import check_positions, check_scores, check_sums
from ..kernels.folded_chain import checked_scores
from ..numerics.logspace import clamp_rounding, log_softmax, logsumexp
from .solution import Solution, Solver

__all__ = ["FactorizedSolution", "Unstructured", "factor_scores"]


@dataclass(frozen=True)
class Unstructured(Solver):
    """Independent inference at each position: r_i = softmax(unary[i]).

    The value is sum_i log sum_t exp unary[i, t]. Removed tags are absent. All transitions are
    ignored, also removed ones.

    Example:
        >>> import torch, bcrf
        >>> chain = bcrf.LinearChain(torch.tensor([[[0.0, 0.0], [3.0, 0.0]]]))
        >>> bcrf.Unstructured()(chain).tag_marginals
        tensor([[[0.5000, 0.5000],
                 [0.9526, 0.0474]]])
    """

    def __call__(self, chain: LinearChain) -> FactorizedSolution:
        return UnstructuredSolution(chain, self, _unary_scores(chain))


class FactorizedSolution(Solution):
    """The distribution r(y) = prod_i r_i(y_i).

    `log_r` [B, n, T] holds the normalised log r_i, -inf at removed tags.
    """

    def __init__(self, chain: LinearChain, solver: Solver, log_r: Tensor) -> None:
        super().__init__(chain, solver)
        self.log_r = log_r

    def tag_probabilities(self) -> Tensor:
        return torch.where(self.chain.mask.unsqueeze(-1), torch.exp(self.log_r), 0.0)

    def edge_probabilities(self) -> Tensor:
        r = self.tag_probabilities()
        return r[:, :-1].unsqueeze(-1) * r[:, 1:].unsqueeze(-2)

    def best_tags(self) -> Tensor:
        return self.chain.pad(self.log_r.argmax(-1))

    def loss(self, tags: Tensor) -> Tensor:
        """Return the cross-entropy sum_i -log r_i(y_i)."""
        index = self.chain.tag_index(tags)
        terms = -self.log_r.gather(-1, index.unsqueeze(-1)).squeeze(-1)
        return torch.where(self.chain.mask, terms, 0.0).sum(1)

    def partial_loss(self, allowed: Tensor) -> Tensor:
        """Return sum_i -log sum over allowed t of r_i(t)."""
        log_r = torch.where(allowed | ~self.chain.mask.unsqueeze(-1), self.log_r, -math.inf)
        terms = clamp_rounding(-logsumexp(log_r))
        return torch.where(self.chain.mask, terms, 0.0).sum(1)


class UnstructuredSolution(FactorizedSolution):
    """The solution of `Unstructured`."""

    def __init__(self, chain: LinearChain, solver: Unstructured, unary: Tensor) -> None:
        super().__init__(chain, solver, log_softmax(unary))
        self._unary = unary

    @cached_result
    def value(self) -> Tensor:
        sums = logsumexp(self._unary)
        return check_sums("value", torch.where(self.chain.mask, sums, 0.0).sum(1))


def factor_scores(chain: LinearChain) -> tuple[Tensor, Tensor]:
    """Return unary and transition scores; raise for bad scores and positions without a tag."""
    unary, transitions = checked_scores(chain)
    check_positions(unary)
    return unary, transitions


def _unary_scores(chain: LinearChain) -> Tensor:
    """Return the unary scores of `factor_scores`, without computing the transition scores."""
    check_scores(chain)
    unary = torch.where(chain.mask.unsqueeze(-1), chain.unary, 0.0)
    check_positions(unary)
    return unary
