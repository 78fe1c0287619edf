"""The chain of a long sentence, computed in blocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from ..chain import LinearChain
from ..tasks import Example

__all__ = ["BlockedChain"]


class _Block(NamedTuple):
    """Scores of one block: unary [1, w, T], and transitions from each of its positions to the next
    one, [1, w, T, T] (one less at the end of the sentence), or [T, T], or None."""

    unary: Tensor
    transitions: Tensor | None


class BlockedChain:
    """The chain of one sentence, of which only the blocks of the last request are in memory.

    Every block is scored in one pass of the network over its own tokens and `context` tokens on
    either side. So the scores of a position are always the same, whichever part of the chain is
    asked for. At least one token of context is needed: scores of the first and last position of a
    sentence must not be added at the edges of a block, and transitions read the next word.

    Args:
        score: the chain of an example, within the limits of the input.
        example: the sentence.
        size: positions of a block.
        context: tokens on either side that the network reads along with a block, at least 1.
    """

    def __init__(
        self, score: Callable[[Example], LinearChain], example: Example, size: int, context: int
    ) -> None:
        self.example, self.size = example, size
        self._score, self._context = score, context
        self._blocks: dict[int, _Block] = {}

    def __len__(self) -> int:
        return len(self.example)

    def blocks(self) -> list[tuple[int, int]]:
        """First position and end of each block."""
        n = len(self)
        return [(start, min(start + self.size, n)) for start in range(0, n, self.size)]

    def overlapping_blocks(self) -> list[tuple[int, int]]:
        """The same for blocks that each go on to the first position of the next one."""
        return [(start, min(stop + 1, len(self))) for start, stop in self.blocks()]

    def part(self, start: int, stop: int) -> LinearChain:
        """The chain of positions start, ..., stop - 1 (at least one) as a batch of one."""
        numbers = range(start // self.size, (stop - 1) // self.size + 1)
        self._blocks = {k: block for k, block in self._blocks.items() if k in numbers}
        for k in numbers:
            if k not in self._blocks:
                self._blocks[k] = self._scored(k)
        unary, pairs = [], []
        for k in numbers:
            first = k * self.size
            unary.append(self._blocks[k].unary[:, max(0, start - first) : stop - first])
            transitions = self._blocks[k].transitions
            if transitions is None or transitions.dim() == 2:
                continue
            pairs.append(transitions[:, max(0, start - first) : max(0, stop - 1 - first)])
        return LinearChain(_joined(unary), _joined(pairs) if pairs else transitions)

    def _scored(self, number: int) -> _Block:
        start = number * self.size
        stop = min(start + self.size, len(self))
        first, last = max(0, start - self._context), min(len(self), stop + self._context)
        chain = self._score(self.example.part(first, last))
        transitions = chain.transitions
        # Copies: slices would keep the context in memory.
        if transitions is not None and transitions.dim() == 4:
            transitions = transitions[:, start - first : stop - first].clone()
        return _Block(chain.unary[:, start - first : stop - first].clone(), transitions)


def _joined(parts: list[Tensor]) -> Tensor:
    """Parts [1, w, ...] as one tensor; without a copy if there is only one."""
    return parts[0] if len(parts) == 1 else torch.cat(parts, 1)
