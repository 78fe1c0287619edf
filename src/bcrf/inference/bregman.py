"""The Bregman CRF: B(w) = max over q in conv(Y) of <q, w> + H(q), by iterative projections."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from .. import kernels
from ..arcs import Arcs, fold
from ..chain import LinearChain
from ..checks import check_count, check_number, check_sums
from ..flow import edge_log_sums, edge_softmax, incoming_outgoing, residual
from ..kernels import native, ops
from ..lazy import cached_property
from ..logspace import clamp_rounding, logsumexp, softmax
from ..room import roomy, with_room, without_room
from .fused import free_pairs, fused_value
from .implicit import dual_edges, implicit_dual
from .solution import Solution

__all__ = ["Bregman", "BregmanSolution"]


@dataclass(frozen=True)
class Bregman:
    """Iterative Bregman projections, parallel over positions.

    One iteration projects all interior positions of one parity, so `iterations` = 10 is five full
    sweeps. Solving is block coordinate descent on the dual D(lam) >= B(w) (docs/derivation.md); the
    value is D at the last lam, an upper bound of B that no step of a run increases.

    Args:
        iterations: number of projections; the maximum, if there is a tolerance.
        tolerance: stop a sentence once the flow residual max |in - out| is at most this.
            None: run all iterations, without ever waiting for the device.
        relaxation: omega in (0, 2) of lam <- lam + omega (new - lam). 1.0: plain projections;
            "ramp": 1, 1.05, ... up to 1.3, the last step at 1. With a tolerance the last step is
            always at 1.
        gauge: where the unary scores start out: "half" in the arcs on both sides of a position,
            "right" in the incoming ones. Matters before convergence only.
        first: position (0-based, 1 or 2) that the first iteration starts with.
        marginals: tag marginals of an interior position, from its incoming and outgoing mass: their
            normalised geometric "mean" (what one more projection would give) or "outgoing".
        backend: "auto", or the name of a kernel.
    """

    iterations: int = 10
    tolerance: float | None = None
    relaxation: float | Literal["ramp"] = "ramp"
    gauge: Literal["half", "right"] = "half"
    first: Literal[1, 2] = 1
    marginals: Literal["mean", "outgoing"] = "mean"
    backend: str = "auto"
    _settings: native.Settings = field(init=False, repr=False, compare=False)

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
        kernels.check(self.backend)
        right, outgoing = self.gauge == "right", self.marginals == "outgoing"
        settings = native.Settings(self.omegas, self.first, self.tolerance, right, outgoing)
        object.__setattr__(self, "_settings", settings)  # the dataclass is frozen

    @classmethod
    def paper(cls, iterations: int = 10) -> Bregman:
        """The paper's algorithm: no relaxation, unary scores in the incoming arcs, its order of
        projections (1-based odd positions first), tag marginals from the outgoing mass."""
        return cls(iterations, None, 1.0, gauge="right", first=2, marginals="outgoing")

    @property
    def omegas(self) -> Sequence[float]:
        """Relaxation of each iteration."""
        if self.relaxation != "ramp":
            return (float(self.relaxation),) * self.iterations
        ramp = [min(1 + 0.05 * k, 1.3) for k in range(self.iterations)]
        return (*ramp[:-1], 1.0) if ramp else ()

    def __call__(self, chain: LinearChain) -> BregmanSolution:
        return BregmanSolution(chain, self)

    def fused_loss(self, chain: LinearChain, tags: Tensor) -> Tensor | None:
        """The loss of `tags` from a compiled kernel, [B]; None if there is none for this chain, or
        if something is wrong with it."""
        how = kernels.route(self.backend, chain.unary)
        if how == "native":
            return fused_value(self, chain, tags)
        if how is None:
            return None
        slopes = torch.is_grad_enabled() and chain.requires_grad
        arrays = (chain.unary, chain.pair_scores, chain.lengths)
        *settings, _ = self._settings  # no slice: torch.compile of torch 2.8 cannot make one
        value: Tensor = ops.bregman(*arrays, tags, *settings, slopes)[0]
        return value.to(chain.unary.dtype)

    def run(
        self, chain: LinearChain, tags: Tensor | None, wanted: Sequence[bool], wide: bool
    ) -> native.Slopes | None:
        pair, follow = free_pairs(chain)
        arrays = (chain.unary, pair, chain.given_lengths)
        return native.bregman(*arrays, self._settings, tags, wanted, False, wide, follow)

    def again(self, chain: LinearChain, tags: Tensor | None) -> Tensor:
        solution = replace(self, backend="torch")(chain)
        return solution.value if tags is None else solution.surprisal(tags)

    def fused_decode(self, chain: LinearChain, temperature: float) -> Tensor | None:
        """The most probable tags [B, n] from a compiled kernel, or None."""
        how = kernels.route(self.backend, chain.unary)
        if how is None:
            return None
        arrays = (chain.unary, chain.pair_scores, chain.lengths)
        if how == "op":
            tags: Tensor = ops.most_probable(*arrays, *self._settings, temperature)
            return tags
        return native.most_probable(*arrays, self._settings, temperature)

    def dual(self, arcs: Arcs, start: Tensor | None = None) -> Tensor:
        """The projections alone: lam [B, n, T], from `start` or else from the gauge's own."""
        arcs = arcs.detach()
        lam = self._start(arcs) if start is None else start
        kernel = kernels.get(self.backend, arcs.left)
        with torch.no_grad():
            return kernel.project(arcs, lam, self.omegas, self.first, self.tolerance)

    def _start(self, arcs: Arcs) -> Tensor:
        lam = torch.zeros_like(arcs.alone)
        if self.gauge == "right":
            # An interior position holds half of its unary score in `left`; this moves it over.
            lam[:, :-1] = arcs.left
            lam = torch.where(arcs.free, lam, 0.0)
        return lam


_CHOICES: dict[str, tuple[object, ...]] = {
    "gauge": ("half", "right"),
    "first": (1, 2),
    "marginals": ("mean", "outgoing"),
}


class BregmanSolution(Solution):
    """B(w) and q at the dual point `lam` [B, n, T] that the projections reached.

    The gradient of `value` is q at lam (`edge_marginals`), exactly, at every lam; second
    derivatives, and those of the marginals, are exact at convergence (see `implicit`).
    """

    def __init__(self, chain: LinearChain, solver: Bregman) -> None:
        super().__init__(chain)
        self.solver = solver
        self._flow = self._fused_flow()
        # Looks at the scores: what is wrong with them is said here.
        self.lam  # noqa: B018

    def _fused_flow(self) -> native.Flow | None:
        chain, settings = self.chain.detach(), self.solver._settings
        how = kernels.route(self.solver.backend, chain.unary)
        if how is None:
            return None
        arrays = (chain.unary, chain.pair_scores, chain.lengths)
        if how == "op":
            return native.Flow(*ops.bregman_flow(*arrays, *settings))
        return native.flow(*arrays, settings)

    @cached_property
    def arcs(self) -> Arcs:
        """The folded chain, with room."""
        return fold(roomy(self.chain))

    @cached_property
    def lam(self) -> Tensor:
        """The dual point [B, n, T]."""
        return without_room(self.solver.dual(self.arcs)) if self._flow is None else self._flow.lam

    @property
    def _lam(self) -> Tensor:
        """lam for these arcs: with room."""
        return with_room(self.lam)

    @cached_property
    def value(self) -> Tensor:
        if self._flow is not None and not self._differentiable:
            return self._flow.value.to(self.chain.unary.dtype)
        return check_sums("value", dual_edges(self.arcs, self._lam).sum(1) + _alone(self.arcs))

    @property
    def _differentiable(self) -> bool:
        return torch.is_grad_enabled() and self.requires_grad

    @cached_property
    def residual(self) -> Tensor:
        if self._flow is not None:
            return self._flow.residual.to(self.chain.unary.dtype)
        return residual(self.arcs.detach(), self._lam)

    @cached_property
    def _following(self) -> Tensor:
        """lam as a function of the scores, with room."""
        return implicit_dual(self.arcs, self._lam)

    def tag_logits(self) -> Tensor:
        """Logits [B, n, T] of the tag marginals."""
        lam = self._following
        incoming, outgoing = incoming_outgoing(self.arcs, lam)
        mean = self.solver.marginals == "mean"
        return without_room(incoming / 2 + outgoing / 2 if mean else outgoing - lam)

    def tag_probabilities(self) -> Tensor:
        if self._flow is not None and not self._differentiable:
            return self._flow.marginals
        return softmax(self.tag_logits())

    def edge_probabilities(self) -> Tensor:
        return without_room(edge_softmax(self.arcs, self.arcs.scores(self._following)))

    def best_tags(self) -> Tensor:
        if self._flow is not None:
            return self.chain.pad(self._flow.marginals.argmax(-1))
        return self.chain.pad(self.tag_logits().argmax(-1))

    def surprisal(self, tags: Tensor) -> Tensor:
        """Fenchel-Young loss D(lam) - <w, y> = sum_e -log q[e, y_e, y_{e+1}].

        lam telescopes along y, so this is the same number, without the cancellation.
        """
        index = with_room(self.chain.tag_index(tags))
        gold = self.arcs.along(index, self._lam)
        edges = clamp_rounding(dual_edges(self.arcs, self._lam) - gold)
        alone = self.arcs.alone[:, :1].gather(-1, index[:, :1].unsqueeze(-1)).flatten(1).sum(1)
        return edges.sum(1) + _alone(self.arcs) - alone

    def partial_surprisal(self, allowed: Tensor) -> Tensor:
        """Partial Fenchel-Young loss D(lam) - D~(lam~), D~ being restricted to the allowed tags.

        The restricted problem starts from lam, which splits the loss in two parts that are >= 0 at
        every iteration: the mass of the allowed arcs under q, and the descent from lam to lam~.
        """
        restricted = fold(roomy(self.chain.restrict(allowed)))
        start = torch.where(restricted.free, self._lam, 0.0)
        lam = self.solver.dual(restricted, start)
        # Taken away from one part and added to the other: a constant for autograd.
        between = edge_log_sums(restricted.detach(), start)
        mass = clamp_rounding(dual_edges(self.arcs, self._lam) - between).sum(1)
        descent = clamp_rounding((between - dual_edges(restricted, lam)).sum(1))
        total = mass + descent + clamp_rounding(_alone(self.arcs) - _alone(restricted))
        lost = (self.arcs.lengths > 0) & ~restricted.live.flatten(1).any(1)
        return torch.where(lost, math.inf, total)


def _alone(arcs: Arcs) -> Tensor:
    """[B]: value of the sentences of length 1; 0 for the others."""
    value = logsumexp(arcs.alone[:, :1]).sum(1)
    return torch.where(arcs.lengths == 1, value, 0.0)
