"""The compiled kernels (C++, in `native/`) as functions of tensors, and their autograd function.

The kernels take unary [B, n, T], pair [T, T] or [B, n-1, T, T] and lengths [B] on the CPU. They
solve whole sentences: they fold, trim and check the scores themselves. Each function returns None
if a sentence has no answer: a score is NaN or +inf, a tag is out of range or removed, no path is
left, or a value overflows. The caller then runs the torch code, which raises an error that says
what is wrong (`bcrf.diagnosis`).
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from ..chain import LinearChain
from ..compat.private_torch import is_legacy_batched, missing_probe, must_stay_in_torch
from ..numerics.double_backward import differentiable_gradients
from ..numerics.logspace import matmul
from . import pytorch
from .folded_chain import FoldedChain
from .pytorch import backward_messages, forward_messages

__all__ = [
    "UNAVAILABLE",
    "BregmanResult",
    "FusedSolver",
    "ProjectionSettings",
    "ValueAndGradient",
    "backward_messages",
    "best_paths",
    "bregman",
    "bregman_result",
    "certified",
    "crf",
    "forward_messages",
    "fused_value",
    "most_probable",
    "project",
    "viterbi",
]


def _load() -> tuple[Any, str | None]:
    """Return the extension module and None, or None and the reason why it is unavailable.

    The environment variable BCRF_NATIVE is the path of another build to load, for example one with
    sanitizers.
    """
    path = os.environ.get("BCRF_NATIVE")
    missing = missing_probe()
    if missing is not None:
        return None, (
            f"torch {torch.__version__} has no {missing}, which tells whether operations may be "
            "hidden from torch; install a version of torch that has it"
        )
    try:
        if not path:
            from .. import _native

            _native.use_torch(torch)
            return _native, None
        spec = importlib.util.spec_from_file_location("bcrf._native", path)
        if spec is None or spec.loader is None:
            raise ImportError(f"BCRF_NATIVE={path} is no extension module")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        sys.modules["bcrf._native"] = module
        module.use_torch(torch)
        return module, None
    except ImportError as error:
        if not path and importlib.util.find_spec("bcrf._native") is None:
            return None, (
                "the compiled extension was not built: there was no CMake or C++ compiler when "
                "bcrf was installed, or compiling failed; get a C++ compiler and install bcrf "
                "again (`make native` in a checkout shows what goes wrong)"
            )
        return None, f"the compiled extension was built, but cannot be loaded: {error}"


# UNAVAILABLE is None, or the reason why there are no compiled kernels.
_native, UNAVAILABLE = _load()


class ValueAndGradient(NamedTuple):
    """A value of each sentence, and its gradients; a gradient that was not requested is None.

    Args:
        value: [B].
        by_unary: [B, n, T], the gradient by the unary scores.
        by_pair: [B, n-1, T, T], the gradient by the pair scores. For a shared matrix it is
            [B, T, T], the sum over the edges of each sentence.
        by_shared_pair: [T, T], the sum over all sentences; None for one matrix per edge.
    """

    value: Tensor
    by_unary: Tensor | None
    by_pair: Tensor | None
    by_shared_pair: Tensor | None


class BregmanResult(NamedTuple):
    """The result of the projections.

    Args:
        value: [B] in float64, the dual D at lam.
        residual: [B] in float64, max |incoming - outgoing| mass.
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


def crf(
    unary: Tensor,
    pair: Tensor,
    lengths: Tensor | None,
    tags: Tensor | None = None,
    wanted: Sequence[bool] = (False, False),
    every_edge: bool = False,
    in_float64: bool = True,
    follow: Tensor | None = None,
) -> ValueAndGradient | None:
    """Return A(w), or with tags [B, n] the negative log-likelihood, and its gradients.

    Args:
        lengths: [B]; None: all n.
        wanted: whether to compute the gradient by the unary scores, and whether to compute the
            gradient by the pairs. They are the tag marginals minus the gold tags, and the edge
            marginals minus the gold arcs. Without tags they are the marginals.
        every_edge: return the gradient of each edge, [B, n-1, T, T], also for shared pairs.
        in_float64: return the value in float64; False: in the dtype of the scores.
        follow: bool [T, T], the allowed transitions, for one matrix per edge; None: all.
    """
    found = _native.crf(
        unary,
        pair,
        lengths,
        follow,
        tags,
        *wanted,
        every_edge,
        in_float64,
        torch.get_num_threads(),
    )
    return None if found is None else ValueAndGradient(*found)


def bregman(
    unary: Tensor,
    pair: Tensor,
    lengths: Tensor | None,
    settings: ProjectionSettings,
    tags: Tensor | None = None,
    wanted: Sequence[bool] = (False, False),
    every_edge: bool = False,
    in_float64: bool = True,
    follow: Tensor | None = None,
) -> ValueAndGradient | None:
    """Return D(lam) after the projections, or with tags the Fenchel-Young loss, and its gradients.

    See `crf` for the other arguments.
    """
    omegas, first, tolerance, gauge_right, _ = settings
    found = _native.bregman(
        unary,
        pair,
        lengths,
        follow,
        tags,
        *wanted,
        every_edge,
        in_float64,
        torch.get_num_threads(),
        omegas,
        first,
        -1.0 if tolerance is None else tolerance,
        gauge_right,
    )
    return None if found is None else ValueAndGradient(*found)


def bregman_result(
    unary: Tensor, pair: Tensor, lengths: Tensor | None, settings: ProjectionSettings
) -> BregmanResult | None:
    """Run the projections; return the value, residual, dual point and tag marginals."""
    found = _native.flow(unary, pair, lengths, torch.get_num_threads(), *_plain(settings))
    return None if found is None else BregmanResult(*found)


def most_probable(
    unary: Tensor,
    pair: Tensor,
    lengths: Tensor | None,
    settings: ProjectionSettings,
    temperature: float,
) -> Tensor | None:
    """Return the most probable tag of each position, [B, n], -100 beyond the length."""
    threads = torch.get_num_threads()
    tags: Tensor | None = _native.most_probable(
        unary, pair, lengths, threads, *_plain(settings), temperature
    )
    return tags


def viterbi(
    unary: Tensor, pair: Tensor, lengths: Tensor | None, in_float64: bool = True
) -> tuple[Tensor, Tensor] | None:
    """Return the tags [B, n] of a best path, -100 beyond the length, and its score [B]."""
    found: tuple[Tensor, Tensor] | None = _native.viterbi(
        unary, pair, lengths, in_float64, torch.get_num_threads()
    )
    return found


def certified(
    unary: Tensor,
    pair: Tensor,
    lengths: Tensor | None,
    omegas: Sequence[float],
    temperature: float,
    in_float64: bool = True,
) -> tuple[Tensor, Tensor, Tensor] | None:
    """Return tags and score as `viterbi` does, and bool [B]: did the projections prove them?"""
    found: tuple[Tensor, Tensor, Tensor] | None = _native.certified(
        unary, pair, lengths, in_float64, torch.get_num_threads(), omegas, temperature
    )
    return found


def _plain(settings: ProjectionSettings) -> tuple[Any, ...]:
    """Return `settings` as the extension takes them, with -1 for a tolerance of None."""
    omegas, first, tolerance, *rest = settings
    return (omegas, first, -1.0 if tolerance is None else tolerance, *rest)


# The functions of the `Kernel` protocol. Messages must be differentiable to any order, so this
# module imports `backward_messages` and `forward_messages` from the torch backend.


def project(
    folded: FoldedChain,
    lam: Tensor,
    omegas: Sequence[float],
    first: int,
    tolerance: float | None,
) -> Tensor:
    """Return lam after the projections on a folded chain: see `reference.project`."""
    tensors = (folded.left, folded.right, folded.transitions.scores, folded.lengths, lam)
    steps = (omegas, first, -1.0 if tolerance is None else tolerance)
    found: Tensor | None = _native.project(*tensors, torch.get_num_threads(), *steps)
    # None: a score is NaN, and checks are off. The torch code propagates the NaN.
    return pytorch.project(folded, lam, omegas, first, tolerance) if found is None else found


def best_paths(folded: FoldedChain) -> Tensor:
    """Return the tags of a best path: see `reference.best_paths`."""
    found = viterbi(folded.unary, folded.transitions.scores, folded.lengths)
    return pytorch.best_paths(folded) if found is None else found[0].clamp(min=0)


# Values with gradients. The kernels return a value and its gradients in one call, so the forward
# pass computes both. For second derivatives the value is recomputed in torch operations.


class FusedSolver(Protocol):
    """A solver with a compiled kernel that computes its value, or the loss of tags."""

    def run_kernel(
        self,
        unary: Tensor,
        pair: Tensor,
        lengths: Tensor,
        follow: Tensor | None,
        tags: Tensor | None,
        wanted: Sequence[bool],
        in_float64: bool,
    ) -> ValueAndGradient | None:
        """Call the kernel and return its result: see `crf` for the arguments."""

    def recompute(self, chain: LinearChain, tags: Tensor | None) -> Tensor:
        """Return the value of `chain`, or the loss of `tags`, [B], in torch operations."""


def fused_value(
    solver: FusedSolver, chain: LinearChain, tags: Tensor | None, in_float64: bool = False
) -> Tensor | None:
    """Return the value of each sentence, or the loss of `tags`, [B], differentiable.

    Return None if a sentence has no answer. With `in_float64` the result is in float64, for scores
    of any dtype.
    """
    unary, transitions = chain.unary, chain.raw_transitions
    by_unary = by_pair = False
    if torch.is_grad_enabled():
        by_unary = unary.requires_grad
        by_pair = transitions is not None and transitions.requires_grad
    found = solver.run_kernel(*_kernel_scores(chain), tags, (by_unary, by_pair), in_float64)
    if found is None or not (by_unary or by_pair):
        return None if found is None else found.value
    call = _FusedCall(solver, chain, tags, found)
    value: Tensor = _FusedValue.apply(call, unary, transitions)  # type: ignore[no-untyped-call]
    return value


def _kernel_scores(chain: LinearChain) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Return unary scores, pair scores, lengths and the allowed transitions (None: all)."""
    pair, structure = chain.raw_transitions, chain.structure
    if pair is None:
        return chain.unary, chain.pair_scores, chain.lengths, None
    # With one matrix per edge, the kernel itself applies the rules. This avoids a constrained copy.
    follow = None if structure is None or pair.dim() == 2 else structure.follow
    return chain.unary, pair, chain.lengths, follow


class _FusedCall:
    """The arguments of one kernel call, and its result until the result is used.

    The autograd graph of the value refers to this object. If the object also referred to the
    value, the two would form a cycle, and the gradients would stay in memory until the next garbage
    collection. So the object drops the value as soon as it is returned.
    """

    __slots__ = ("chain", "found", "solver", "tags", "value")

    def __init__(
        self,
        solver: FusedSolver,
        chain: LinearChain,
        tags: Tensor | None,
        found: ValueAndGradient,
    ) -> None:
        self.solver, self.chain, self.tags = solver, chain, tags
        self.value: Tensor | None = found.value
        self.found: Sequence[Tensor | None] | None = found[1:]

    def gradients(self, wanted: Sequence[bool]) -> Sequence[Tensor | None]:
        """Return the gradients; the caller may overwrite their memory.

        A second backward pass through the same graph calls the kernel again.
        """
        found, self.found = self.found, None
        if found is None:
            scores = _kernel_scores(self.chain)
            again = self.solver.run_kernel(*scores, self.tags, wanted, False)
            assert again is not None
            found = again[1:]
        return found

    def recompute(self, unary: Tensor, transitions: Tensor | None) -> Tensor:
        """Return the value of these scores in torch operations."""
        chain = self.chain
        chain = LinearChain._new(unary, transitions, chain.lengths, chain.dtype, chain.structure)
        return self.solver.recompute(chain, self.tags)


class _FusedValue(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: _FusedCall, unary: Tensor, transitions: Tensor | None) -> Tensor:
        ctx.call = call
        ctx.save_for_backward(unary, transitions)
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
        return None, *_scaled(call.gradients(needed), grad, call.chain.shared)


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
        if _native.scale(grad, *found):
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
