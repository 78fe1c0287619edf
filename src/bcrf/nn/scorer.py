"""From the states of words to the scores of tags and of adjacent tags."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..chain import LinearChain
from ..structure import Structure
from .padding import Packing

__all__ = ["Scorer"]


class Scorer(nn.Module):
    """Scores of a `LinearChain`, with h_i [width] the state of word i:

        unary[i] = U relu(V h_i),  plus `start` at the first word and `end` at the last
        transitions[i] = W relu(A h_i + B h_{i+1})  ("pairs"), or one matrix ("shared")

    What `structure` forbids is removed. Transitions that it forbids have no row in W: they cost no
    time.

    Args:
        width: of the states.
        tags: T.
        hidden: hidden width of both networks.
        transitions: "pairs", "shared" or "none".
        structure: None: everything is allowed.
        ends: whether `start` and `end` are learned.
    """

    may_start: Tensor
    may_end: Tensor
    may_follow: Tensor
    arcs: Tensor
    start: Tensor
    end: Tensor
    transitions: Tensor

    def __init__(
        self,
        width: int,
        tags: int,
        hidden: int,
        transitions: Literal["pairs", "shared", "none"] = "pairs",
        structure: Structure | None = None,
        ends: bool = True,
    ) -> None:
        super().__init__()
        if structure is None:
            structure = Structure(follow=torch.ones(tags, tags, dtype=torch.bool, device="cpu"))
        if structure.num_tags != tags:
            raise ValueError(f"the structure has {structure.num_tags} tags, expected {tags}")
        for name in ("start", "end", "follow"):
            self.register_buffer(f"may_{name}", getattr(structure, name), persistent=False)
        self.per_pair = transitions == "pairs"
        # V, A and B read the same states: one product serves them all.
        self.project = nn.Linear(width, 3 * hidden if self.per_pair else hidden)
        self.tags = nn.Linear(hidden, tags)
        self._add("start", ends, tags)
        self._add("end", ends, tags)
        if self.per_pair:
            arcs = structure.follow.flatten().nonzero().squeeze(1)
            self.register_buffer("arcs", arcs, persistent=False)
            self.pairs = nn.Linear(hidden, len(arcs))
        else:
            self._add("transitions", transitions == "shared", tags, tags)
            # Without any the chain says so.
            self.none = transitions == "none" and bool(structure.follow.all())

    def _add(self, name: str, learned: bool, *shape: int) -> None:
        """Scores that start at zero, and stay there unless they are learned."""
        if learned:
            self.register_parameter(name, nn.Parameter(torch.zeros(*shape)))
        else:
            self.register_buffer(name, torch.zeros(*shape), persistent=False)

    def forward(self, states: Tensor, lengths: Tensor) -> LinearChain:
        """States [B, n, width] and lengths [B] to a chain in float32 at least."""
        packing = Packing(lengths, states.shape[1])
        hidden = self.project(packing.pack(states))
        if not self.per_pair:
            transitions = None if self.none else _removed(self.transitions, self.may_follow)
            return LinearChain(self._unary(hidden, packing, lengths), transitions, lengths)
        hidden, left, right = hidden.chunk(3, -1)
        return LinearChain(
            self._unary(hidden, packing, lengths), self._pairs(left, right, packing), lengths
        )

    def _unary(self, hidden: Tensor, packing: Packing, lengths: Tensor) -> Tensor:
        unary = packing.unpack_words(_wide(self.tags(F.relu(hidden))))
        position = torch.arange(unary.shape[1], device=unary.device).unsqueeze(-1)
        first, last = position == 0, position == lengths.view(-1, 1, 1) - 1
        unary = unary + torch.where(first, _removed(self.start, self.may_start), 0.0)
        return unary + torch.where(last, _removed(self.end, self.may_end), 0.0)

    def _pairs(self, left: Tensor, right: Tensor, packing: Packing) -> Tensor:
        before, after = F.embedding(packing.left, left), F.embedding(packing.left + 1, right)
        scores = packing.unpack_pairs(_wide(self.pairs(F.relu(before + after))))
        tags = len(self.may_start)
        if len(self.arcs) < tags**2:
            scores = _Spread.apply(scores, self.arcs, tags**2)  # type: ignore[no-untyped-call]
        return scores.view(*scores.shape[:2], tags, tags)


class _Spread(torch.autograd.Function):
    """[..., A] -> [..., size]: columns are put where `places` [A] says, -inf elsewhere.

    Both ways are a selection of columns, which is faster than what `index_copy` does.
    """

    @staticmethod
    def forward(ctx: Any, columns: Tensor, places: Tensor, size: int) -> Tensor:
        ctx.save_for_backward(places)
        source = places.new_full((size,), len(places))
        source[places] = torch.arange(len(places), device=places.device)
        nothing = columns.new_full((*columns.shape[:-1], 1), -math.inf)
        return torch.cat([columns, nothing], -1).index_select(-1, source)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (places,) = ctx.saved_tensors
        return grads[0].index_select(-1, places), None, None


def _removed(scores: Tensor, allowed: Tensor) -> Tensor:
    """The scores, -inf where it is not allowed."""
    return torch.where(allowed, scores, -math.inf)


def _wide(scores: Tensor) -> Tensor:
    """In float32 at least: probabilities are asked for in the precision of the scores."""
    return scores.to(torch.promote_types(scores.dtype, torch.float32))
