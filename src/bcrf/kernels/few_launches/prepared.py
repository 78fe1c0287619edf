"""The scores of a chain without garbage beyond the lengths, and the masks that solvers need."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ...chain import LinearChain
from ...compat.caching import cached_property
from .liveness import live

__all__ = ["PreparedChain", "prepare"]


@dataclass(eq=False)
class PreparedChain:
    """The scores of a batch, detached.

    Attributes:
        raw_unary: [B, n, T], with any values beyond the lengths.
        pair: [T, T], shared by all edges, or [B, n-1, T, T], contiguous, 0 beyond the lengths and
            -inf where the structure forbids a transition. Kernels may overwrite the latter.
        lengths: [B].
        outside: bool [B, n], positions beyond the lengths.
        plain: whether all scores within the lengths are finite.
        chain: the chain that was prepared, with start and end scores.
    """

    raw_unary: Tensor
    pair: Tensor
    lengths: Tensor
    outside: Tensor
    plain: bool
    chain: LinearChain

    @property
    def shared(self) -> bool:
        return self.pair.dim() == 2

    @property
    def position(self) -> Tensor:
        return torch.arange(self.raw_unary.shape[1], device=self.raw_unary.device)

    @cached_property
    def unary(self) -> Tensor:
        """[B, n, T], 0 beyond the lengths."""
        return self.raw_unary.masked_fill(self.outside.unsqueeze(-1), 0.0)

    @cached_property
    def minus_inside(self) -> Tensor:
        """[B, n] in the dtype of the scores: -1 within the lengths, 0 beyond them."""
        return self.outside.to(self.raw_unary.dtype).sub_(1)

    @cached_property
    def live(self) -> Tensor | None:
        """bool [B, n, T], the live tags; None if all tags within the lengths are live."""
        return None if self.plain else live(self.chain, self.raw_unary, self.pair, self.outside)

    def edge_pairs(self, sentences: slice, edges: slice) -> Tensor:
        """Return the pair scores of some sentences and edges, [T, T] or [b, k, T, T]."""
        return self.pair if self.shared else self.pair[sentences, edges]

    def gold(self, tags: Tensor) -> tuple[Tensor, Tensor]:
        """Return `tags` [B, n] with 0 beyond the lengths, and s T + t of each edge, [B, m]."""
        index = tags.masked_fill(self.outside, 0)
        flat = torch.add(index[:, 1:], index[:, :-1], alpha=self.raw_unary.shape[-1])
        return index, flat

    def minus_one_hot(self, index: Tensor) -> Tensor:
        """Return [B, n, T]: -1 at the tags `index` within the lengths, 0 elsewhere."""
        source = self.minus_inside.unsqueeze(-1)
        return torch.zeros_like(self.raw_unary).scatter_(-1, index.unsqueeze(-1), source)

    def restrict(self, allowed: Tensor) -> PreparedChain:
        """Return the problem with the tags `allowed` (bool [B, n, T]) only; it shares the pairs."""
        chain = self.chain.restrict(allowed)
        rest = (self.pair, self.lengths, self.outside, False, chain)
        return PreparedChain(chain.unary, *rest)


def prepare(
    chain: LinearChain, start_end: Tensor | None = None, tau: float | Tensor | None = None
) -> PreparedChain:
    """Return the scores of `chain`, detached, with `start_end` [2T] added and divided by `tau`."""
    chain = chain.detach()
    if start_end is not None:
        chain = chain._add_start_end(start_end.detach())
    unary = chain.unary if tau is None else chain.unary / tau
    position = torch.arange(unary.shape[1], device=unary.device)
    outside = position >= chain.lengths.unsqueeze(1)
    pair = _pair_scores(chain, outside)
    if tau is not None and chain.raw_transitions is not None:
        pair = pair / tau if pair.dim() == 2 else pair.div_(tau)
    return PreparedChain(unary, pair, chain.lengths, outside, chain.known_finite, chain)


def _pair_scores(chain: LinearChain, outside: Tensor) -> Tensor:
    """Return the attribute `pair` of a prepared chain."""
    raw, structure = chain.raw_transitions, chain.structure
    if raw is None or raw.dim() == 2:
        return chain.pair_scores  # it holds the rules of the structure
    beyond = outside[:, 1:, None, None]
    clean = torch.empty(raw.shape, dtype=raw.dtype, device=raw.device)
    if structure is None:
        return torch.where(beyond, raw.new_zeros(()), raw, out=clean)
    removed = raw.new_full((), -math.inf)
    torch.where(structure.follow, raw, removed, out=clean)
    return clean.masked_fill_(beyond, 0.0)
