"""Norms and clipping of gradients, sparse ones included."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

__all__ = ["clip_gradients", "largest_gradient"]


@torch.no_grad()
def clip_gradients(parameters: Iterable[Tensor], max_norm: float) -> Tensor:
    """Scale all gradients down to a common norm of at most `max_norm`; the norm before, a scalar.

    As `torch.nn.utils.clip_grad_norm_`, which does not take sparse gradients.
    """
    if not max_norm > 0:
        raise ValueError(f"max_norm must be positive, got {max_norm}")
    values = _gradient_values(parameters)
    norm: Tensor = torch.linalg.vector_norm(_norms(values, 2))
    scale = (max_norm / (norm + 1e-6)).clamp_max(1.0)
    for value in values:
        value.mul_(scale.to(value.device))
    return norm


@torch.no_grad()
def largest_gradient(parameters: Iterable[Tensor]) -> Tensor:
    """Return the largest magnitude in all gradients, a scalar on their device.

    It is finite exactly if all gradients are. Reading it waits for the device; computing it does
    not.
    """
    return _norms(_gradient_values(parameters), math.inf).amax()


def _gradient_values(parameters: Iterable[Tensor]) -> list[Tensor]:
    """The numbers of all gradients; of a sparse one, those of its rows."""
    values = []
    for parameter in parameters:
        gradient = parameter.grad
        if gradient is None:
            continue
        if gradient.is_sparse:
            # Only then are the values of each row added up.
            parameter.grad = gradient = gradient.coalesce()
        values.append(gradient.values() if gradient.is_sparse else gradient)
    return values


def _norms(values: list[Tensor], order: float) -> Tensor:
    """The norm of each tensor, [N] on the device of the first; 0 where there are no numbers."""
    norms = [
        torch.linalg.vector_norm(value, order, dtype=torch.float32)
        for value in values
        if value.numel()
    ]
    if not norms:
        return torch.zeros(1)
    return torch.stack([norm.to(norms[0].device) for norm in norms])
