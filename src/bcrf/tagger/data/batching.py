"""Batches of sentences of similar length."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["LengthBatches"]


@dataclass(frozen=True, slots=True)
class LengthBatches:
    """Groups sentences of similar length into batches, in a new order for each epoch.

    Exactly one of `sentences` and `tokens` must be given.

    Args:
        lengths: the length of each sentence.
        sentences: the number of sentences of a batch.
        tokens: the maximal number of tokens of a batch, including padding (the length of its
            longest sentence times the number of sentences). A longer sentence is a batch by itself.
        seed: seed of the order. The order of an epoch is a function of the seed and the number of
            the epoch, so a resumed run needs no other state.

    Example:
        >>> batches = LengthBatches([3, 9, 4, 8], sentences=2)
        >>> batches.in_order()
        [[0, 2], [3, 1]]
    """

    lengths: Sequence[int]
    sentences: int | None = None
    tokens: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if (self.sentences is None) == (self.tokens is None):
            raise ValueError(
                "expected either sentences or tokens per batch; "
                f"got sentences={self.sentences}, tokens={self.tokens}"
            )
        for name in ("sentences", "tokens"):
            size = getattr(self, name)
            if size is not None and size < 1:
                raise ValueError(f"{name} must be at least 1, got {size}")

    def epoch(self, number: int, rank: int = 0, world: int = 1) -> list[list[int]]:
        """Return the batches of an epoch, as indices of sentences; each sentence occurs once.

        With `world` processes, process `rank` gets every `world`-th sentence of each batch. All
        processes get the same number of batches; a process's part of a batch may be empty.
        """
        if not 0 <= rank < world:
            raise ValueError(f"rank must be in 0..{world - 1}, got {rank}")
        order = list(range(len(self.lengths)))
        generator = random.Random(f"{self.seed} {number}")
        generator.shuffle(order)  # so that sentences of equal length are grouped anew in each epoch
        order.sort(key=self.lengths.__getitem__)
        batches = self._cut(order)
        generator.shuffle(batches)
        return [batch[rank::world] for batch in batches]

    def in_order(self) -> list[list[int]]:
        """Return the batches for evaluation: sorted by length, the same every time."""
        return self._cut(sorted(range(len(self.lengths)), key=self.lengths.__getitem__))

    def _cut(self, order: list[int]) -> list[list[int]]:
        if self.sentences is not None:
            size = self.sentences
            return [order[start : start + size] for start in range(0, len(order), size)]
        assert self.tokens is not None
        batches: list[list[int]] = []
        for index in order:
            # The lengths increase, so this sentence sets the padded length of its batch.
            capacity = self.tokens // max(1, self.lengths[index])
            if batches and len(batches[-1]) < capacity:
                batches[-1].append(index)
            else:
                batches.append([index])
        return batches
