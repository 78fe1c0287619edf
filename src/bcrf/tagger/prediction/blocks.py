"""The chain of a long sentence, computed block by block."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from ...chain import LinearChain
from ..tasks import Example

__all__ = ["BlockedChain"]


class _Block(NamedTuple):
    """The scores of a block of w positions.

    Args:
        unary: [1, w, T].
        transitions: [1, w, T, T], from each position of the block to the next one (the last block
            has w - 1); or [T, T], shared by all positions; or None.
    """

    unary: Tensor
    transitions: Tensor | None


class BlockedChain:
    """The chain of one sentence; memory holds only the blocks of the last call of `part`.

    The network scores every block in one pass over its tokens and `context` tokens on either side.
    So the scores of a position do not depend on the part that the caller requests. The context has
    at least one token for two reasons. Transitions read the next word. The start and end scores of
    a sentence must not be added at the edges of a block.

    Args:
        score: returns the chain of an example.
        example: the sentence.
        size: positions per block.
        context: tokens that the network reads on either side of a block, at least 1.
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
        """Return start and stop of each block."""
        n = len(self)
        return [(start, min(start + self.size, n)) for start in range(0, n, self.size)]

    def overlapping_blocks(self) -> list[tuple[int, int]]:
        """Return start and stop of each block, extended by the first position of the next block."""
        return [(start, min(stop + 1, len(self))) for start, stop in self.blocks()]

    def part(self, start: int, stop: int) -> LinearChain:
        """Return the chain of positions start, ..., stop - 1 as a batch of one; start < stop."""
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
        # Clone, because a slice would keep the scores of the context in memory.
        if transitions is not None and transitions.dim() == 4:
            transitions = transitions[:, start - first : stop - first].clone()
        return _Block(chain.unary[:, start - first : stop - first].clone(), transitions)


def _joined(parts: list[Tensor]) -> Tensor:
    """Concatenate parts [1, w, ...]; without a copy if there is only one."""
    return parts[0] if len(parts) == 1 else torch.cat(parts, 1)
