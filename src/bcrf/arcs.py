"""The form of a chain that solvers work on: unary scores folded into the arcs, dead tags trimmed.

An arc of edge e scores w[e, s, t] = left[e, s] + pair[e, s, t] + right[e, t]. Unary scores are
split in halves between the arcs before and after a position (all of it at the two ends of a
sentence). The split is a choice of gauge that changes no value and no marginal, only the path that
an iterative solver takes; another gauge is another starting point (`Bregman.gauge`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .chain import LinearChain
from .checks import checks_enabled, values_visible
from .lazy import cached_property
from .logspace import exponential, log_matmul
from .structure import live_tags

__all__ = ["Arcs", "Pairs", "checked_scores", "fold"]


@dataclass(frozen=True, eq=False)
class Pairs:
    """Scores of tag pairs: [T, T], shared by all edges and never copied, or [B, m, T, T]."""

    scores: Tensor

    @property
    def shared(self) -> bool:
        return self.scores.dim() == 2

    @property
    def requires_grad(self) -> bool:
        return self.scores.requires_grad

    @cached_property
    def _exponential(self) -> tuple[Tensor, Tensor]:
        return exponential(self.scores)

    def __getitem__(self, edges: slice) -> Pairs:
        """The pairs of some edges; the exponentials are taken once for all of them."""
        if self.shared:
            return self
        part = Pairs(self.scores[:, edges])
        if values_visible(self.scores):
            exp, peak = self._exponential
            part.__dict__["_exponential"] = (exp[:, edges], peak[:, edges])
        return part

    def edge_scores(self, m: int) -> Sequence[Tensor]:
        """The scores of each of the m edges, [T, T] or [B, T, T], for a loop over positions.

        One `unbind` for all: the gradient of a slice per step would fill the whole tensor each.
        """
        return [self.scores for _ in range(m)] if self.shared else self.scores.unbind(1)

    def steps(self, m: int, exponentials: bool = True) -> Sequence[Pairs]:
        """The pairs of each of the m edges, with their share of the exponentials if wanted."""
        if self.shared:
            # No `[self] * m`: the torch.compile of torch 2.7 fails if m is a symbol.
            return [self for _ in range(m)]
        parts = [Pairs(scores) for scores in self.edge_scores(m)]
        if exponentials and values_visible(self.scores):
            shares = zip(*(x.unbind(1) for x in self._exponential), strict=True)
            for part, share in zip(parts, shares, strict=True):
                part.__dict__["_exponential"] = share
        return parts

    def forward(self, x: Tensor) -> Tensor:
        """log sum_s exp(x[..., s] + pair[..., s, t]): [B, m, T] -> [B, m, T], or without m."""
        return self._product(x, self.scores, transpose=False)

    def backward(self, y: Tensor) -> Tensor:
        """log sum_t exp(pair[..., s, t] + y[..., t]): [B, m, T] -> [B, m, T], or without m."""
        return self._product(y, self.scores.mT, transpose=True)

    def _product(self, x: Tensor, scores: Tensor, transpose: bool) -> Tensor:
        exp, peak = self._exponential if values_visible(x) else (None, None)
        if exp is not None and transpose:
            exp = exp.mT
        if self.shared:
            return log_matmul(x, scores, exp, peak)
        return log_matmul(x.unsqueeze(-2), scores, exp, peak).squeeze(-2)

    def rows(self, tags: Tensor) -> Tensor:
        """pair[e, tags[e], :]: [B, m] -> [B, m, T]."""
        if self.shared:
            return self.scores[tags]
        index = tags[..., None, None].expand(*tags.shape, 1, self.scores.shape[-1])
        return self.scores.gather(-2, index).squeeze(-2)


@dataclass(frozen=True, eq=False)
class Arcs:
    """A folded, trimmed chain: n positions, m = max(n - 1, 0) edges.

    Attributes:
        left, right: [B, m, T], unary shares of the two ends of each edge; -inf at dead tags.
            Finite and without meaning beyond the length.
        pair: scores of tag pairs.
        alone: [B, n, T], the unary scores of sentences of length 1, which have no edge.
        live: bool [B, n, T], tags on some path; False beyond the length.
        lengths: [B].
    """

    left: Tensor
    right: Tensor
    pair: Pairs
    alone: Tensor
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
    def free(self) -> Tensor:
        """bool [B, n, T]: live tags at interior positions, where flow has to be conserved."""
        interior = self.inside & ~self.last & (self.position > 0)
        return self.live & interior.unsqueeze(-1)

    @property
    def unary(self) -> Tensor:
        """The unary scores [B, n, T] that were folded; 0 beyond the length."""
        edge = self.edge.unsqueeze(-1)
        after = torch.where(edge, self.left, 0.0)
        before = torch.where(edge, self.right, 0.0)
        none = torch.zeros_like(self.alone[:, :1])
        return self.alone + torch.cat([after, none], 1) + torch.cat([none, before], 1)

    @property
    def final_messages(self) -> Tensor:
        """[B, n, T]: log weight of what follows a tag where nothing does, at and beyond the last
        position: 0, or -inf at dead tags (and `alone`, which sums start from in one word)."""
        dead = self.inside.unsqueeze(-1) & ~self.live
        return self.alone.masked_fill(dead, -math.inf)

    def detach(self) -> Arcs:
        return self._map(Tensor.detach)

    def with_scores(
        self, left: Tensor, scores: Tensor, right: Tensor, alone: Tensor | None = None
    ) -> Arcs:
        """The same graph with other scores."""
        alone = self.alone if alone is None else alone
        return replace(self, left=left, pair=Pairs(scores), right=right, alone=alone)

    def to(self, dtype: torch.dtype) -> Arcs:
        return self._map(lambda scores: scores.to(dtype))

    def __truediv__(self, tau: float | Tensor) -> Arcs:
        return self._map(lambda scores: scores / tau)

    def _map(self, function: Callable[[Tensor], Tensor]) -> Arcs:
        return self.with_scores(
            *map(function, (self.left, self.pair.scores, self.right, self.alone))
        )

    def scores(self, lam: Tensor | None = None) -> Tensor:
        """All arcs at once, [B, m, T, T], reduced by the dual `lam` [B, n, T] where given."""
        left, right = (self.left, self.right) if lam is None else self.reduced(lam)
        return left.unsqueeze(-1) + self.pair.scores + right.unsqueeze(-2)

    def reduced(self, lam: Tensor) -> tuple[Tensor, Tensor]:
        """Shares of the arcs w[e, s, t] - lam[e, s] + lam[e+1, t]; paths keep their scores."""
        return self.left - lam[:, :-1], self.right + lam[:, 1:]

    def along(self, index: Tensor, lam: Tensor) -> Tensor:
        """Reduced arc scores [B, m] along the tags `index` [B, n]; 0 beyond the length."""
        left, right = self.reduced(lam)
        before, after = index[:, :-1].unsqueeze(-1), index[:, 1:].unsqueeze(-1)
        pair = self.pair.rows(index[:, :-1]).gather(-1, after)
        total = left.gather(-1, before) + pair + right.gather(-1, after)
        return torch.where(self.edge, total.squeeze(-1), 0.0)


def fold(chain: LinearChain) -> Arcs:
    """Fold and trim `chain`; NaN and sentences without a path are errors where values are read."""
    if not torch.is_grad_enabled():
        chain = chain.detach()  # all of it: the transitions are used as they are
    unary, transitions, live = _trim(chain)
    if checks_enabled(unary):
        lost = (chain.lengths > 0) & ~live.any(-1).any(-1)
        if bool(lost.any()):
            raise ValueError(
                f"sentence {int(lost.nonzero()[0])} has no path left: every tag sequence uses a "
                "removed (-inf) tag or transition"
            )
    dead = chain.mask.unsqueeze(-1) & ~live
    half = torch.where(live, unary, 0.0).masked_fill(dead, -math.inf) * 0.5
    full = torch.where((chain.first | chain.last).unsqueeze(-1), half * 2, half)
    alone = torch.where((chain.lengths == 1).view(-1, 1, 1), full, 0.0)
    return Arcs(full[:, :-1], full[:, 1:], Pairs(transitions), alone, live, chain.lengths)


def _trim(chain: LinearChain) -> tuple[Tensor, Tensor, Tensor]:
    """Scores without what lies beyond the lengths, and the live tags."""
    inside = chain.mask.unsqueeze(-1)
    transitions = chain.pair_scores
    if values_visible(chain.unary) and _all_finite(chain.unary) and _all_finite(transitions):
        return chain.unary, transitions, inside.expand_as(chain.unary)
    unary, transitions = checked_scores(chain)
    nodes = (unary != -math.inf) & inside
    return unary, transitions, live_tags(nodes, transitions != -math.inf, chain.lengths)


def checked_scores(chain: LinearChain) -> tuple[Tensor, Tensor]:
    """Unary and transition scores with 0 beyond the lengths; NaN is an error."""
    unary = torch.where(chain.mask.unsqueeze(-1), chain.unary, 0.0)
    transitions = chain.pair_scores
    if not chain.shared:
        transitions = torch.where(chain.mask[:, 1:, None, None], transitions, 0.0)
    _check_scores("unary", unary)
    _check_scores("transitions", transitions)
    return unary, transitions


def _all_finite(scores: Tensor) -> bool:
    if not scores.numel():
        return True
    low, high = torch.aminmax(scores.detach())
    return bool((low > -math.inf) & (high < math.inf))


def _check_scores(name: str, scores: Tensor) -> None:
    """NaN and +inf are errors that name the entry (where values may be read)."""
    if not checks_enabled(scores):
        return
    bad = ~(scores < math.inf)
    if bool(bad.any()):
        where = bad.nonzero()[0].tolist()
        value = float(scores.detach()[tuple(where)])
        raise ValueError(f"{name}{where} is {value}: scores are finite or -inf (removed)")
