"""Values of whole sentences from the compiled kernels, differentiable.

The kernels give a value and its slopes in one go. First derivatives are these slopes; for second
ones the value is written again in torch operations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor

from .. import kernels
from ..chain import LinearChain
from ..kernels import native
from ..kernels.native import Slopes
from ..logspace import matmul
from ..torch_internals import is_legacy_batched
from .again import differentiable_slopes

__all__ = ["Fused", "free_pairs", "fused_value"]


class Fused(Protocol):
    """A solver that has a compiled kernel for its value."""

    def run(
        self, chain: LinearChain, tags: Tensor | None, wanted: Sequence[bool], wide: bool
    ) -> Slopes | None:
        """Call the kernel, which is told what slopes, by unary and pair scores, are wanted."""

    def again(self, chain: LinearChain, tags: Tensor | None) -> Tensor:
        """The same value in torch operations, of a chain with the same scores."""


def fused_value(
    solver: Fused, chain: LinearChain, tags: Tensor | None, wide: bool = False
) -> Tensor | None:
    """The value, or the loss of `tags`, of each sentence, [B]; None if one has no answer.

    Args:
        wide: in float64, whatever the dtype of the scores.
    """
    unary, (transitions, _) = chain.unary, chain.free_transitions
    if not (torch.is_grad_enabled() and chain.requires_grad):
        found = solver.run(chain, tags, (False, False), wide)
        return None if found is None else found.value
    by_pair = transitions is not None and transitions.requires_grad
    found = solver.run(chain, tags, (unary.requires_grad, by_pair), wide)
    if found is None:
        return None
    known = _Known(found[0], found[1:], solver, chain, tags)
    result: Tensor = _Value.apply(known, unary, transitions)  # type: ignore[no-untyped-call]
    return result


def free_pairs(chain: LinearChain) -> tuple[Tensor, Tensor | None]:
    """Pair scores, and which of them count, for a kernel: see `LinearChain.free_transitions`."""
    transitions, follow = chain.free_transitions
    return chain.pair_scores if transitions is None else transitions, follow


# The fields of `Slopes` without the value.
_ByScores: TypeAlias = tuple[Tensor | None, Tensor | None, Tensor | None]


@dataclass
class _Known:
    """What the kernel found, and how to find it again.

    Args:
        value: until it is handed out. Its graph must not hold it: in a circle of references neither
            it nor the slopes would be freed before the next garbage collection.
    """

    value: Tensor | None
    slopes: _ByScores | None
    solver: Fused
    chain: LinearChain
    tags: Tensor | None

    def again(self, unary: Tensor, transitions: Tensor | None) -> Tensor:
        """The value of these scores, in torch operations."""
        chain, (_, follow) = self.chain, self.chain.free_transitions
        problem = LinearChain._new(unary, transitions, chain.lengths, chain.dtype, follow)
        return self.solver.again(problem, self.tags)


class _Value(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, known: _Known, unary: Tensor, transitions: Tensor | None) -> Tensor:
        ctx.known = known
        ctx.save_for_backward(unary, transitions)
        value, known.value = known.value, None
        assert value is not None
        return value

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        known, grad = ctx.known, grads[0]
        scores = ctx.saved_tensors  # an error if the graph is gone, or the scores have changed
        needed = ctx.needs_input_grad[1:]
        if torch.is_grad_enabled():  # second derivatives are wanted
            return None, *differentiable_slopes(known.again, scores, needed, grad)
        # Their memory becomes the gradient: a second call computes them again.
        slopes, known.slopes = known.slopes, None
        if slopes is None:
            found = known.solver.run(known.chain, known.tags, needed, False)
            assert found is not None
            slopes = found[1:]
        return None, *_scaled(slopes, grad, known.chain.shared)


def _scaled(slopes: _ByScores, grad: Tensor, shared: bool) -> tuple[Tensor | None, ...]:
    """The slopes, of B sentences, times grad [B]; in their own memory, if that is one number."""
    unary, pair, total = slopes
    if not kernels.observed() and not is_legacy_batched(grad):
        found = (unary, pair if total is None else total)
        if native.scale(grad, *found):  # the gradient of a sum or a mean: one number
            return found
    return _times(unary, grad), _added_up(pair, grad) if shared else _times(pair, grad)


def _times(slope: Tensor | None, grad: Tensor) -> Tensor | None:
    if slope is None:
        return None
    return slope * grad.to(slope.dtype).view(-1, *(1,) * (slope.dim() - 1))


def _added_up(slope: Tensor | None, grad: Tensor) -> Tensor | None:
    if slope is None:
        return None
    return matmul(grad.to(slope.dtype).unsqueeze(0), slope.flatten(1)).view(slope.shape[1:])
