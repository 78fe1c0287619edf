"""Scores of tags and of adjacent tags from the states of words."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...chain import LinearChain
from ...checks import values_readable
from ...layers.transitions import (
    ConstraintScores,
    register_transition_parameters,
    transition_scores,
)
from ...structure import Structure
from .padding import Packing

__all__ = ["Scorer"]


class Scorer(nn.Module):
    """Compute the scores of a `LinearChain` from the states of words.

    With h_i [width] the state of word i:

        unary[i] = U relu(V h_i),  plus `start` at the first word and `end` at the last
        transitions[i] = W relu(A h_i + B h_{i+1})  ("pairs"), or one matrix ("shared")

    All scores are divided by `temperature`. Tags and transitions that `structure` forbids are
    removed. With "pairs", W has no rows for forbidden transitions, which saves time, unless
    `score_forbidden` asks for their scores.

    Args:
        width: width of the states.
        tags: number of tags, T.
        hidden: hidden width of both networks.
        transitions: "pairs", "shared" or "none".
        structure: the tags that may start and end a sentence and follow each other; None: all.
        ends: whether `start` and `end` are learned.
        temperature: tau > 0; the scores are divided by it.
        score_forbidden: give forbidden transitions scores as well, for mean field (see
            `MeanField.keep_forbidden`); needs "pairs". All other solvers obey `structure`.

    Example:
        >>> import torch
        >>> from bcrf.tagger.nn import Scorer
        >>> scorer = Scorer(width=8, tags=3, hidden=4)
        >>> chain = scorer(torch.zeros(2, 5, 8), torch.tensor([5, 3]))
        >>> chain.transitions.shape
        torch.Size([2, 4, 3, 3])
    """

    arcs: Tensor
    start: nn.Parameter | None
    end: nn.Parameter | None
    transitions: nn.Parameter | None

    def __init__(
        self,
        width: int,
        tags: int,
        hidden: int,
        transitions: Literal["pairs", "shared", "none"] = "pairs",
        structure: Structure | None = None,
        ends: bool = True,
        temperature: float = 1.0,
        score_forbidden: bool = False,
    ) -> None:
        super().__init__()
        if structure is None:
            structure = Structure(follow=torch.ones(tags, tags, dtype=torch.bool, device="cpu"))
        if structure.num_tags != tags:
            raise ValueError(
                f"structure has {structure.num_tags} tags; expected {tags}, the number of tags"
            )
        # Constraints are not weights. On the device "meta" (see `weight_shapes`) the computation of
        # their scores would import the compiler of torch.
        with torch.device("cpu"):
            self.constraints = ConstraintScores(structure)
        self.per_pair = transitions == "pairs"
        self.temperature, self.score_forbidden = temperature, score_forbidden
        # V, A and B read the same states: one product serves them all.
        self.project = nn.Linear(width, 3 * hidden if self.per_pair else hidden)
        self.tags = nn.Linear(hidden, tags)
        names = ("start", "end", "transitions")
        register_transition_parameters(self, tags, names, ends, transitions == "shared")
        if self.per_pair:
            scored = torch.ones_like(structure.follow) if score_forbidden else structure.follow
            arcs = scored.flatten().nonzero().squeeze(1)
            self.register_buffer("arcs", arcs, persistent=False)
            self.pairs = nn.Linear(hidden, len(arcs))

    @property
    def structure(self) -> Structure:
        """The tags that may start and end a sentence and follow each other; on the CPU."""
        return self.constraints.structure

    def forward(
        self, states: Tensor, lengths: Tensor, packing: Packing | None = None
    ) -> LinearChain:
        """Return the chain of states [B, n, width] and lengths [B], in float32 or float64.

        `packing` is `Packing.of(lengths, n)`, which is computed here if it is not given.
        """
        if packing is None:
            packing = Packing.of(lengths, states.shape[1])
        hidden = self.project(packing.pack(states))
        left = right = None
        if self.per_pair:
            hidden, left, right = hidden.chunk(3, -1)
        unary = packing.unpack_words(self._final(self.tags(F.relu(hidden))))
        own = (self.start, self.end, self.transitions)
        costs = transition_scores(unary, *own, None, self.constraints)
        start_end, transitions = (None if c is None else self._final(c) for c in costs)
        if left is not None and right is not None:
            transitions = self._pairs(left, right, packing)
        chain = self._declared(LinearChain(unary, transitions, lengths))
        return chain if start_end is None else chain._add_start_end(start_end)

    def _final(self, scores: Tensor) -> Tensor:
        """Return scores at the temperature, in float32 or float64; autocast may give bfloat16."""
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
        return scores if self.temperature == 1 else scores / self.temperature

    def _declared(self, chain: LinearChain) -> LinearChain:
        """Return `chain` with its structure, and the promise that nothing else removes tags.

        The scores of the network are finite. Unless `score_forbidden`, `transitions` are -inf
        already where the structure forbids them, and `start` and `end` will be. On a CPU solvers
        then read the scores instead: there a structure would cost one copy of the scores of pairs
        for each solution.
        """
        readable = values_readable(chain.unary)
        if readable and not self.score_forbidden:
            return chain
        rules = self.constraints.place(chain.device, chain.unary.dtype).structure
        fields = (chain.unary, chain.raw_transitions, chain.lengths, chain.dtype)
        return LinearChain._new(*fields, rules, finite=not readable)

    def _pairs(self, left: Tensor, right: Tensor, packing: Packing) -> Tensor:
        before, after = F.embedding(packing.left, left), F.embedding(packing.left + 1, right)
        scores = packing.unpack_pairs(self._final(self.pairs(F.relu(before + after))))
        tags = self.structure.num_tags
        if len(self.arcs) < tags**2:
            scores = _ScatterColumns.apply(scores, self.arcs, tags**2)  # type: ignore[no-untyped-call]
        return scores.view(*scores.shape[:2], tags, tags)


class _ScatterColumns(torch.autograd.Function):
    """Scatter columns [B, m, A] to the indices `target` [A] of [B, m, size]; the others are -inf.

    Both forward and backward are an `index_select`, which is faster than `index_copy`. It selects
    columns of a matrix: of a tensor with three dimensions, torch selects them 30 times as slowly.
    """

    @staticmethod
    def forward(ctx: Any, columns: Tensor, target: Tensor, size: int) -> Tensor:
        ctx.save_for_backward(target)
        source = target.new_full((size,), len(target))  # by default, the column of -inf
        source[target] = torch.arange(len(target), device=target.device)
        rows = columns.flatten(0, 1)
        removed = rows.new_full((len(rows), 1), -math.inf)
        scattered = torch.cat([rows, removed], 1).index_select(1, source)
        return scattered.view(*columns.shape[:2], size)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (target,) = ctx.saved_tensors
        selected = grads[0].flatten(0, 1).index_select(1, target)
        return selected.view(*grads[0].shape[:2], len(target)), None, None
