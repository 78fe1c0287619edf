"""Mean field: a factorised approximation of the CRF by parallel updates (Wang et al. 2020)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..chain import LinearChain
from ..checks import check_count, check_number, checks_enabled
from ..compat.caching import cached_property
from ..compat.graph_padding import pad_for_graph, remove_graph_padding
from ..compat.private_torch import is_legacy_batched, must_stay_in_torch
from ..diagnosis import check_sums
from ..numerics.double_backward import differentiable_gradients
from ..numerics.logspace import log_softmax, matmul
from .solution import Solver
from .unstructured import FactorizedSolution, factor_scores

__all__ = ["MeanField"]


@dataclass(frozen=True)
class MeanField(Solver):
    """Inference by mean field: k parallel updates of all positions,

        r_i <- softmax( unary[i] + E_{s ~ r_{i-1}} w[i-1, s, .] + E_{t ~ r_{i+1}} w[i, ., t] ),

    starting from the softmax of the unary scores. Gradients go through the updates. Tags that are
    removed from a position are absent. Removed transitions cannot be represented, because an
    expectation over -inf is meaningless. A removed transition has the score -`penalty` instead, and
    the most probable tags may use it.

    Args:
        iterations: number of updates, k.
        penalty: finite cost of a removed transition. With a large penalty, parallel updates
            oscillate between tags that exclude each other. A small penalty has little effect. The
            default was the best of nine values from 0 to 1000 on development data: a CRF for
            Chinese segmentation, decoded by 10 mean field updates.

    Example:
        >>> import torch, bcrf
        >>> chain = bcrf.LinearChain(torch.tensor([[[3.0, 0.0], [0.0, 0.1]]]), 2 * torch.eye(2))
        >>> bcrf.MeanField(iterations=5)(chain).best_tags()
        tensor([[0, 0]])
    """

    iterations: int = 10
    penalty: float = 2.0

    def __post_init__(self) -> None:
        check_count("iterations", self.iterations)
        check_number("penalty", self.penalty)
        if not 0 <= self.penalty < math.inf:
            raise ValueError(f"penalty must be finite and >= 0, got {self.penalty}")

    def __call__(self, chain: LinearChain) -> FactorizedSolution:
        problem = pad_for_graph(chain)
        unary, pair = factor_scores(problem)
        pair = torch.where(pair == -math.inf, -self.penalty, pair)
        log_r = _differentiable_updates(unary, pair, problem.mask[:, 1:], self.iterations)
        pair = pair if chain.shared else remove_graph_padding(pair)
        return MeanFieldSolution(
            chain, remove_graph_padding(log_r), remove_graph_padding(unary), pair
        )


class MeanFieldSolution(FactorizedSolution):
    """The solution of `MeanField`."""

    def __init__(self, chain: LinearChain, log_r: Tensor, unary: Tensor, pair: Tensor) -> None:
        super().__init__(chain, log_r)
        self._unary = unary
        self._pair = pair

    @cached_property
    def value(self) -> Tensor:
        """<r, w> + H(r), a lower bound of A(w), where w has -`penalty` at removed transitions."""
        r = self.tag_probabilities()
        present = self.log_r > -math.inf
        gain = torch.where(present, self._unary, 0.0) - torch.where(present, self.log_r, 0.0)
        pairs = (_expected(r[:, :-1], self._pair) * r[:, 1:]).sum(-1)
        pairs = torch.where(self.chain.mask[:, 1:], pairs, 0.0)
        return check_sums("value", (r * gain).sum((1, 2)) + pairs.sum(1))


def _differentiable_updates(unary: Tensor, pair: Tensor, edges: Tensor, iterations: int) -> Tensor:
    """Return log r [B, n, T] after the updates.

    Args:
        pair: finite, [T, T] or [B, n-1, T, T].
        edges: bool [B, n-1], edges within the lengths.
    """
    if torch.compiler.is_compiling() or must_stay_in_torch():  # autograd must see all operations
        return _run_updates(unary, pair, edges, iterations)[0]
    updated: Tensor = _Updates.apply(unary, pair, edges, iterations)  # type: ignore[no-untyped-call]
    return updated


def _run_updates(
    unary: Tensor, pair: Tensor, edges: Tensor, iterations: int
) -> tuple[Tensor, list[Tensor]]:
    """Return log r after the updates, and r before each of them."""
    log_r, before = log_softmax(unary), []
    for _ in range(iterations):
        before.append(torch.exp(log_r))
        log_r = log_softmax(unary + _messages(before[-1], pair, edges))
    return log_r, before


class _Updates(torch.autograd.Function):
    """`_run_updates` with a handwritten backward pass.

    Autograd would compute and add two outer products [B, n-1, T, T] for each update, which takes
    most of the time of a training step. The handwritten pass computes the gradient by the pairs at
    the end, with one matrix product per edge.
    """

    @staticmethod
    def forward(ctx: Any, unary: Tensor, pair: Tensor, edges: Tensor, iterations: int) -> Tensor:
        log_r, before = _run_updates(unary, pair, edges, iterations)
        ctx.save_for_backward(unary, pair, edges, log_r, *before)
        return log_r

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        unary, pair, edges, log_r, *before = ctx.saved_tensors
        grad, needed = grads[0], ctx.needs_input_grad[:2]
        if torch.is_grad_enabled():  # second derivatives are wanted
            found = differentiable_gradients(
                lambda u, p: _run_updates(u, p, edges, len(before))[0], (unary, pair), needed, grad
            )
            return *found, None, None

        # Gradients by the logits of each update, the last update first.
        by_logits = [grad - torch.exp(log_r) * grad.sum(-1, keepdim=True)]
        for r in reversed(before):
            by_r = _messages(by_logits[-1], pair, edges)  # `_messages` is its own adjoint
            by_logits.append(r * (by_r - (r * by_r).sum(-1, keepdim=True)))
        total = torch.stack(by_logits).sum(0)
        _check_gradients(total)
        by_unary = total if needed[0] else None
        by_pair = None
        if needed[1] and before:
            by_pair = _outer_products(before, by_logits[-2::-1], edges, pair.dim() == 2)
        return by_unary, by_pair, None, None


def _check_gradients(gradients: Tensor) -> None:
    """Raise if the gradients [B, n, T] overflowed.

    Every update multiplies them by the transition scores.
    """
    batched = is_legacy_batched(gradients)  # has no readable values
    if checks_enabled(gradients) and not batched:
        bad = ~gradients.isfinite()
        if bool(bad.any()):
            sentence, position, _ = bad.nonzero()[0].tolist()
            kind = str(gradients.dtype).removeprefix("torch.")
            raise ValueError(
                f"sentence {sentence}, position {position}: the gradient of mean field overflows "
                f"{kind}, because the transition scores are too large; divide the scores, or use "
                "a wider dtype"
            )


def _outer_products(
    rs: list[Tensor], by_logits: list[Tensor], edges: Tensor, shared: bool
) -> Tensor:
    """Return the gradient by the pairs, sum over updates k of r_k[i] g_k[i+1]' + g_k[i] r_k[i+1]'.

    Here r_k are the entries of `rs`, and g_k the entries of `by_logits`. The shape is
    [B, n-1, T, T]; if `shared`, it is [T, T], the sum over all edges.
    """
    r, g = torch.stack(rs, 2), torch.stack(by_logits, 2)  # [B, n, k, T]
    left = torch.cat([r[:, :-1], g[:, :-1]], 2)
    right = torch.cat([g[:, 1:], r[:, 1:]], 2)
    left = torch.where(edges[:, :, None, None], left, 0.0)
    if shared:
        tags = left.shape[-1]
        # Not `flatten`: batched gradients do not support it.
        return matmul(left.reshape(-1, tags).mT, right.reshape(-1, tags))
    return matmul(left.mT, right)


def _messages(r: Tensor, pair: Tensor, edges: Tensor) -> Tensor:
    """Return the expected scores of the transitions to and from each tag, [B, n, T].

    The expectation is over the tags of both neighbours under their distributions `r`.
    """
    forward, backward = _expected(r[:, :-1], pair), _expected(r[:, 1:], pair.mT)
    edge = edges.unsqueeze(-1)
    end = torch.zeros_like(r[:, :1])
    from_left = torch.cat([end, torch.where(edge, forward, 0.0)], 1)
    from_right = torch.cat([torch.where(edge, backward, 0.0), end], 1)
    return from_left + from_right


def _expected(r: Tensor, pair: Tensor) -> Tensor:
    """Return sum_s r[e, s] pair[e, s, t], [B, m, T], for pair [T, T] or [B, m, T, T]."""
    if pair.dim() == 2:
        return matmul(r, pair)
    return matmul(r.unsqueeze(-2), pair).squeeze(-2)
