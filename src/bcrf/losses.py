"""Losses of gold tags, and of sets of allowed tags, for every solver."""

from __future__ import annotations

import torch
from torch import Tensor

from .chain import LinearChain
from .checks import NO_TEMPERATURE, check_allowed, check_temperature
from .inference import Solver, SolverLike, as_solver

__all__ = ["loss", "partial_loss"]


def loss(
    solver: SolverLike,
    chain: LinearChain,
    tags: Tensor,
    temperature: float | Tensor = NO_TEMPERATURE,
) -> Tensor:
    """Return the loss of the gold sequences, [B], >= 0, without reduction.

    `ForwardBackward`: negative log-likelihood A(w) - <w, y>. `Bregman`: Fenchel-Young loss
    B(w) - <w, y>, computed as its upper bound D(lam) - <w, y>. `MeanField`, `Unstructured`:
    cross-entropy sum_i -log r_i(y_i). With every
    solver, a gold sequence that uses a removed tag or transition is an error.

    Args:
        tags: [B, n] integers; any values beyond the lengths, -100 for instance.
        temperature: tau > 0. The loss is then tau l(w / tau; y), where l(w; y) is the loss at
            tau = 1. It is the Fenchel-Young loss with tau times the regulariser: convex and >= 0
            (docs/derivation.md). Its gradient with respect to w is q(w / tau) - y. As tau -> 0 it
            becomes the structured perceptron loss max <w, y'> - <w, y>.

    Example:
        >>> import torch, bcrf
        >>> unary = torch.zeros(1, 3, 2, requires_grad=True)
        >>> chain = bcrf.LinearChain(unary, torch.zeros(2, 2))
        >>> value = bcrf.loss(bcrf.Bregman(10), chain, torch.tensor([[0, 1, 1]]))
        >>> round(value.item(), 4)  # 4 log 2: two edges of four arcs
        2.7726
        >>> value.mean().backward()
        >>> unary.grad
        tensor([[[-0.5000,  0.5000],
                 [ 0.5000, -0.5000],
                 [ 0.5000, -0.5000]]])
    """
    unary = chain.unary
    if not isinstance(tags, Tensor):
        raise TypeError(f"tags must be a tensor, got {type(tags).__name__}")
    if tags.shape != unary.shape[:2]:
        raise ValueError(f"tags must be [B, n] = {list(unary.shape[:2])}, got {list(tags.shape)}")
    if tags.dtype is not torch.int64 or tags.device != unary.device:
        if tags.dtype == torch.bool or tags.is_floating_point() or tags.is_complex():
            raise TypeError(f"tags must be integers, got {tags.dtype}")
        tags = tags.to(unary.device, torch.int64)
    if not isinstance(solver, Solver):
        solver = as_solver(solver)
    if isinstance(temperature, Tensor) or temperature != 1:
        return check_temperature(temperature) * solver.loss(chain / temperature, tags)
    return solver.loss(chain, tags)


def partial_loss(
    solver: SolverLike,
    chain: LinearChain,
    allowed: Tensor,
    temperature: float | Tensor = NO_TEMPERATURE,
) -> Tensor:
    """Return the loss of partial labels, [B], >= 0: one set of allowed tags per position.

    `ForwardBackward`: marginal negative log-likelihood A(w) - A~(w). `Bregman`: partial
    Fenchel-Young loss B(w) - B~(w). A~ and B~ are the values of the problem that is restricted to
    the allowed tags. `MeanField`, `Unstructured`: -sum_i log sum over allowed t of r_i(t). With one
    allowed tag per position the partial loss equals `loss`.

    Args:
        allowed: bool [B, n, T]; ignored beyond the lengths.
        temperature: tau > 0, as for `loss`.

    Example:
        >>> import torch, bcrf
        >>> chain = bcrf.LinearChain(torch.zeros(1, 2, 4))
        >>> allowed = torch.tensor([[[True, True, False, False], [True, True, True, True]]])
        >>> bcrf.partial_loss(bcrf.ForwardBackward(), chain, allowed)  # log 2: half the paths
        tensor([0.6931])
    """
    check_allowed(allowed, chain.unary.shape)
    solver, allowed = as_solver(solver), allowed.to(chain.device)
    if isinstance(temperature, Tensor) or temperature != 1:
        return check_temperature(temperature) * solver.partial_loss(chain / temperature, allowed)
    return solver.partial_loss(chain, allowed)
