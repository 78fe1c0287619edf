"""`CompiledSolver`: solvers with a compiled kernel, and the autograd function of their values.

The kernels return a value and its gradients in one call, so the forward pass computes both. For
second derivatives the value is recomputed in torch operations.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..chain import LinearChain
from ..compat.private_torch import is_legacy_batched, must_stay_in_torch
from ..diagnosis import check_gold, check_sums
from ..kernels import Backend, native, select_backend
from ..numerics.double_backward import differentiable_gradients
from ..numerics.logspace import matmul
from .solution import Solution, Solver

__all__ = ["CompiledSolver", "fused_value"]


class CompiledSolver(Solver):
    """A solver whose losses and values are computed by one call of a compiled kernel.

    Attributes:
        _backend_option: the argument `backend` of `select_backend`.
    """

    _backend_option: str

    def loss(self, chain: LinearChain, tags: Tensor, start_end: Tensor | None = None) -> Tensor:
        """Return the loss [B] of gold `tags`, int64 [B, n] on the device of the chain.

        Args:
            start_end: [2T], scores of start tags and end tags that `chain` does not contain yet. A
                compiled kernel adds them faster than torch operations do.
        """
        backend = select_backend(self._backend_option, chain.unary)
        if backend == "native":
            value = fused_value(self, chain, tags, start_end)
            if value is not None:
                return value
            backend = "torch"  # its checks say which sentence is invalid, and why
        if start_end is not None:
            chain = chain._add_start_end(start_end)
        if backend == "custom_op":
            return self.operator_loss(chain, tags)
        check_gold(chain, tags)
        return check_sums("loss", self.make_solution(chain, backend).loss(tags))

    def recompute(self, chain: LinearChain, tags: Tensor | None) -> Tensor:
        """Return the value, or the loss of `tags`, [B], in torch operations."""
        solution = self.make_solution(chain, "torch")
        return solution.value if tags is None else solution.loss(tags)

    @abstractmethod
    def make_solution(self, chain: LinearChain, backend: Backend) -> Solution:
        """Return the solution of `chain`, computed by `backend`."""

    @abstractmethod
    def run_kernel(
        self,
        unary: Tensor,
        pair: Tensor,
        lengths: Tensor,
        follow: Tensor | None,
        tags: Tensor | None,
        wanted: Sequence[bool],
        in_float64: bool,
    ) -> native.ValueAndGradient | None:
        """Call the kernel and return its result: see `native.crf` for the arguments."""

    @abstractmethod
    def operator_loss(self, chain: LinearChain, tags: Tensor) -> Tensor:
        """Return the loss of `tags`, [B], by an operator of `custom_ops`, in a compiled graph."""


def fused_value(
    solver: CompiledSolver,
    chain: LinearChain,
    tags: Tensor | None = None,
    start_end: Tensor | None = None,
    in_float64: bool = False,
) -> Tensor | None:
    """Return the value of each sentence, or the loss of `tags`, [B], differentiable.

    Return None if a sentence is invalid.

    Args:
        start_end: [2T], scores of start tags and end tags to add to the chain.
        in_float64: return the value in float64; False: in the dtype of the scores.
    """
    unary, transitions = chain.unary, chain.raw_transitions
    by_unary = by_pair = False
    if torch.is_grad_enabled():
        by_unary = unary.requires_grad or (start_end is not None and start_end.requires_grad)
        by_pair = transitions is not None and transitions.requires_grad
    scores = _kernel_scores(chain, start_end)
    found = solver.run_kernel(*scores, tags, (by_unary, by_pair), in_float64)
    if found is None or not (by_unary or by_pair):
        return None if found is None else found.value
    call = _FusedCall(solver, chain, tags, found)
    value: Tensor = _FusedValue.apply(  # type: ignore[no-untyped-call]
        call, unary, transitions, start_end
    )
    return value


def _kernel_scores(
    chain: LinearChain, start_end: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Return unary scores, pair scores, lengths and the allowed transitions (None: all)."""
    unary, pair, structure = chain.unary, chain.raw_transitions, chain.structure
    if start_end is not None:
        unary = native.add_start_end(unary, start_end, chain.lengths)
    if pair is None:
        return unary, chain.pair_scores, chain.lengths, None
    # With one matrix per edge, the kernel itself applies the rules. This avoids a constrained copy.
    follow = None if structure is None or pair.dim() == 2 else structure.follow
    return unary, pair, chain.lengths, follow


class _FusedCall:
    """The arguments of one kernel call, and its result until the result is used.

    The autograd graph of the value refers to this object. If the object also referred to the
    value, the two would form a cycle, and the gradients would stay in memory until the next garbage
    collection. So the object drops the value as soon as it is returned.
    """

    __slots__ = ("chain", "found", "solver", "tags", "value")

    def __init__(
        self,
        solver: CompiledSolver,
        chain: LinearChain,
        tags: Tensor | None,
        found: native.ValueAndGradient,
    ) -> None:
        self.solver, self.chain, self.tags = solver, chain, tags
        self.value: Tensor | None = found.value
        self.found: Sequence[Tensor | None] | None = found[1:]

    def gradients(
        self, wanted: Sequence[bool], start_end: Tensor | None
    ) -> Sequence[Tensor | None]:
        """Return the gradients by unary scores, pairs of each sentence, and shared pairs.

        The caller may overwrite their memory. A second backward pass through the same graph calls
        the kernel again.
        """
        found, self.found = self.found, None
        if found is None:
            scores = _kernel_scores(self.chain, start_end)
            again = self.solver.run_kernel(*scores, self.tags, wanted, False)
            assert again is not None
            found = again[1:]
        return found

    def recompute(
        self, unary: Tensor, transitions: Tensor | None, start_end: Tensor | None
    ) -> Tensor:
        """Return the value of these scores in torch operations."""
        chain = self.chain
        chain = LinearChain._new(unary, transitions, chain.lengths, chain.dtype, chain.structure)
        if start_end is not None:
            chain = chain._add_start_end(start_end)
        return self.solver.recompute(chain, self.tags)


class _FusedValue(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        call: _FusedCall,
        unary: Tensor,
        transitions: Tensor | None,
        start_end: Tensor | None,
    ) -> Tensor:
        ctx.call = call
        ctx.save_for_backward(unary, transitions, start_end)
        value, call.value = call.value, None
        assert value is not None
        return value

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        call, grad = ctx.call, grads[0]
        scores = ctx.saved_tensors  # raises if the graph was freed, or the scores were changed
        needed = ctx.needs_input_grad[1:]
        if torch.is_grad_enabled():  # second derivatives are wanted
            return None, *differentiable_gradients(call.recompute, scores, needed, grad)
        by_unary, by_pair, by_start_end = needed
        wanted = (by_unary or by_start_end, by_pair)
        found = _scaled(call.gradients(wanted, scores[2]), grad, call.chain.shared)
        ends = _sum_start_end(found[0], call.chain.lengths) if by_start_end else None
        return None, found[0] if by_unary else None, found[1], ends


def _scaled(
    gradients: Sequence[Tensor | None], grad: Tensor, shared: bool
) -> tuple[Tensor | None, ...]:
    """Return the gradients of B sentences times `grad` [B].

    The gradients by a shared matrix are summed over the sentences. After a sum or a mean, all
    entries of `grad` are one number; then the kernel scales the gradients in place.
    """
    by_unary, by_pair, by_shared_pair = gradients
    if not must_stay_in_torch() and not is_legacy_batched(grad):
        found = (by_unary, by_pair if by_shared_pair is None else by_shared_pair)
        if native.scale(grad, *found):
            return found
    if by_unary is not None:
        by_unary = by_unary * grad.to(by_unary.dtype).view(-1, 1, 1)
    if by_pair is not None:
        grad = grad.to(by_pair.dtype)
        if shared:
            by_pair = matmul(grad.unsqueeze(0), by_pair.flatten(1)).view(by_pair.shape[1:])
        else:
            by_pair = by_pair * grad.view(-1, 1, 1, 1)
    return by_unary, by_pair


def _sum_start_end(by_unary: Tensor | None, lengths: Tensor) -> Tensor:
    """Return the gradient [2T] by the start and end scores, from the one by the unary scores."""
    assert by_unary is not None
    if not must_stay_in_torch() and not is_legacy_batched(by_unary):
        return native.sum_start_end(by_unary, lengths)
    if not by_unary.shape[1]:
        return by_unary.new_zeros(2 * by_unary.shape[2])
    sentence = torch.arange(len(lengths), device=lengths.device)
    last = by_unary[sentence, (lengths - 1).clamp(min=0)]
    return torch.cat([by_unary[:, 0].sum(0), last.sum(0)])
