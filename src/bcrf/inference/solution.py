"""What every solver returns: value, marginals, and what losses and decoders need of them."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..chain import LinearChain
from ..lazy import cached_property

__all__ = ["Solution", "Solver"]


class Solution(ABC):
    """The answer of a solver to a chain. Everything is computed when it is first asked for.

    Values, losses and residuals are in float32 or better, marginals in the caller's dtype. A
    solution made under `no_grad` has no gradients, whenever it is read. The scores are not copied:
    do not change them in place before you are done with the solution.
    """

    def __init__(self, chain: LinearChain) -> None:
        self.chain = chain if torch.is_grad_enabled() else chain.detach()
        self._kept: dict[str, Any] = {}  # by `cached_property`, in a graph

    @property
    def requires_grad(self) -> bool:
        """Whether what is read here may have a gradient."""
        return self.chain.requires_grad

    @cached_property
    @abstractmethod
    def value(self) -> Tensor:
        """[B], differentiable: A(w), B(w), ... of the family; 0 for an empty sentence."""

    @abstractmethod
    def tag_probabilities(self) -> Tensor:
        """Tag marginals [B, n, T] in working precision; 0 beyond the length."""

    @abstractmethod
    def edge_probabilities(self) -> Tensor:
        """Edge marginals [B, m, T, T] in working precision; 0 beyond the length."""

    @abstractmethod
    def surprisal(self, tags: Tensor) -> Tensor:
        """[B]: the family's loss for the sequences `tags` [B, n], >= 0 in every dtype."""

    @abstractmethod
    def partial_surprisal(self, allowed: Tensor) -> Tensor:
        """[B]: the family's loss for the tag sets `allowed` (bool [B, n, T])."""

    @cached_property
    def tag_marginals(self) -> Tensor:
        """[B, n, T]; 0 beyond the length."""
        return self.tag_probabilities().to(self.chain.dtype)

    @cached_property
    def edge_marginals(self) -> Tensor:
        """[B, max(n-1, 0), T, T], axes from -> to; 0 beyond the length."""
        return self.edge_probabilities().to(self.chain.dtype)

    @cached_property
    def residual(self) -> Tensor:
        """[B]: max |in - out| of the flow that the edge marginals describe."""
        q = self.edge_probabilities().detach()
        gap = (q[:, :-1].sum(-2) - q[:, 1:].sum(-1)).abs() * self.chain.mask[:, 2:].unsqueeze(-1)
        return gap.flatten(1).amax(1) if gap.shape[1] else gap.new_zeros(gap.shape[0])

    def best_tags(self) -> Tensor:
        """[B, n]: the most probable tag of each position, -100 beyond the length."""
        return self.chain.pad(self.tag_probabilities().argmax(-1))

    def as_chain(self) -> LinearChain:
        """The Markov chain prod_e q_e / prod_i q_i of the marginals, as a CRF problem.

        Marginals do not fix a distribution over sequences; this one has the most entropy of those
        that share them. Its log-partition is 0, so `viterbi`, `k_best`, `sample`, `entropy` and
        `score` of it speak of true probabilities. The marginals should be consistent: use a
        converged solution.
        """
        q, p = self.edge_probabilities(), self.tag_probabilities()
        unary = torch.zeros_like(p)
        unary[:, :1] = _log(p[:, :1])
        rows = q.sum(-1, keepdim=True)
        return LinearChain(unary, _log(q) - _log(rows, at_zero=0.0), self.chain.lengths)


Solver = Callable[[LinearChain], Solution]


def _log(p: Tensor, at_zero: float = -math.inf) -> Tensor:
    """log p with gradient zero where p = 0."""
    zero = p == 0
    return torch.where(zero, at_zero, torch.log(torch.where(zero, 1.0, p)))
