"""What kernels that solve whole chains take as settings, and what they return."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

__all__ = ["BregmanResult", "ProjectionSettings", "ValueAndGradient"]


class ValueAndGradient(NamedTuple):
    """A value of each sentence, and its gradients; a gradient that was not requested is None.

    Args:
        value: [B].
        by_unary: [B, n, T], the gradient with respect to the unary scores.
        by_pair: [B, n-1, T, T], the gradient with respect to the pair scores. For a shared matrix
            it is [B, T, T], the sum over the edges of each sentence.
        by_shared_pair: [T, T], the sum over all sentences; None for one matrix per edge.
    """

    value: Tensor
    by_unary: Tensor | None
    by_pair: Tensor | None
    by_shared_pair: Tensor | None


class BregmanResult(NamedTuple):
    """The result of the projections.

    Args:
        value: [B] in float64 where the device has it, the dual D at lam.
        residual: [B] in the dtype of `value`, max |incoming - outgoing| mass.
        lam: [B, n, T], the dual point.
        marginals: [B, n, T], the tag marginals.
    """

    value: Tensor
    residual: Tensor
    lam: Tensor
    marginals: Tensor


class ProjectionSettings(NamedTuple):
    """The arguments of `Bregman` for projections and marginals, as the kernels take them."""

    omegas: Sequence[float]
    first: int
    tolerance: float | None
    gauge_right: bool
    outgoing: bool
