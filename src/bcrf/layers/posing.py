"""From what a caller gives to the problem that solvers take, with errors in the caller's terms."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from ..chain import PAD, LinearChain
from ..inference import Solver
from ..structure import Structure
from .diagnosis import Posed, explain
from .masks import Layout, kept_positions
from .scores import ChainScores

__all__ = ["Posing"]

R = TypeVar("R")


class Posing(ChainScores):
    """Scores, a solver, and how a batch of emissions becomes a chain."""

    def __init__(
        self,
        num_tags: int,
        solver: Solver,
        batch_first: bool,
        constraints: Structure | None,
        penalty: float | None,
        shared_transitions: bool,
        start_end: bool,
    ) -> None:
        if not callable(solver):
            raise TypeError(f"solver must be a solver such as bcrf.Bregman(10), got {solver!r}")
        super().__init__(num_tags, constraints, penalty, shared_transitions, start_end)
        self.solver = solver
        self.batch_first = batch_first

    def chain(
        self, emissions: Tensor, mask: Tensor | None = None, *, transitions: Tensor | None = None
    ) -> LinearChain:
        """The problem that the layer poses for these emissions, its removed positions gone: for
        every function of the library that takes a chain."""
        return self._pose(emissions, mask, transitions).chain

    def _pose(
        self,
        emissions: Tensor,
        mask: Tensor | None,
        transitions: Tensor | None,
        tags: Tensor | None = None,
        allowed: Tensor | None = None,
    ) -> Posed:
        self._check_emissions(emissions)
        size, device = emissions.shape[:2], emissions.device
        axes = "[B, n]" if self.batch_first else "[n, B]"
        keep = None
        if mask is not None:
            self._check_mask(mask)
            keep = self._turned(kept_positions(mask, size, axes, device))
        if tags is not None:
            tags = self._turned(_checked_tags(tags, size, axes).to(device))
            keep = tags != PAD if keep is None else keep & (tags != PAD)
        if allowed is not None:
            allowed = self._turned(_checked_sets(allowed, emissions.shape, axes).to(device))
        layout = Layout.of(keep)
        if transitions is not None:
            _check_pairs(transitions, emissions.shape, self.batch_first)
            if transitions.dim() == 4:
                transitions = layout.compact_pairs(self._turned(transitions))
        unary, pairs = self._scores(layout, self._turned(emissions), transitions)
        return Posed(
            LinearChain(unary, pairs, layout.lengths),
            layout,
            None if tags is None else layout.compact(tags),
            None if allowed is None else layout.compact(allowed),
        )

    def _scores(
        self, layout: Layout, emissions: Tensor, transitions: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Unary and pair scores of a chain, in float32 at least."""
        dtype = torch.promote_types(self.common_dtype(emissions, transitions), torch.float32)
        unary = layout.compact(emissions).to(dtype)
        start, end, pairs = self.own_scores(unary, transitions)
        if start is not None and end is not None and unary.shape[1]:
            unary = _add_ends(unary, torch.stack([start, end]), layout.lengths)
        return unary, pairs

    def _ask(self, question: Callable[[Posed], R], posed: Posed) -> R:
        """The answer; if there is none, what is wrong, in the caller's coordinates."""
        if torch.compiler.is_compiling():
            return question(posed)
        try:
            return question(posed)
        except ValueError as error:
            reason = explain(posed, self.constraints if self.penalty is None else None)
            if reason is None:
                raise
            raise ValueError(reason) from error

    def _turned(self, x: Tensor, dim: int = 0) -> Tensor:
        """From the caller's axes to batch first, and back."""
        return x if self.batch_first else x.transpose(dim, dim + 1)

    def _check_emissions(self, emissions: Tensor) -> None:
        axes = "[B, n, T]" if self.batch_first else "[n, B, T]"
        if not isinstance(emissions, Tensor):
            raise TypeError(f"emissions must be a tensor {axes}, got {type(emissions).__name__}")
        if emissions.dim() != 3:
            raise ValueError(f"emissions must be {axes}, got {list(emissions.shape)}")
        if emissions.shape[2] != self.num_tags:
            raise ValueError(
                f"emissions must be {axes} with T = {self.num_tags}, got {list(emissions.shape)}"
            )
        if not emissions.is_floating_point():
            raise TypeError(f"emissions must be floating point, got {emissions.dtype}")

    def _check_mask(self, mask: Tensor) -> None:
        """For a class that accepts fewer masks."""


def _checked_tags(tags: Tensor, size: torch.Size, axes: str) -> Tensor:
    if not isinstance(tags, Tensor):
        raise TypeError(f"tags must be a tensor, got {type(tags).__name__}")
    if tags.shape != size:
        raise ValueError(f"tags must be {axes} = {list(size)}, got {list(tags.shape)}")
    if tags.dtype == torch.bool or tags.is_floating_point() or tags.is_complex():
        raise TypeError(f"tags must be integers, got {tags.dtype}")
    return tags.long()


def _checked_sets(allowed: Tensor, size: torch.Size, axes: str) -> Tensor:
    if not isinstance(allowed, Tensor) or allowed.dtype != torch.bool:
        kind = allowed.dtype if isinstance(allowed, Tensor) else type(allowed).__name__
        raise TypeError(f"allowed must be a bool tensor, got {kind}")
    if allowed.shape != size:
        axes = axes.replace("]", ", T]")
        raise ValueError(f"allowed must be {axes} = {list(size)}, got {list(allowed.shape)}")
    return allowed


def _check_pairs(transitions: Tensor, size: torch.Size, batch_first: bool) -> None:
    if not isinstance(transitions, Tensor):
        raise TypeError(f"transitions must be a tensor, got {type(transitions).__name__}")
    if not transitions.is_floating_point():
        raise TypeError(f"transitions must be floating point, got {transitions.dtype}")
    one, two, tags = size
    axes = "[B, n-1, T, T]" if batch_first else "[n-1, B, T, T]"
    pairs = [one, max(two - 1, 0)] if batch_first else [max(one - 1, 0), two]
    if list(transitions.shape) not in ([tags, tags], [*pairs, tags, tags]):
        raise ValueError(
            f"transitions must be [T, T] = {[tags, tags]} or {axes} = {[*pairs, tags, tags]}, "
            f"got {list(transitions.shape)}"
        )


def _add_ends(unary: Tensor, ends: Tensor, lengths: Tensor | None) -> Tensor:
    """`unary` [B, n, T], n > 0, plus the scores of the first and the last tag, `ends` [2, T].

    One pass over the scores. What is added to an empty sentence is never read.
    """
    batch, n, num_tags = unary.shape
    if lengths is None:
        lengths = torch.full((batch,), n, device=unary.device)
    last = (lengths - 1).clamp(min=0)
    index = torch.stack([torch.zeros_like(last), last], 1).unsqueeze(-1)
    shape = (batch, 2, num_tags)
    return unary.scatter_add(1, index.expand(shape), ends.expand(shape))
