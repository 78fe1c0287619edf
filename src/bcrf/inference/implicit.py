"""How the dual lam depends on the scores, in one place, for first and second derivatives.

First order: at a minimum of D the derivative by lam is zero (Danskin), so lam counts as constant.
Second order: d lam / d w by the implicit function theorem, from grad_lam D(lam, w) = 0:

    H dlam = - d(grad_lam D)/dw dw,        H the Hessian of D in lam.

Both are exact at convergence; the memory does not depend on the number of iterations.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..arcs import Arcs
from ..flow import edge_log_sums, incoming_outgoing
from ..logspace import softmax
from ..torch_internals import count_derivatives, in_transform, requires_grad_outside

__all__ = ["dual_edges", "implicit_dual"]

_MAX_STEPS = 1000


def dual_edges(arcs: Arcs, lam: Tensor) -> Tensor:
    """The terms [B, m] of D(lam), as functions of the scores.

    Their gradient is q at lam, exactly, at every lam: lam is held fixed. The gradient of that
    gradient lets lam follow the scores.
    """
    if torch.compiler.is_compiling():  # no second order there; autograd may see all of it
        return edge_log_sums(arcs, lam)
    scores = (arcs.left, arcs.pair.scores, arcs.right)
    if in_transform():
        return _first_order_edges(arcs, lam, scores)
    edges: Tensor = _DualEdges.apply(arcs.detach(), lam, *scores)  # type: ignore[no-untyped-call]
    return edges


def implicit_dual(arcs: Arcs, lam: Tensor) -> Tensor:
    """`lam`, with the derivative that the minimiser of D has."""
    scores = (arcs.left, arcs.pair.scores, arcs.right)
    if in_transform():
        if count_derivatives() or requires_grad_outside(scores):
            raise RuntimeError(
                "torch.func cannot differentiate Bregman marginals; use torch.autograd.grad"
            )
        return lam
    dual: Tensor = _ImplicitDual.apply(arcs.detach(), lam, *scores)  # type: ignore[no-untyped-call]
    return dual


def _first_order_edges(arcs: Arcs, lam: Tensor, scores: Sequence[Tensor]) -> Tensor:
    """`dual_edges` under `torch.func`, where second derivatives, which would be wrong, are errors.

    The conjugate gradients of `implicit_dual` look at values, which `torch.func` does not allow.
    """
    outside = requires_grad_outside(scores)
    if count_derivatives() + outside > 1:
        raise RuntimeError(_NO_SECOND_ORDER)
    edges = edge_log_sums(arcs, lam)
    if not outside:
        return edges
    guarded: Tensor = _FirstOrder.apply(edges)  # type: ignore[no-untyped-call]
    return guarded


_NO_SECOND_ORDER = (
    "torch.func cannot take second derivatives of a Bregman value; use torch.autograd.grad with "
    "create_graph=True, outside torch.func"
)


class _FirstOrder(torch.autograd.Function):
    """The identity, which can be differentiated once."""

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
        ctx: Any, arcs: Arcs, lam: Tensor, left: Tensor, scores: Tensor, right: Tensor
    ) -> Tensor:
        ctx.arcs = arcs
        ctx.save_for_backward(lam, left, scores, right)
        return edge_log_sums(arcs, lam)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        lam, *inputs = ctx.saved_tensors
        second_order = torch.is_grad_enabled()
        if second_order:
            lam = implicit_dual(ctx.arcs.with_scores(*inputs), lam)
        with torch.enable_grad():
            # Fresh views: differentiating by them leaves out the way through lam.
            views = [x.view_as(x) if second_order else x.detach().requires_grad_() for x in inputs]
            edges = edge_log_sums(ctx.arcs.with_scores(*views), lam)
        wanted = [x for x, needed in zip(views, ctx.needs_input_grad[2:], strict=True) if needed]
        found = iter(torch.autograd.grad(edges, wanted, grads, create_graph=second_order))
        return None, None, *(next(found) if n else None for n in ctx.needs_input_grad[2:])


class _ImplicitDual(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, arcs: Arcs, lam: Tensor, left: Tensor, scores: Tensor, right: Tensor
    ) -> Tensor:
        ctx.arcs = arcs
        ctx.save_for_backward(lam, left, scores, right)
        return lam.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        lam, *scores = ctx.saved_tensors
        found = _solve(ctx.arcs, lam, scores, grads[0].detach())
        if torch.is_grad_enabled():
            sources = (*grads, *scores)
            found = [_LastDerivative.apply(x, *sources) for x in found]  # type: ignore[no-untyped-call]
        needed = ctx.needs_input_grad[2:]
        return None, None, *(g if n else None for g, n in zip(found, needed, strict=True))


class _LastDerivative(torch.autograd.Function):
    """A result that was computed without a graph: differentiating it is an error, not a zero.

    (`once_differentiable` would not do: autograd visits only what lies between the result and the
    inputs that are asked for, and its error is not attached to any input.)
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


def _solve(arcs: Arcs, lam: Tensor, scores: Sequence[Tensor], grad: Tensor) -> Sequence[Tensor]:
    """-(d grad_lam D / d scores)^T H^-1 grad: the gradient that reaches the scores through lam."""
    with torch.enable_grad():
        lam = lam.detach().requires_grad_()
        scores = [x.detach().requires_grad_() for x in scores]
        edges = edge_log_sums(arcs.with_scores(*scores), lam)
        (flow,) = torch.autograd.grad(edges.sum(), lam, create_graph=True)
    with torch.no_grad():
        # Mass through each tag: the scale of H's diagonal, hence the preconditioner.
        incoming, outgoing = incoming_outgoing(arcs, lam)
        mass = torch.where(arcs.free, softmax(incoming + lam) + softmax(outgoing - lam), 0.0)
        tiny = torch.finfo(mass.dtype).tiny  # 1 / a denormal number overflows
        preconditioner = torch.where(arcs.free, 1 / mass.clamp(min=tiny), 0.0)

        def hessian(v: Tensor) -> Tensor:
            (curvature,) = torch.autograd.grad(flow, lam, v, retain_graph=True)
            # H ignores one constant per position; mass mass^T fixes it.
            return curvature * arcs.free + mass * (mass * v).sum(-1, keepdim=True)

        v = _conjugate_gradient(hessian, grad * arcs.free, preconditioner)
    return torch.autograd.grad(flow, scores, -v)


def _conjugate_gradient(
    operator: Callable[[Tensor], Tensor], target: Tensor, preconditioner: Tensor
) -> Tensor:
    """Solve operator(x) = target for each sentence on its own; all are [B, n, T]."""

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
