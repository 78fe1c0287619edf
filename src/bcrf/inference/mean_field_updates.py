"""The parallel updates of mean field, and their derivatives."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import kernels
from ..checks import checks_enabled
from ..logspace import log_softmax, matmul
from ..torch_internals import is_legacy_batched
from .again import differentiable_slopes

__all__ = ["expected", "update"]


def update(unary: Tensor, pair: Tensor, edges: Tensor, iterations: int) -> Tensor:
    """log r [B, n, T] after so many updates, from the softmax of `unary` [B, n, T].

    Args:
        pair: finite, [T, T] or [B, n-1, T, T].
        edges: bool [B, n-1]: where both ends are in the sentence.
    """
    if torch.compiler.is_compiling() or kernels.observed():  # they see through plain operations
        return _updated(unary, pair, edges, iterations)[0]
    updated: Tensor = _Updates.apply(unary, pair, edges, iterations)  # type: ignore[no-untyped-call]
    return updated


def _updated(
    unary: Tensor, pair: Tensor, edges: Tensor, iterations: int
) -> tuple[Tensor, list[Tensor]]:
    """log r after the updates, and r before each of them."""
    log_r, before = log_softmax(unary), []
    for _ in range(iterations):
        before.append(torch.exp(log_r))
        log_r = log_softmax(unary + _messages(before[-1], pair, edges))
    return log_r, before


class _Updates(torch.autograd.Function):
    """`_updated`, whose gradient by the pairs is one matrix product per edge at the end.

    Autograd would write and add up two outer products [B, n-1, T, T] for each update: most of the
    time of a training step.
    """

    @staticmethod
    def forward(ctx: Any, unary: Tensor, pair: Tensor, edges: Tensor, iterations: int) -> Tensor:
        log_r, before = _updated(unary, pair, edges, iterations)
        ctx.save_for_backward(unary, pair, edges, log_r, *before)
        return log_r

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        unary, pair, edges, log_r, *before = ctx.saved_tensors
        grad, needed = grads[0], ctx.needs_input_grad[:2]
        if torch.is_grad_enabled():  # second derivatives are wanted
            found = differentiable_slopes(
                lambda u, p: _updated(u, p, edges, len(before))[0], (unary, pair), needed, grad
            )
            return *found, None, None

        # Of the logits of each update, last first.
        by_logits = [grad - torch.exp(log_r) * grad.sum(-1, keepdim=True)]
        for r in reversed(before):
            by_r = _messages(by_logits[-1], pair, edges)  # messages are their own adjoint
            by_logits.append(r * (by_r - (r * by_r).sum(-1, keepdim=True)))
        total = torch.stack(by_logits).sum(0)
        _check_slopes(total)
        by_unary = total if needed[0] else None
        by_pair = None
        if needed[1] and before:
            by_pair = _outer_products(before, by_logits[-2::-1], edges, pair.dim() == 2)
        return by_unary, by_pair, None, None


def _check_slopes(slopes: Tensor) -> None:
    """Raise if the derivatives [B, n, T] overflow: every update multiplies by the transitions."""
    batched = is_legacy_batched(slopes)  # has no values to look at
    if checks_enabled(slopes) and not batched:
        bad = ~slopes.isfinite()
        if bool(bad.any()):
            sentence, position, _ = bad.nonzero()[0].tolist()
            kind = str(slopes.dtype).removeprefix("torch.")
            raise ValueError(
                f"sentence {sentence}, position {position}: the gradient of mean field overflows "
                f"{kind}, because the transition scores are too large; divide the scores, or use "
                "a wider dtype"
            )


def _outer_products(
    rs: list[Tensor], by_logits: list[Tensor], edges: Tensor, shared: bool
) -> Tensor:
    """sum over updates k of r_k[i] g_k[i+1]' + g_k[i] r_k[i+1]' at the edges, as one product:
    [B, n-1, T, T], or [T, T] if it is the sum over all edges that is wanted."""
    r, g = torch.stack(rs, 2), torch.stack(by_logits, 2)  # [B, n, k, T]
    left = torch.cat([r[:, :-1], g[:, :-1]], 2)
    right = torch.cat([g[:, 1:], r[:, 1:]], 2)
    left = torch.where(edges[:, :, None, None], left, 0.0)
    if shared:
        tags = left.shape[-1]
        # `reshape`, because batches of gradients cannot be flattened.
        return matmul(left.reshape(-1, tags).mT, right.reshape(-1, tags))
    return matmul(left.mT, right)


def _messages(r: Tensor, pair: Tensor, edges: Tensor) -> Tensor:
    """Expected transition scores of each tag, [B, n, T], under its neighbours' r."""
    forward, backward = expected(r[:, :-1], pair), expected(r[:, 1:], pair.mT)
    edge = edges.unsqueeze(-1)
    end = torch.zeros_like(r[:, :1])
    from_left = torch.cat([end, torch.where(edge, forward, 0.0)], 1)
    from_right = torch.cat([torch.where(edge, backward, 0.0), end], 1)
    return from_left + from_right


def expected(r: Tensor, pair: Tensor) -> Tensor:
    """sum_s r[e, s] pair[(e,) s, t]: [B, m, T]."""
    if pair.dim() == 2:
        return matmul(r, pair)
    return matmul(r.unsqueeze(-2), pair).squeeze(-2)
