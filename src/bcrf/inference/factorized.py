"""Solutions that treat positions as independent: mean field and unstructured."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..arcs import checked_scores
from ..chain import LinearChain
from ..checks import checks_enabled
from ..logspace import clamp_rounding, logsumexp
from .solution import Solution

__all__ = ["FactorizedSolution", "factor_scores"]


class FactorizedSolution(Solution):
    """r(y) = prod_i r_i(y_i), given by normalised `log_r` [B, n, T] (-inf at removed tags)."""

    def __init__(self, chain: LinearChain, log_r: Tensor) -> None:
        super().__init__(chain)
        self.log_r = log_r

    def tag_probabilities(self) -> Tensor:
        return torch.where(self.chain.mask.unsqueeze(-1), torch.exp(self.log_r), 0.0)

    def edge_probabilities(self) -> Tensor:
        r = self.tag_probabilities()
        return r[:, :-1].unsqueeze(-1) * r[:, 1:].unsqueeze(-2)

    def best_tags(self) -> Tensor:
        return self.chain.pad(self.log_r.argmax(-1))

    def surprisal(self, tags: Tensor) -> Tensor:
        """Cross-entropy sum_i -log r_i(y_i)."""
        index = self.chain.tag_index(tags)
        terms = -self.log_r.gather(-1, index.unsqueeze(-1)).squeeze(-1)
        return torch.where(self.chain.mask, terms, 0.0).sum(1)

    def partial_surprisal(self, allowed: Tensor) -> Tensor:
        """sum_i -log sum over allowed t of r_i(t)."""
        log_r = torch.where(allowed | ~self.chain.mask.unsqueeze(-1), self.log_r, -math.inf)
        terms = clamp_rounding(-logsumexp(log_r))
        return torch.where(self.chain.mask, terms, 0.0).sum(1)


def factor_scores(chain: LinearChain) -> tuple[Tensor, Tensor]:
    """Unary and transition scores; NaN and positions without a tag are errors."""
    unary, transitions = checked_scores(chain)
    if checks_enabled(unary):
        empty = (unary == -math.inf).all(-1)
        if bool(empty.any()):
            sentence, position = empty.nonzero()[0].tolist()
            raise ValueError(
                f"sentence {sentence} has no path left: every tag of position {position} is "
                "removed (-inf)"
            )
    return unary, transitions
