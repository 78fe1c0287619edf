"""The Bregman CRF: B(w) = max over q in conv(Y) of <q, w> + H(q), by iterative projections."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from ..chain import LinearChain
from ..checks import NO_TEMPERATURE, check_count, check_number, check_temperature
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
    select_backend,
)
from ..kernels.dual import edge_log_sums, edge_softmax, incoming_outgoing, residual
from ..kernels.folded_chain import FoldedChain, fold
from ..kernels.results import BregmanResult, ProjectionSettings, ValueAndGradient
from ..numerics.logspace import clamp_rounding, logsumexp, softmax
from .compiled import CompiledSolver, check_on_device, fused_value, native_scores
from .implicit import dual_terms, implicit_dual
from .solution import Solution

__all__ = ["Bregman", "BregmanSolution"]


@dataclass(frozen=True)
class Bregman(CompiledSolver):
    """Inference in a Bregman CRF by iterative projections, in parallel over positions.

    One iteration projects all interior positions of one parity, so `iterations` = 10 makes five
    full sweeps. The projections are block coordinate descent on the dual D(lam) >= B(w)
    (docs/derivation.md). The value of the solution is D at the last dual point lam. It is an upper
    bound of B(w), and no iteration increases it.

    Args:
        iterations: number of projections; with a tolerance, the maximum number.
        tolerance: stop a sentence once its residual max |incoming - outgoing| is at most this
            number. None: run all iterations, without waiting for the device.
        relaxation: omega in (0, 2) of the step lam <- lam + omega (new - lam). 1.0: plain
            projections. "ramp": 1, 1.05, ... up to 1.3, and 1 in the last step. With a tolerance
            the last step is always at 1.
        gauge: the arcs that hold the unary scores at the start: "half": half of a score on each
            side of its position; "right": all of it in the incoming arcs. At convergence the
            results are the same.
        first: the position (0-based, 1 or 2) at which the first iteration begins.
        marginals: the tag marginals of an interior position. "mean": the normalised geometric mean
            of its incoming and its outgoing mass, as after one more projection. "outgoing": its
            outgoing mass.
        backend: "auto", or the name of a backend (see `bcrf.backends`).

    Example:
        >>> import torch, bcrf
        >>> unary = torch.tensor([[[2.0, 0.0], [0.0, 0.5], [0.0, 1.0]]])
        >>> chain = bcrf.LinearChain(unary, torch.eye(2))
        >>> solution = bcrf.Bregman(iterations=10)(chain)
        >>> solution.best_tags()
        tensor([[0, 1, 1]])
        >>> bool(solution.value >= bcrf.ForwardBackward()(chain).value)
        True
    """

    iterations: int = 10
    tolerance: float | None = None
    relaxation: float | Literal["ramp"] = "ramp"
    gauge: Literal["half", "right"] = "half"
    first: Literal[1, 2] = 1
    marginals: Literal["mean", "outgoing"] = "mean"
    backend: str = "auto"
    _backend_option: str = field(init=False, repr=False, compare=False)
    _fixed_steps: bool = field(init=False, repr=False, compare=False)
    _settings: ProjectionSettings = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_count("iterations", self.iterations)
        if self.tolerance is not None:
            check_number("tolerance", self.tolerance)
            if not self.tolerance >= 0:
                raise ValueError(f"tolerance must be >= 0 or None, got {self.tolerance}")
        if isinstance(self.relaxation, str):
            if self.relaxation != "ramp":
                raise ValueError(f"relaxation must be 'ramp' or a number, got {self.relaxation!r}")
        else:
            check_number("relaxation", self.relaxation)
            if not 0 < self.relaxation < 2:
                raise ValueError(f"relaxation must be in (0, 2), got {self.relaxation}")
        for name, known in _CHOICES.items():
            if getattr(self, name) not in known:
                raise ValueError(f"{name} must be one of {known}, got {getattr(self, name)!r}")
        check_backend(self.backend)
        assign = object.__setattr__  # the dataclass is frozen
        assign(self, "_backend_option", self.backend)
        assign(self, "_fixed_steps", self.tolerance is None)
        right, outgoing = self.gauge == "right", self.marginals == "outgoing"
        settings = ProjectionSettings(self.omegas, self.first, self.tolerance, right, outgoing)
        assign(self, "_settings", settings)

    @classmethod
    def paper(cls, iterations: int = 10) -> Bregman:
        """Return the solver with the settings of the paper.

        It uses no relaxation, puts unary scores into the incoming arcs, projects the odd positions
        first (counted from 1), and takes tag marginals from the outgoing mass.

        Example:
            >>> import torch, bcrf
            >>> chain = bcrf.LinearChain(torch.tensor([[[0.0, 1.0], [2.0, 0.0]]]))
            >>> bcrf.Bregman.paper(10)(chain)
            BregmanSolution(solver=Bregman(iterations=10, relaxation=1.0, gauge='right', ...)
        """
        return cls(iterations, None, 1.0, gauge="right", first=2, marginals="outgoing")

    @property
    def omegas(self) -> Sequence[float]:
        """The relaxation omega of each iteration."""
        if self.relaxation != "ramp":
            return (float(self.relaxation),) * self.iterations
        ramp = [min(1 + 0.05 * k, 1.3) for k in range(self.iterations)]
        return (*ramp[:-1], 1.0) if ramp else ()

    def __call__(self, chain: LinearChain) -> BregmanSolution:
        return self.make_solution(
            chain, select_backend(self.backend, chain.unary, self._fixed_steps)
        )

    def partial_loss(self, chain: LinearChain, allowed: Tensor) -> Tensor:
        backend = select_backend(self.backend, chain.unary, self._fixed_steps)
        if device_kernels(backend) is None:
            return super().partial_loss(chain, allowed)
        check_on_device(chain, allowed)
        value = fused_value(self, backend, chain, allowed)
        assert value is not None
        return check_sums("partial loss", value)

    def make_solution(self, chain: LinearChain, backend: Backend) -> BregmanSolution:
        return BregmanSolution(chain, self, backend)

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
            return native.bregman(
                *scores, self._settings, labels, wanted, False, in_float64, follow
            )
        kernels = device_kernels(backend)
        assert kernels is not None
        if labels is not None and labels.dtype is torch.bool:
            return kernels.bregman_partial(chain, labels, self._settings, wanted)
        return kernels.bregman(chain, self._settings, labels, wanted, start_end=start_end)

    def operator_loss(self, chain: LinearChain, tags: Tensor) -> Tensor:
        arrays = (chain.unary, chain.pair_scores, chain.lengths)
        with_gradient = torch.is_grad_enabled() and chain.requires_grad
        *settings, _ = self._settings  # not a slice: torch.compile of torch 2.8 cannot make one
        kernel = (self.backend, chain.known_finite)
        found: Tensor = custom_ops.bregman(*arrays, tags, *settings, with_gradient, *kernel)[0]
        return found.to(chain.unary.dtype)

    def decode(self, chain: LinearChain, temperature: float | Tensor = NO_TEMPERATURE) -> Tensor:
        backend = select_backend(self.backend, chain.unary, self._fixed_steps)
        temperature = check_temperature(temperature)
        with torch.no_grad():
            if backend in ("native", "custom_op") and not isinstance(temperature, Tensor):
                arrays = (chain.unary, chain.pair_scores, chain.lengths)
                settings, tau = self._settings, float(temperature)
                if backend == "custom_op":
                    kernel = (self.backend, chain.known_finite)
                    found: Tensor = custom_ops.most_probable(*arrays, *settings, tau, *kernel)
                    return found
                tags = native.most_probable(*arrays, settings, tau)
                if tags is not None:
                    return tags
                backend = "torch"
            kernels = device_kernels(backend)
            if kernels is not None:
                check_on_device(chain)
                return kernels.most_probable(chain.detach(), self._settings, temperature)
            return BregmanSolution(chain.detach() / temperature, self, backend).best_tags()

    def dual(self, folded: FoldedChain, backend: Backend, start: Tensor | None = None) -> Tensor:
        """Run the projections and return the dual point lam [B, n, T].

        The projections begin at `start`. If it is None, they begin at the point of `gauge`.
        """
        folded = folded.detach()
        lam = self._start(folded) if start is None else start
        with torch.no_grad():
            return BACKEND_MODULES[backend].project(
                folded, lam, self.omegas, self.first, self.tolerance
            )

    def _start(self, folded: FoldedChain) -> Tensor:
        lam = torch.zeros_like(folded.single_scores)
        if self.gauge == "right":
            # The folded chain has half of each interior unary score in the outgoing arcs (`left`).
            # This lam moves that half to the incoming arcs.
            lam[:, :-1] = folded.left
            lam = torch.where(folded.interior_live, lam, 0.0)
        return lam


_CHOICES: dict[str, tuple[object, ...]] = {
    "gauge": ("half", "right"),
    "first": (1, 2),
    "marginals": ("mean", "outgoing"),
}


class BregmanSolution(Solution):
    """The value D(lam) and the marginals q(lam) at the last dual point `lam` [B, n, T].

    The gradient of `value` is q(lam), the `edge_marginals`: lam is held constant. It is the
    derivative of B(w) at convergence. Second derivatives, and derivatives of the marginals, are
    exact at convergence, too (see `implicit`).
    """

    def __init__(self, chain: LinearChain, solver: Bregman, backend: Backend) -> None:
        super().__init__(chain, solver)
        self.solver = solver
        self._backend = backend
        self._result = self._compiled_result()  # None: torch code computes the results
        self.lam  # noqa: B018  (solves the chain: errors in the data are raised here)

    def _compiled_result(self) -> BregmanResult | None:
        chain, settings = self.chain, self.solver._settings
        kernels = device_kernels(self._backend)
        if kernels is not None:
            check_on_device(chain)
            return kernels.bregman_result(chain.detach(), settings)
        if self._backend == "native":
            return native.bregman_result(chain.unary, chain.pair_scores, chain.lengths, settings)
        if self._backend == "custom_op":
            chain = chain.detach()
            arrays = (chain.unary, chain.pair_scores, chain.lengths)
            kernel = (self.solver.backend, chain.known_finite)
            return BregmanResult(*custom_ops.bregman_result(*arrays, *settings, *kernel))
        return None

    @cached_result
    def folded(self) -> FoldedChain:
        """The folded chain. In a graph it is padded (see `graph_padding`)."""
        return fold(pad_for_graph(self.chain))

    @cached_result
    def lam(self) -> Tensor:
        """The dual point [B, n, T]."""
        if self._result is not None:
            return self._result.lam
        return remove_graph_padding(self.solver.dual(self.folded, self._backend))

    @property
    def _padded_lam(self) -> Tensor:
        """`lam` in the shape of `folded`, which is padded in a graph."""
        return pad_tensor_for_graph(self.lam)

    @cached_result
    def value(self) -> Tensor:
        if self._result is not None and not self._differentiable:
            bound = self._result.value.to(self.chain.unary.dtype)
            return bound if self._backend == "native" else check_sums("value", bound)
        if device_kernels(self._backend) is not None:
            value = fused_value(self.solver, self._backend, self.chain)
            assert value is not None
            return check_sums("value", value)
        return check_sums(
            "value", dual_terms(self.folded, self._padded_lam).sum(1) + _single_values(self.folded)
        )

    @property
    def _differentiable(self) -> bool:
        return torch.is_grad_enabled() and self.requires_grad

    @cached_result
    def residual(self) -> Tensor:
        if self._result is not None:
            return self._result.residual.to(self.chain.unary.dtype)
        return residual(self.folded.detach(), self._padded_lam)

    @cached_result
    def _padded_implicit_lam(self) -> Tensor:
        """`lam` as a differentiable function of the scores, in the shape of `folded`."""
        return implicit_dual(self.folded, self._padded_lam)

    def tag_logits(self) -> Tensor:
        """Return logits [B, n, T] of the tag marginals."""
        lam = self._padded_implicit_lam
        incoming, outgoing = incoming_outgoing(self.folded, lam)
        mean = self.solver.marginals == "mean"
        return remove_graph_padding(incoming / 2 + outgoing / 2 if mean else outgoing - lam)

    def tag_probabilities(self) -> Tensor:
        if self._result is not None and not self._differentiable:
            return self._result.marginals
        return softmax(self.tag_logits())

    def edge_probabilities(self) -> Tensor:
        return remove_graph_padding(
            edge_softmax(self.folded, self.folded.scores(self._padded_implicit_lam))
        )

    def best_tags(self) -> Tensor:
        if self._result is not None:
            return self.chain.pad(self._result.marginals.argmax(-1))
        return self.chain.pad(self.tag_logits().argmax(-1))

    def loss(self, tags: Tensor) -> Tensor:
        """Return the Fenchel-Young loss D(lam) - <w, y> = sum_e -log q[e, y_e, y_{e+1}].

        Both forms are equal, because the terms of lam telescope along y. We compute the second
        form, because it has no numerical cancellation.
        """
        index = pad_tensor_for_graph(self.chain.tag_index(tags))
        gold = self.folded.path_scores(index, self._padded_lam)
        edges = clamp_rounding(dual_terms(self.folded, self._padded_lam) - gold)
        alone = (
            self.folded.single_scores[:, :1]
            .gather(-1, index[:, :1].unsqueeze(-1))
            .flatten(1)
            .sum(1)
        )
        return edges.sum(1) + _single_values(self.folded) - alone

    def partial_loss(self, allowed: Tensor) -> Tensor:
        """Return the partial Fenchel-Young loss D(lam) - D~(lam~).

        D~ is the dual of the problem that is restricted to the allowed tags. Its projections start
        from lam and reach lam~. So the loss is the sum of two parts that are >= 0 at every
        iteration: -log of the mass of the allowed arcs under q, and the descent of D~ from lam to
        lam~.
        """
        restricted = fold(pad_for_graph(self.chain.restrict(allowed)))
        start = torch.where(restricted.interior_live, self._padded_lam, 0.0)
        lam = self.solver.dual(restricted, self._backend, start)
        # `between` cancels in the sum of the two parts, so it needs no gradient.
        between = edge_log_sums(restricted.detach(), start)
        mass = clamp_rounding(dual_terms(self.folded, self._padded_lam) - between).sum(1)
        descent = clamp_rounding((between - dual_terms(restricted, lam)).sum(1))
        total = (
            mass
            + descent
            + clamp_rounding(_single_values(self.folded) - _single_values(restricted))
        )
        lost = (self.folded.lengths > 0) & ~restricted.live.flatten(1).any(1)
        return torch.where(lost, math.inf, total)


def _single_values(folded: FoldedChain) -> Tensor:
    """Return the value of the sentences of length 1, [B]; 0 for the others."""
    value = logsumexp(folded.single_scores[:, :1]).sum(1)
    return torch.where(folded.lengths == 1, value, 0.0)
