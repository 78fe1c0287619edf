"""The linear-chain CRF: A(w) = log sum over paths, exactly, by forward-backward."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .. import kernels
from ..arcs import Arcs, fold
from ..chain import LinearChain
from ..checks import check_sums
from ..flow import edge_softmax
from ..kernels import native, ops, vectorized
from ..lazy import cached_property
from ..logspace import clamp_rounding, log_softmax, logsumexp, softmax
from ..room import roomy, with_room, without_room
from .fused import free_pairs, fused_value
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
        kernels.check(self.backend)
        if self.parallel and self.backend not in ("auto", "torch"):
            raise ValueError(f"parallel=True has no backend {self.backend!r}, only 'torch'")

    def __call__(self, chain: LinearChain) -> CRFSolution:
        return CRFSolution(chain, self)

    def fused_loss(self, chain: LinearChain, tags: Tensor) -> Tensor | None:
        """The loss of `tags` from a compiled kernel, [B]; None if there is none for this chain, or
        if something is wrong with it."""
        return self._fused(chain, tags, wide=False)

    def _fused(self, chain: LinearChain, tags: Tensor | None, wide: bool) -> Tensor | None:
        """A(w), or the loss of `tags`, [B]."""
        how = None if self.parallel else kernels.route(self.backend, chain.unary)
        if how == "native":
            return fused_value(self, chain, tags, wide)
        if how is None:
            return None
        slopes = torch.is_grad_enabled() and chain.requires_grad
        arrays = (chain.unary, chain.pair_scores, chain.lengths)
        value: Tensor = ops.crf(*arrays, tags, slopes)[0]
        return value if wide else value.to(chain.unary.dtype)

    def run(
        self, chain: LinearChain, tags: Tensor | None, wanted: Sequence[bool], wide: bool
    ) -> native.Slopes | None:
        pair, follow = free_pairs(chain)
        return native.crf(chain.unary, pair, chain.given_lengths, tags, wanted, False, wide, follow)

    def again(self, chain: LinearChain, tags: Tensor | None) -> Tensor:
        solution = ForwardBackward(backend="torch")(chain)
        return solution.value if tags is None else solution.surprisal(tags)


class CRFSolution(Solution):
    """A(w), and marginals of p(y) = exp(<w, y> - A(w)), exact and differentiable to any order.

    The sequence is read as a Markov chain from left to right: `beta` [B, n, T] sums over all ends
    of a sentence, so that p(y_0) and p(y_{e+1} | y_e) are softmaxes.
    """

    def __init__(self, chain: LinearChain, solver: ForwardBackward) -> None:
        super().__init__(chain)
        self.solver = solver
        self._fused_total = solver._fused(self.chain, None, wide=True)
        if self._fused_total is None:
            # Looks at the scores: what is wrong with them is said here.
            self.beta  # noqa: B018

    @cached_property
    def arcs(self) -> Arcs:
        """The folded chain; with room, and so the messages."""
        return fold(roomy(self.chain))

    @cached_property
    def _backward(self) -> tuple[Tensor, Tensor]:
        if self.solver.parallel:
            return vectorized.scan_backward_messages(self.arcs)
        return self._kernel.backward_messages(self.arcs)

    @property
    def _kernel(self) -> kernels.Kernel:
        return kernels.get(self.solver.backend, self.chain.unary)

    @property
    def beta(self) -> Tensor:
        return self._backward[0]

    @property
    def _native(self) -> bool:
        """Whether marginals come from a compiled kernel; their derivatives do not."""
        differentiable = torch.is_grad_enabled() and self.requires_grad
        how = None if self.solver.parallel else kernels.route(self.solver.backend, self.chain.unary)
        return not differentiable and how == "native"

    @cached_property
    def alpha(self) -> Tensor:
        """Forward messages [B, n, T], up to a constant per position."""
        if self.solver.parallel:
            return vectorized.scan_forward_messages(self.arcs)
        return self._kernel.forward_messages(self.arcs)

    @cached_property
    def value(self) -> Tensor:
        value = self._total.to(self.chain.unary.dtype)
        return value if self._fused_total is not None else check_sums("value", value)

    @cached_property
    def _total(self) -> Tensor:
        """A(w) in the precision of the scale."""
        if self._fused_total is not None:
            total = self._fused_total
            return total if torch.is_grad_enabled() else total.detach()
        beta, scale = self._backward
        total = logsumexp(beta[:, :1]).sum(1) + scale
        return torch.where(self.arcs.lengths > 0, total, 0.0)

    def tag_probabilities(self) -> Tensor:
        if self._native and (found := self._marginals((True, False))) and found.unary is not None:
            return found.unary
        p = softmax(torch.where(self.arcs.live, self.alpha + self.beta, -math.inf))
        return without_room(p)

    def edge_probabilities(self) -> Tensor:
        if self._native and (found := self._marginals((False, True))) and found.pair is not None:
            return found.pair
        before = (self.arcs.left + self.alpha[:, :-1]).unsqueeze(-1)
        after = (self.arcs.right + self.beta[:, 1:]).unsqueeze(-2)
        return without_room(edge_softmax(self.arcs, before + self.arcs.pair.scores + after))

    def _marginals(self, wanted: tuple[bool, bool]) -> native.Slopes | None:
        chain = self.chain
        arrays = (chain.unary, chain.pair_scores, chain.lengths)
        return native.crf(*arrays, None, wanted, every_edge=True)

    def next_logits(self, tags: Tensor) -> Tensor:
        """Logits [B, m, T] of p(y_{e+1} | y_e = tags[e]), tags [B, m]; 0 beyond the length.

        With room, both.
        """
        logits = self.arcs.pair.rows(tags) + self.arcs.right + self.beta[:, 1:]
        return torch.where(self.arcs.edge.unsqueeze(-1), logits, 0.0)

    def log_conditionals(self) -> tuple[Tensor, Tensor]:
        """log p(y_0) [B, 1, T] (n > 0) and log p(y_{e+1} = t | y_e = s) [B, m, T, T].

        -inf where a tag or arc is not live; beyond the length without meaning.
        """
        first = self.beta[:, :1]
        after = (self.arcs.right + self.beta[:, 1:]).unsqueeze(-2)
        return log_softmax(first), without_room(log_softmax(self.arcs.pair.scores + after))

    def surprisal(self, tags: Tensor) -> Tensor:
        """NLL = A(w) - <w, y> = -log p(y_0) - sum_e log p(y_{e+1} | y_e): no cancellation."""
        index = with_room(self.chain.tag_index(tags))
        logits = torch.cat([self.beta[:, :1], self.next_logits(index[:, :-1])], 1)
        terms = logsumexp(logits) - logits.gather(-1, index.unsqueeze(-1)).squeeze(-1)
        return torch.where(self.arcs.inside, terms, 0.0).sum(1)

    def partial_surprisal(self, allowed: Tensor) -> Tensor:
        """Marginal NLL, A(w) - A~(w): minus the log probability of the allowed sequences."""
        restricted = self.solver(self.chain.restrict(allowed))
        return clamp_rounding(self._total - restricted._total).to(self.chain.unary.dtype)
