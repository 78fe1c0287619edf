"""The folded chain: the form of a chain that solvers use.

Folding moves the unary scores into the arcs, and removes dead tags, which lie on no allowed path.

An arc of edge e (from position e to e + 1) scores

    w[e, s, t] = left[e, s] + transitions[e, s, t] + right[e, t].

Half of a unary score goes into the arcs before its position, and half into the arcs after it. The
first and the last position of a sentence have arcs on one side only; these arcs get the whole
score. This split is a choice of gauge: other splits give the same scores of paths. At convergence
the split changes no value and no marginal; it changes the iterates of an iterative solver.
(`Bregman.gauge` selects another split by another starting point.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..chain import LinearChain
from ..checks import values_readable
from ..compat.caching import cached_property
from ..compat.control_flow import is_exporting
from ..diagnosis import check_paths, check_scores
from ..numerics.logspace import log_matmul, scaled_exp, wide_log_matmul
from ..numerics.static_trimming import static_live
from ..numerics.trimming import live_tags

__all__ = ["FoldedChain", "Transitions", "all_finite", "checked_scores", "fold"]


@dataclass(eq=False)
class Transitions:
    """Transition scores, and their products with vectors of scores in log space.

    `scores` are [T, T], shared by all edges and never copied, or [B, m, T, T]. The exponentials of
    the scores are computed once, and shared by all products.
    """

    scores: Tensor

    @property
    def shared(self) -> bool:
        return self.scores.dim() == 2

    @property
    def requires_grad(self) -> bool:
        return self.scores.requires_grad

    @cached_property
    def _exponential(self) -> tuple[Tensor, Tensor]:
        return scaled_exp(self.scores)

    def __getitem__(self, edges: slice) -> Transitions:
        """Return the transitions of some edges."""
        if self.shared:
            return self
        part = Transitions(self.scores[:, edges])
        if values_readable(self.scores):
            exp, peak = self._exponential
            part.__dict__["_exponential"] = (exp[:, edges], peak[:, edges])
        return part

    def edge_scores(self, m: int) -> Sequence[Tensor]:
        """Return the scores of each of the m edges, [T, T] or [B, T, T], for a loop over positions.

        We call `unbind` once for all edges. With a slice per step, each gradient would fill a
        tensor of the full size.
        """
        return [self.scores for _ in range(m)] if self.shared else self.scores.unbind(1)

    def steps(self, m: int, exponentials: bool = True) -> Sequence[Transitions]:
        """Return the transitions of each of the m edges, with `exponentials` if True."""
        if self.shared:
            # Not `[self] * m`: torch.compile of torch 2.7 fails if m is symbolic.
            return [self for _ in range(m)]
        parts = [Transitions(scores) for scores in self.edge_scores(m)]
        if exponentials and values_readable(self.scores):
            shares = zip(*(x.unbind(1) for x in self._exponential), strict=True)
            for part, share in zip(parts, shares, strict=True):
                part.__dict__["_exponential"] = share
        return parts

    def forward(self, x: Tensor) -> Tensor:
        """Return log sum_s exp(x[..., s] + scores[..., s, t]) for x [B, m, T] or [B, T]."""
        return self._product(x, self.scores, transpose=False)

    def backward(self, y: Tensor) -> Tensor:
        """Return log sum_t exp(scores[..., s, t] + y[..., t]) for y [B, m, T] or [B, T]."""
        return self._product(y, self.scores.mT, transpose=True)

    def _product(self, x: Tensor, scores: Tensor, transpose: bool) -> Tensor:
        if self.shared and is_exporting():
            return wide_log_matmul(x, scores)
        exp, peak = self._exponential if values_readable(x) else (None, None)
        if exp is not None and transpose:
            exp = exp.mT
        if self.shared:
            return log_matmul(x, scores, exp, peak)
        return log_matmul(x.unsqueeze(-2), scores, exp, peak).squeeze(-2)

    def rows(self, tags: Tensor) -> Tensor:
        """Return scores[e, tags[e], :], [B, m, T], for tags [B, m]."""
        if self.shared:
            return self.scores[tags]
        index = tags[..., None, None].expand(*tags.shape, 1, self.scores.shape[-1])
        return self.scores.gather(-2, index).squeeze(-2)


@dataclass(eq=False)
class FoldedChain:
    """A folded chain without dead tags: n positions, m = max(n - 1, 0) edges.

    Attributes:
        left, right: [B, m, T], the parts of the unary scores that are folded into each edge, from
            its left and its right position; -inf at dead tags. Beyond the length they are finite
            and have no meaning.
        transitions: scores of the transitions.
        single_scores: [B, n, T], the unary scores of sentences of length 1, which have no edge;
            0 elsewhere.
        live: bool [B, n, T], tags that lie on some path; False beyond the length.
        lengths: [B].
    """

    left: Tensor
    right: Tensor
    transitions: Transitions
    single_scores: Tensor
    live: Tensor
    lengths: Tensor

    @cached_property
    def position(self) -> Tensor:
        return torch.arange(self.live.shape[1], device=self.live.device)

    @cached_property
    def inside(self) -> Tensor:
        """bool [B, n]: positions within the length."""
        return self.position < self.lengths.unsqueeze(1)

    @cached_property
    def edge(self) -> Tensor:
        """bool [B, m]: edges within the length."""
        return self.inside[:, 1:]

    @cached_property
    def last(self) -> Tensor:
        """bool [B, n]: the last position of each sentence."""
        return self.position == self.lengths.unsqueeze(1) - 1

    @cached_property
    def interior_live(self) -> Tensor:
        """bool [B, n, T]: live tags of interior positions; the dual point lam is 0 elsewhere."""
        interior = self.inside & ~self.last & (self.position > 0)
        return self.live & interior.unsqueeze(-1)

    @property
    def unary(self) -> Tensor:
        """The unary scores [B, n, T] before folding; 0 beyond the length."""
        edge = self.edge.unsqueeze(-1)
        after = torch.where(edge, self.left, 0.0)
        before = torch.where(edge, self.right, 0.0)
        none = torch.zeros_like(self.single_scores[:, :1])
        return self.single_scores + torch.cat([after, none], 1) + torch.cat([none, before], 1)

    @property
    def final_messages(self) -> Tensor:
        """[B, n, T]: the backward messages at and beyond the last position.

        They are 0, and -inf at dead tags. In a sentence of one position they are the unary scores.
        """
        dead = self.inside.unsqueeze(-1) & ~self.live
        return self.single_scores.masked_fill(dead, -math.inf)

    def detach(self) -> FoldedChain:
        return self._map(Tensor.detach)

    def with_scores(
        self, left: Tensor, scores: Tensor, right: Tensor, single_scores: Tensor | None = None
    ) -> FoldedChain:
        """Return a folded chain with the same live tags and lengths, and other scores."""
        single = self.single_scores if single_scores is None else single_scores
        return FoldedChain(left, right, Transitions(scores), single, self.live, self.lengths)

    def to(self, dtype: torch.dtype) -> FoldedChain:
        return self._map(lambda scores: scores.to(dtype))

    def __truediv__(self, tau: float | Tensor) -> FoldedChain:
        return self._map(lambda scores: scores / tau)

    def _map(self, function: Callable[[Tensor], Tensor]) -> FoldedChain:
        return self.with_scores(
            *map(function, (self.left, self.transitions.scores, self.right, self.single_scores))
        )

    def scores(self, lam: Tensor | None = None) -> Tensor:
        """Return the scores of all arcs, [B, m, T, T]; the reduced scores if `lam` is given."""
        left, right = (self.left, self.right) if lam is None else self.reduced(lam)
        return left.unsqueeze(-1) + self.transitions.scores + right.unsqueeze(-2)

    def reduced(self, lam: Tensor) -> tuple[Tensor, Tensor]:
        """Return `left` and `right` of the reduced scores w[e, s, t] - lam[e, s] + lam[e+1, t].

        The dual point lam is [B, n, T]. The score of a path does not change, because the terms of
        lam cancel along it.
        """
        return self.left - lam[:, :-1], self.right + lam[:, 1:]

    def path_scores(self, index: Tensor, lam: Tensor) -> Tensor:
        """Return the reduced arc scores [B, m] along tags `index` [B, n]; 0 beyond the length."""
        left, right = self.reduced(lam)
        before, after = index[:, :-1].unsqueeze(-1), index[:, 1:].unsqueeze(-1)
        pair = self.transitions.rows(index[:, :-1]).gather(-1, after)
        total = left.gather(-1, before) + pair + right.gather(-1, after)
        return torch.where(self.edge, total.squeeze(-1), 0.0)


def fold(chain: LinearChain) -> FoldedChain:
    """Return `chain` folded, without dead tags.

    Raise for NaN and +inf, and for sentences without a path (see `diagnosis`).
    """
    if not torch.is_grad_enabled():
        chain = chain.detach()  # the result holds the given transitions, which may require grad
    unary, transitions, live = _trim(chain)
    dead = chain.mask.unsqueeze(-1) & ~live
    half = torch.where(live, unary, 0.0).masked_fill(dead, -math.inf) * 0.5
    full = torch.where((chain.first | chain.last).unsqueeze(-1), half * 2, half)
    single = torch.where((chain.lengths == 1).view(-1, 1, 1), full, 0.0)
    return FoldedChain(
        full[:, :-1], full[:, 1:], Transitions(transitions), single, live, chain.lengths
    )


def _trim(chain: LinearChain) -> tuple[Tensor, Tensor, Tensor]:
    """Return the scores with 0 beyond the lengths, and the live tags."""
    inside = chain.mask.unsqueeze(-1)
    transitions = chain.pair_scores
    if values_readable(chain.unary) and all_finite(chain.unary) and all_finite(transitions):
        return chain.unary, transitions, inside.expand_as(chain.unary)
    unary, transitions = _clear_padding(chain, transitions)
    if not chain.finite:
        nodes = (unary != -math.inf) & inside
        live = live_tags(nodes, transitions != -math.inf, chain.lengths)
    elif chain.structure is not None:
        live = static_live(chain.structure, chain.lengths, chain.max_length)
    else:
        return unary, transitions, inside.expand_as(unary)
    check_paths(live, chain.lengths)
    return unary, transitions, live


def checked_scores(chain: LinearChain) -> tuple[Tensor, Tensor]:
    """Return unary and transition scores with 0 beyond the lengths; raise for NaN and +inf."""
    return _clear_padding(chain, chain.pair_scores)


def _clear_padding(chain: LinearChain, transitions: Tensor) -> tuple[Tensor, Tensor]:
    check_scores(chain)
    unary = torch.where(chain.mask.unsqueeze(-1), chain.unary, 0.0)
    if transitions.dim() == 4:
        transitions = torch.where(chain.mask[:, 1:, None, None], transitions, 0.0)
    return unary, transitions


def all_finite(scores: Tensor) -> bool:
    """Whether no score is NaN or infinite; reads the values once, and allocates nothing."""
    if not scores.numel():
        return True
    low, high = torch.aminmax(scores.detach())
    return bool((low > -math.inf) & (high < math.inf))
