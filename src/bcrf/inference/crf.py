"""The linear-chain CRF: A(w) = log sum over paths, exactly, by forward-backward."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from .. import kernels
from ..arcs import Arcs, fold
from ..chain import LinearChain
from ..flow import edge_softmax
from ..kernels import vectorized
from ..lazy import cached_property
from ..logspace import clamp_rounding, log_softmax, logsumexp, softmax
from .solution import Solution

__all__ = ["CRFSolution", "ForwardBackward"]


@dataclass(frozen=True)
class ForwardBackward:
    """Exact inference in a linear-chain CRF.

    Args:
        parallel: an associative scan over T x T matrices, of depth log n and work n T^3, instead
            of the sequential recursion of depth n and work n T^2.
        backend: "auto", or the name of a kernel (for the sequential recursion).
    """

    parallel: bool = False
    backend: str = "auto"

    def __post_init__(self) -> None:
        kernels.get(self.backend)
        if self.parallel and self.backend not in ("auto", "torch"):
            raise ValueError(f"parallel=True has no backend {self.backend!r}, only 'torch'")

    def __call__(self, chain: LinearChain) -> CRFSolution:
        return CRFSolution(chain, fold(chain), self)


class CRFSolution(Solution):
    """A(w), and marginals of p(y) = exp(<w, y> - A(w)), exact and differentiable to any order.

    The sequence is read as a Markov chain from left to right: `beta` [B, n, T] sums over all ends
    of a sentence, so that p(y_0) and p(y_{e+1} | y_e) are softmaxes.
    """

    def __init__(self, chain: LinearChain, arcs: Arcs, solver: ForwardBackward) -> None:
        super().__init__(chain)
        self.arcs = arcs
        self.solver = solver
        if solver.parallel:
            self.beta, self._scale = vectorized.scan_backward_messages(arcs)
        else:
            self.beta, self._scale = kernels.get(solver.backend).backward_messages(arcs)

    @cached_property
    def alpha(self) -> Tensor:
        """Forward messages [B, n, T], up to a constant per position."""
        if self.solver.parallel:
            return vectorized.scan_forward_messages(self.arcs)
        return kernels.get(self.solver.backend).forward_messages(self.arcs)

    @cached_property
    def value(self) -> Tensor:
        return self._total.to(self.beta.dtype)

    @cached_property
    def _total(self) -> Tensor:
        """A(w) in the precision of the scale."""
        total = logsumexp(self.beta[:, :1]).sum(1) + self._scale
        return torch.where(self.arcs.lengths > 0, total, 0.0)

    def tag_probabilities(self) -> Tensor:
        return softmax(torch.where(self.arcs.live, self.alpha + self.beta, -math.inf))

    def edge_probabilities(self) -> Tensor:
        before = (self.arcs.left + self.alpha[:, :-1]).unsqueeze(-1)
        after = (self.arcs.right + self.beta[:, 1:]).unsqueeze(-2)
        return edge_softmax(self.arcs, before + self.arcs.pair.scores + after)

    def next_logits(self, tags: Tensor) -> Tensor:
        """Logits [B, m, T] of p(y_{e+1} | y_e = tags[e]), tags [B, m]; 0 beyond the length."""
        logits = self.arcs.pair.rows(tags) + self.arcs.right + self.beta[:, 1:]
        return torch.where(self.arcs.edge.unsqueeze(-1), logits, 0.0)

    def log_conditionals(self) -> tuple[Tensor, Tensor]:
        """log p(y_0) [B, 1, T] (n > 0) and log p(y_{e+1} = t | y_e = s) [B, m, T, T].

        -inf where a tag or arc is not live; beyond the length without meaning.
        """
        first = self.beta[:, :1]
        after = (self.arcs.right + self.beta[:, 1:]).unsqueeze(-2)
        return log_softmax(first), log_softmax(self.arcs.pair.scores + after)

    def surprisal(self, tags: Tensor) -> Tensor:
        """NLL = A(w) - <w, y> = -log p(y_0) - sum_e log p(y_{e+1} | y_e): no cancellation."""
        index = self.chain.tag_index(tags)
        logits = torch.cat([self.beta[:, :1], self.next_logits(index[:, :-1])], 1)
        terms = logsumexp(logits) - logits.gather(-1, index.unsqueeze(-1)).squeeze(-1)
        return torch.where(self.arcs.inside, terms, 0.0).sum(1)

    def partial_surprisal(self, allowed: Tensor) -> Tensor:
        """Marginal NLL, A(w) - A~(w): minus the log probability of the allowed sequences."""
        restricted = self.solver(self.chain.restrict(allowed))
        return clamp_rounding(self._total - restricted._total).to(self.beta.dtype)
