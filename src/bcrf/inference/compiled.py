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
from ..checks import checks_enabled
from ..compat.private_torch import is_legacy_batched, must_stay_in_torch
from ..diagnosis import check_gold, check_sums, check_tag_sets
from ..kernels import Backend, native, select_backend
from ..kernels.folded_chain import fold
from ..kernels.results import ValueAndGradient
from ..numerics.double_backward import differentiable_gradients
from ..numerics.logspace import matmul
from .solution import Solution, Solver

__all__ = ["CompiledSolver", "check_on_device", "fused_value", "native_scores"]


class CompiledSolver(Solver):
    """A solver whose losses and values are computed by one call of a compiled kernel.

    Attributes:
        _backend_option: the argument `backend` of `select_backend`.
        _fixed_steps: the argument `fixed_steps` of `select_backend`.
    """

    _backend_option: str
    _fixed_steps: bool = True

    def loss(self, chain: LinearChain, tags: Tensor, start_end: Tensor | None = None) -> Tensor:
        """Return the loss [B] of gold `tags`, int64 [B, n] on the device of the chain.

        Args:
            start_end: [2T], scores of start tags and end tags that `chain` does not contain yet. A
                compiled kernel adds them faster than torch operations do.
        """
        backend = select_backend(self._backend_option, chain.unary, self._fixed_steps)
        if backend == "native":
            value = fused_value(self, backend, chain, tags, start_end)
            if value is not None:
                return value
            backend = "torch"  # its checks say which sentence is invalid, and why
        elif backend in ("triton", "few_launches"):
            return self._device_loss(backend, chain, tags, start_end)
        if start_end is not None:
            chain = chain._add_start_end(start_end)
        if backend == "custom_op":
            return self.operator_loss(chain, tags)
        check_gold(chain, tags)
        return check_sums("loss", self.make_solution(chain, backend).loss(tags))

    def _device_loss(
        self, backend: Backend, chain: LinearChain, tags: Tensor, start_end: Tensor | None
    ) -> Tensor:
        if checks_enabled(chain.unary):
            full = chain if start_end is None else chain._add_start_end(start_end)
            check_on_device(full, tags)
        value = fused_value(self, backend, chain, tags, start_end)
        assert value is not None
        return check_sums("loss", value)

    def recompute(self, chain: LinearChain, labels: Tensor | None) -> Tensor:
        """Return the value, or the loss of `labels` (see `fused_value`), in torch operations."""
        solution = self.make_solution(chain, "torch")
        if labels is None:
            return solution.value
        is_set = labels.dtype is torch.bool
        return solution.partial_loss(labels) if is_set else solution.loss(labels)

    @abstractmethod
    def make_solution(self, chain: LinearChain, backend: Backend) -> Solution:
        """Return the solution of `chain`, computed by `backend`."""

    @abstractmethod
    def run_kernel(
        self,
        backend: Backend,
        chain: LinearChain,
        start_end: Tensor | None,
        labels: Tensor | None,
        wanted: Sequence[bool],
        in_float64: bool,
    ) -> ValueAndGradient | None:
        """Call the kernel of `backend` and return its result.

        Args:
            start_end: see `loss`.
            labels: gold tags or allowed tags (see `fused_value`); None: compute the value.
            wanted: whether to compute the gradients with respect to the unary scores, and to the
                pairs.
            in_float64: return the value in float64; False: in the dtype of the scores. The
                kernels in `DeviceKernels` ignore it.
        """

    @abstractmethod
    def operator_loss(self, chain: LinearChain, tags: Tensor) -> Tensor:
        """Return the loss of `tags`, [B], by an operator of `custom_ops`, in a compiled graph."""


def check_on_device(chain: LinearChain, labels: Tensor | None = None) -> None:
    """Raise ValueError if checks are enabled and the chain or its labels have a defect.

    The kernels for devices check nothing. Checks are off by default where values cannot be read.

    Args:
        labels: see `fused_value`.
    """
    if checks_enabled(chain.unary):
        if labels is not None:
            is_set = labels.dtype is torch.bool
            check_tag_sets(chain, labels) if is_set else check_gold(chain, labels)
        fold(chain.detach())  # raises for bad scores, and for sentences without a path


def fused_value(
    solver: CompiledSolver,
    backend: Backend,
    chain: LinearChain,
    labels: Tensor | None = None,
    start_end: Tensor | None = None,
    in_float64: bool = False,
) -> Tensor | None:
    """Return the value of each sentence, or the loss of `labels`, [B], differentiable.

    Return None if `backend` is "native" and a sentence is invalid.

    Args:
        backend: "native", "triton" or "few_launches".
        labels: int64 [B, n], gold tags; or bool [B, n, T], the allowed tags of a partial loss.
        start_end: [2T], scores of start tags and end tags to add to the chain.
        in_float64: return the value in float64; False: in the dtype of the scores.
    """
    unary, transitions = chain.unary, chain.raw_transitions
    by_unary = by_pair = False
    if torch.is_grad_enabled():
        by_unary = unary.requires_grad or (start_end is not None and start_end.requires_grad)
        by_pair = transitions is not None and transitions.requires_grad
    found = solver.run_kernel(backend, chain, start_end, labels, (by_unary, by_pair), in_float64)
    if found is None:
        return None
    if not in_float64 and found.value.dtype is not unary.dtype:
        found = found._replace(value=found.value.to(unary.dtype))
    if not (by_unary or by_pair):
        return found.value
    call = _FusedCall(solver, backend, chain, labels, found)
    value: Tensor = _FusedValue.apply(  # type: ignore[no-untyped-call]
        call, unary, transitions, start_end
    )
    return value


def native_scores(
    chain: LinearChain, start_end: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Return unary scores, pair scores, lengths and the allowed transitions (None: all).

    These are the arguments of the native kernels.
    """
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

    __slots__ = ("backend", "chain", "found", "labels", "solver", "value")

    def __init__(
        self,
        solver: CompiledSolver,
        backend: Backend,
        chain: LinearChain,
        labels: Tensor | None,
        found: ValueAndGradient,
    ) -> None:
        self.solver, self.backend, self.chain, self.labels = solver, backend, chain, labels
        self.value: Tensor | None = found.value
        self.found: Sequence[Tensor | None] | None = found[1:]

    def gradients(
        self, wanted: Sequence[bool], start_end: Tensor | None
    ) -> Sequence[Tensor | None]:
        """Return the gradients with respect to unary scores, pairs per sentence, and shared pairs.

        The caller may overwrite their memory. A second backward pass through the same graph calls
        the kernel again.
        """
        found, self.found = self.found, None
        if found is None:
            recomputed = self.solver.run_kernel(
                self.backend, self.chain, start_end, self.labels, wanted, False
            )
            assert recomputed is not None
            found = recomputed[1:]
        return found

    def recompute(
        self, unary: Tensor, transitions: Tensor | None, start_end: Tensor | None
    ) -> Tensor:
        """Return the value of these scores in torch operations."""
        chain = self.chain._with_scores(unary, transitions)
        if start_end is not None:
            chain = chain._add_start_end(start_end)
        return self.solver.recompute(chain, self.labels)


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
        on_cpu = call.backend == "native"
        found = _scaled(call.gradients(wanted, scores[2]), grad, call.chain.shared, on_cpu)
        ends = _sum_start_end(found[0], call.chain.lengths, on_cpu) if by_start_end else None
        return None, found[0] if by_unary else None, found[1], ends


def _scaled(
    gradients: Sequence[Tensor | None], grad: Tensor, shared: bool, on_cpu: bool
) -> tuple[Tensor | None, ...]:
    """Return the gradients of B sentences times `grad` [B].

    The gradients with respect to a shared matrix are summed over the sentences. After a sum or a
    mean, all entries of `grad` are one number; then the kernel scales the gradients in place.
    """
    by_unary, by_pair, by_shared_pair = gradients
    if on_cpu and not must_stay_in_torch() and not is_legacy_batched(grad):
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


def _sum_start_end(by_unary: Tensor | None, lengths: Tensor, on_cpu: bool) -> Tensor:
    """Return the gradient [2T] of the start and end scores, from that of the unary scores."""
    assert by_unary is not None
    if on_cpu and not must_stay_in_torch() and not is_legacy_batched(by_unary):
        return native.sum_start_end(by_unary, lengths)
    if not by_unary.shape[1]:
        return by_unary.new_zeros(2 * by_unary.shape[2])
    sentence = torch.arange(len(lengths), device=lengths.device)
    last = by_unary[sentence, (lengths - 1).clamp(min=0)]
    return torch.cat([by_unary[:, 0].sum(0), last.sum(0)])
