"""The linear-chain CRF: the exact A(w) = log sum_y exp <w, y>, by forward-backward."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..chain import LinearChain
from ..compat.caching import cached_result
from ..compat.graph_padding import pad_for_graph, pad_tensor_for_graph, remove_graph_padding
from ..diagnosis import check_sums
from ..kernels import (
    BACKEND_MODULES,
    Backend,
    check_backend,
    custom_ops,
    device_kernels,
    native,
    pytorch,
    select_backend,
)
from ..kernels.dual import edge_softmax
from ..kernels.folded_chain import FoldedChain, fold
from ..kernels.results import ValueAndGradient
from ..numerics.logspace import clamp_rounding, log_softmax, logsumexp, softmax
from .compiled import CompiledSolver, check_on_device, fused_value, native_scores
from .solution import Solution

__all__ = ["CRFSolution", "ForwardBackward"]


@dataclass(frozen=True)
class ForwardBackward(CompiledSolver):
    """Exact inference in a linear-chain CRF, by the forward-backward algorithm.

    Args:
        parallel: use an associative scan over T x T matrices (depth log n, work n T^3) instead of
            the sequential recursion (depth n, work n T^2).
        backend: "auto", or the name of a backend (see `bcrf.backends`). With `parallel`, only
            "auto", "torch" and "few_launches" are valid.

    Example:
        >>> import torch, bcrf
        >>> chain = bcrf.LinearChain(torch.zeros(1, 2, 3), torch.zeros(3, 3))
        >>> solution = bcrf.ForwardBackward()(chain)
        >>> solution.value  # log of the number of sequences, 9
        tensor([2.1972])
        >>> solution.edge_marginals.shape
        torch.Size([1, 1, 3, 3])
    """

    parallel: bool = False
    backend: str = "auto"
    _backend_option: str = field(init=False, repr=False, compare=False)  # for `select_backend`

    def __post_init__(self) -> None:
        check_backend(self.backend)
        option = self.backend
        if self.parallel:
            if option not in ("auto", "torch", "few_launches"):
                raise ValueError(
                    f"parallel=True has no backend {option!r}, only 'torch' and 'few_launches'"
                )
            option = "torch" if option == "auto" else option
        object.__setattr__(self, "_backend_option", option)  # the dataclass is frozen

    def __call__(self, chain: LinearChain) -> CRFSolution:
        return self.make_solution(chain, select_backend(self._backend_option, chain.unary))

    def make_solution(self, chain: LinearChain, backend: Backend) -> CRFSolution:
        return CRFSolution(chain, self, backend)

    def run_kernel(
        self,
        backend: Backend,
        chain: LinearChain,
        start_end: Tensor | None,
        labels: Tensor | None,
        wanted: Sequence[bool],
        in_float64: bool,
    ) -> ValueAndGradient | None:
        if backend == "native":
            unary, pair, lengths, follow = native_scores(chain, start_end)
            scores = (unary, pair, lengths)
            return native.crf(*scores, labels, wanted, False, in_float64, follow)
        kernels = device_kernels(backend)
        assert kernels is not None
        parallel = self.parallel
        return kernels.crf(chain, labels, wanted, start_end=start_end, parallel=parallel)

    def operator_loss(self, chain: LinearChain, tags: Tensor) -> Tensor:
        return _operator_value(self, chain, tags).to(chain.unary.dtype)


def _operator_value(solver: ForwardBackward, chain: LinearChain, tags: Tensor | None) -> Tensor:
    """Return A(w), or the loss of `tags`, in float64, by the operator `torch.ops.bcrf.crf`."""
    with_gradient = torch.is_grad_enabled() and chain.requires_grad
    arrays = (chain.unary, chain.pair_scores, chain.lengths)
    value: Tensor = custom_ops.crf(*arrays, tags, with_gradient, solver._backend_option)[0]
    return value


class CRFSolution(Solution):
    """A(w), and marginals of p(y) = exp(<w, y> - A(w)), exact and differentiable to any order.

    The CRF is treated as a Markov chain from left to right. `beta` [B, n, T] sums over all
    continuations of a tag to the end of the sentence. So p(y_0) and p(y_{e+1} | y_e) are softmaxes.
    """

    def __init__(self, chain: LinearChain, solver: ForwardBackward, backend: Backend) -> None:
        super().__init__(chain, solver)
        self.solver = solver
        self._backend = backend
        self._compiled_total: Tensor | None = None  # A(w) in float64 from a compiled kernel
        if device_kernels(backend) is not None:
            check_on_device(chain)  # the kernel runs when a result is read
            return
        if backend == "native":
            self._compiled_total = fused_value(solver, backend, self.chain, in_float64=True)
        elif backend == "custom_op":
            self._compiled_total = _operator_value(solver, self.chain, None)
        if self._compiled_total is None:
            self.beta  # noqa: B018  (solves the chain: errors in the data are raised here)

    @cached_result
    def folded(self) -> FoldedChain:
        """The folded chain. In a graph it and the messages are padded (see `graph_padding`)."""
        return fold(pad_for_graph(self.chain))

    @cached_result
    def _backward(self) -> tuple[Tensor, Tensor]:
        if self.solver.parallel:
            return pytorch.scan_backward_messages(self.folded)
        return BACKEND_MODULES[self._backend].backward_messages(self.folded)

    @property
    def beta(self) -> Tensor:
        """Backward messages [B, n, T], up to a constant per sentence."""
        return self._backward[0]

    @cached_result
    def alpha(self) -> Tensor:
        """Forward messages [B, n, T], up to a constant per position."""
        if self.solver.parallel:
            return pytorch.scan_forward_messages(self.folded)
        return BACKEND_MODULES[self._backend].forward_messages(self.folded)

    @cached_result
    def value(self) -> Tensor:
        value = self._total.to(self.chain.unary.dtype)
        checked = self._backend == "native" and self._compiled_total is not None
        return value if checked else check_sums("value", value)

    @cached_result
    def _total(self) -> Tensor:
        """A(w) in float64, where the device has it."""
        if self._compiled_total is not None:
            total = self._compiled_total
            return total if torch.is_grad_enabled() else total.detach()
        backend = self._selected_now()
        # A solution that recomputes the value in torch operations must not call the kernel again.
        if device_kernels(self._backend) is not None and device_kernels(backend) is not None:
            found = fused_value(self.solver, backend, self.chain, in_float64=True)
            assert found is not None
            return found
        beta, scale = self._backward
        total = logsumexp(beta[:, :1]).sum(1) + scale
        return torch.where(self.folded.lengths > 0, total, 0.0)

    def tag_probabilities(self) -> Tensor:
        found = self._compiled_marginals((True, False))
        if found is not None and found.by_unary is not None:
            return found.by_unary
        p = softmax(torch.where(self.folded.live, self.alpha + self.beta, -math.inf))
        return remove_graph_padding(p)

    def edge_probabilities(self) -> Tensor:
        found = self._compiled_marginals((False, True))
        if found is not None and found.by_pair is not None:
            return found.by_pair
        folded = self.folded
        before = (folded.left + self.alpha[:, :-1]).unsqueeze(-1)
        after = (folded.right + self.beta[:, 1:]).unsqueeze(-2)
        scores = before + folded.transitions.scores + after
        return remove_graph_padding(edge_softmax(folded, scores))

    def _selected_now(self) -> Backend:
        """Return the backend for a call now: solutions of eager mode may be read in a graph."""
        return select_backend(self.solver._backend_option, self.chain.unary)

    def _compiled_marginals(self, wanted: tuple[bool, bool]) -> ValueAndGradient | None:
        """Return the marginals from a compiled kernel, if they need no derivatives."""
        chain = self.chain
        if torch.is_grad_enabled() and self.requires_grad:
            return None
        backend = self._selected_now()
        kernels = device_kernels(backend)
        if kernels is not None:
            parallel = self.solver.parallel
            return kernels.crf(chain.detach(), None, wanted, every_edge=True, parallel=parallel)
        if backend != "native":
            return None
        arrays = (chain.unary, chain.pair_scores, chain.lengths)
        return native.crf(*arrays, None, wanted, every_edge=True)

    def next_logits(self, tags: Tensor) -> Tensor:
        """Return logits [B, m, T] of p(y_{e+1} | y_e = tags[e]), for tags [B, m].

        The logits are 0 beyond the length. In a graph the logits and `tags` are padded.
        """
        logits = self.folded.transitions.rows(tags) + self.folded.right + self.beta[:, 1:]
        return torch.where(self.folded.edge.unsqueeze(-1), logits, 0.0)

    def log_conditionals(self) -> tuple[Tensor, Tensor]:
        """Return log p(y_0) [B, 1, T] (n > 0) and log p(y_{e+1} = t | y_e = s) [B, m, T, T].

        They are -inf where a tag or arc is not live. Beyond the length they have no meaning.
        """
        first = self.beta[:, :1]
        after = (self.folded.right + self.beta[:, 1:]).unsqueeze(-2)
        return log_softmax(first), remove_graph_padding(
            log_softmax(self.folded.transitions.scores + after)
        )

    def loss(self, tags: Tensor) -> Tensor:
        """Return the negative log-likelihood A(w) - <w, y>.

        It equals -log p(y_0) - sum_e log p(y_{e+1} | y_e). We compute this form, because it has no
        cancellation.
        """
        index = pad_tensor_for_graph(self.chain.tag_index(tags))
        logits = torch.cat([self.beta[:, :1], self.next_logits(index[:, :-1])], 1)
        terms = logsumexp(logits) - logits.gather(-1, index.unsqueeze(-1)).squeeze(-1)
        return torch.where(self.folded.inside, terms, 0.0).sum(1)

    def partial_loss(self, allowed: Tensor) -> Tensor:
        """Return A(w) - A~(w), the negative log of the probability of the allowed sequences."""
        restricted = self.solver(self.chain.restrict(allowed))
        return clamp_rounding(self._total - restricted._total).to(self.chain.unary.dtype)
