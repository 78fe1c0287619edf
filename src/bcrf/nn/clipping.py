"""Clipping of gradients, sparse ones included."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

__all__ = ["clip_gradients"]


@torch.no_grad()
def clip_gradients(parameters: Iterable[Tensor], max_norm: float) -> Tensor:
    """Scale all gradients down to a common norm of at most `max_norm`; the norm before, a scalar.

    As `torch.nn.utils.clip_grad_norm_`, which does not take sparse gradients.
    """
    if not max_norm > 0:
        raise ValueError(f"max_norm must be positive, got {max_norm}")
    values = []
    for parameter in parameters:
        gradient = parameter.grad
        if gradient is None:
            continue
        if gradient.is_sparse:
            # Only then are the values of each row added up.
            parameter.grad = gradient = gradient.coalesce()
        values.append(gradient.values() if gradient.is_sparse else gradient)
    if not values:
        return torch.zeros(())
    norms = [torch.linalg.vector_norm(value, dtype=torch.float32) for value in values]
    norm: Tensor = torch.linalg.vector_norm(torch.stack([n.to(norms[0].device) for n in norms]))
    scale = (max_norm / (norm + 1e-6)).clamp_max(1.0)
    for value in values:
        value.mul_(scale.to(value.device))
    return norm
