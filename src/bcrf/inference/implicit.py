"""Derivatives through the dual point lam, which depends on the scores.

First order: at a minimum of the dual D the derivative with respect to lam is zero, so lam can be
held constant (Danskin's theorem). Second order: at the minimum grad_lam D(lam, w) = 0, and the
implicit function theorem gives d lam / d w:

    H dlam = - d(grad_lam D)/dw dw,        H the Hessian of D in lam.

Both are exact at convergence. The memory does not depend on the number of iterations.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..compat.private_torch import count_derivatives, in_transform, requires_grad_outside
from ..kernels.dual import edge_log_sums, incoming_outgoing
from ..kernels.folded_chain import FoldedChain
from ..numerics.logspace import softmax

__all__ = ["dual_terms", "implicit_dual"]

_MAX_STEPS = 1000


def dual_terms(folded: FoldedChain, lam: Tensor) -> Tensor:
    """Return the terms [B, m] of D(lam), differentiable with respect to the scores.

    Their gradient is q(lam) (see `kernels.dual`): first derivatives hold lam constant, which is
    exact at convergence. Second derivatives take into account that lam depends on the scores.
    """
    if torch.compiler.is_compiling():  # graphs have first derivatives only
        return edge_log_sums(folded, lam)
    scores = (folded.left, folded.transitions.scores, folded.right)
    if in_transform():
        return _first_order_edges(folded, lam, scores)
    edges: Tensor = _DualEdges.apply(folded.detach(), lam, *scores)  # type: ignore[no-untyped-call]
    return edges


def implicit_dual(folded: FoldedChain, lam: Tensor) -> Tensor:
    """Return `lam` as a function of the scores: its derivative is that of the minimiser of D."""
    scores = (folded.left, folded.transitions.scores, folded.right)
    if in_transform():
        if count_derivatives() or requires_grad_outside(scores):
            raise RuntimeError(
                "torch.func cannot differentiate Bregman marginals; use torch.autograd.grad"
            )
        return lam
    dual: Tensor = _ImplicitDual.apply(folded.detach(), lam, *scores)  # type: ignore[no-untyped-call]
    return dual


def _first_order_edges(folded: FoldedChain, lam: Tensor, scores: Sequence[Tensor]) -> Tensor:
    """Return `dual_terms` under `torch.func`; raise an error for second derivatives.

    Second derivatives would be wrong. They need the conjugate gradients of `implicit_dual`, which
    read values, and `torch.func` does not allow this.
    """
    outside = requires_grad_outside(scores)
    if count_derivatives() + outside > 1:
        raise RuntimeError(_NO_SECOND_ORDER)
    edges = edge_log_sums(folded, lam)
    if not outside:
        return edges
    guarded: Tensor = _FirstOrder.apply(edges)  # type: ignore[no-untyped-call]
    return guarded


_NO_SECOND_ORDER = (
    "torch.func cannot take second derivatives of a Bregman value; use torch.autograd.grad with "
    "create_graph=True, outside torch.func"
)


class _FirstOrder(torch.autograd.Function):
    """The identity function; its second derivative raises an error."""

    generate_vmap_rule = True

    @staticmethod
    def forward(edges: Tensor) -> Tensor:
        return edges.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            raise RuntimeError(_NO_SECOND_ORDER)
        return grads[0]


class _DualEdges(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, folded: FoldedChain, lam: Tensor, left: Tensor, scores: Tensor, right: Tensor
    ) -> Tensor:
        ctx.folded = folded
        ctx.save_for_backward(lam, left, scores, right)
        return edge_log_sums(folded, lam)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        lam, *inputs = ctx.saved_tensors
        second_order = torch.is_grad_enabled()
        if second_order:
            lam = implicit_dual(ctx.folded.with_scores(*inputs), lam)
        with torch.enable_grad():
            # We differentiate by fresh views: lam was not computed from them, so the derivatives
            # do not include the path through lam.
            views = [x.view_as(x) if second_order else x.detach().requires_grad_() for x in inputs]
            edges = edge_log_sums(ctx.folded.with_scores(*views), lam)
        wanted = [x for x, needed in zip(views, ctx.needs_input_grad[2:], strict=True) if needed]
        found = iter(torch.autograd.grad(edges, wanted, grads, create_graph=second_order))
        return None, None, *(next(found) if n else None for n in ctx.needs_input_grad[2:])


class _ImplicitDual(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, folded: FoldedChain, lam: Tensor, left: Tensor, scores: Tensor, right: Tensor
    ) -> Tensor:
        ctx.folded = folded
        ctx.save_for_backward(lam, left, scores, right)
        return lam.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        lam, *scores = ctx.saved_tensors
        found = _solve(ctx.folded, lam, scores, grads[0].detach())
        if torch.is_grad_enabled():
            sources = (*grads, *scores)
            found = [_LastDerivative.apply(x, *sources) for x in found]  # type: ignore[no-untyped-call]
        needed = ctx.needs_input_grad[2:]
        return None, None, *(g if n else None for g, n in zip(found, needed, strict=True))


class _LastDerivative(torch.autograd.Function):
    """The identity on a result that was computed without a graph; its derivative raises an error.

    Without this function the derivative would be zero. `once_differentiable` does not help:
    autograd only visits nodes between the result and the requested inputs, and the error node of
    `once_differentiable` is connected to no input.
    """

    @staticmethod
    def forward(ctx: Any, result: Tensor, *sources: Tensor) -> Tensor:
        return result.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
        raise RuntimeError(
            "third derivatives of a Bregman value, and second ones of its marginals, are not "
            "available"
        )


def _solve(
    folded: FoldedChain, lam: Tensor, scores: Sequence[Tensor], grad: Tensor
) -> Sequence[Tensor]:
    """Return -(d grad_lam D / d scores)^T H^-1 grad, the gradient of the scores through lam."""
    with torch.enable_grad():
        lam = lam.detach().requires_grad_()
        scores = [x.detach().requires_grad_() for x in scores]
        edges = edge_log_sums(folded.with_scores(*scores), lam)
        (dual_gradient,) = torch.autograd.grad(edges.sum(), lam, create_graph=True)
    with torch.no_grad():
        # The mass through each tag has the scale of the diagonal of H: a good preconditioner.
        incoming, outgoing = incoming_outgoing(folded, lam)
        mass = torch.where(
            folded.interior_live, softmax(incoming + lam) + softmax(outgoing - lam), 0.0
        )
        tiny = torch.finfo(mass.dtype).tiny  # 1 / a denormal number overflows
        preconditioner = torch.where(folded.interior_live, 1 / mass.clamp(min=tiny), 0.0)

        def hessian(v: Tensor) -> Tensor:
            (curvature,) = torch.autograd.grad(dual_gradient, lam, v, retain_graph=True)
            # H is singular: it maps a constant per position to zero. Adding mass mass^T makes it
            # regular.
            return curvature * folded.interior_live + mass * (mass * v).sum(-1, keepdim=True)

        v = _conjugate_gradient(hessian, grad * folded.interior_live, preconditioner)
    return torch.autograd.grad(dual_gradient, scores, -v)


def _conjugate_gradient(
    operator: Callable[[Tensor], Tensor], target: Tensor, preconditioner: Tensor
) -> Tensor:
    """Return x with operator(x) = target, [B, n, T], solved for each sentence separately."""

    def dot(a: Tensor, b: Tensor) -> Tensor:
        return (a * b).sum((1, 2), keepdim=True)

    x, r = torch.zeros_like(target), target
    p = z = preconditioner * r
    rz = dot(r, z)
    enough = rz * (10 * torch.finfo(target.dtype).eps) ** 2
    for _ in range(_MAX_STEPS):
        running = rz > enough
        if not bool(running.any()):
            return x
        hp = operator(p)
        step = torch.where(running, rz / torch.where(running, dot(p, hp), 1.0), 0.0)
        x, r = x + step * p, r - step * hp
        z = preconditioner * r
        before, rz = rz, dot(r, z)
        p = z + torch.where(running, rz / torch.where(running, before, 1.0), 0.0) * p
    warnings.warn(
        f"the second derivative of a Bregman solution is inexact: conjugate gradients did not "
        f"converge in {_MAX_STEPS} steps",
        RuntimeWarning,
        stacklevel=2,
    )
    return x
