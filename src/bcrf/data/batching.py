"""Batches of sentences of similar length."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["LengthBatches"]


@dataclass(frozen=True, slots=True)
class LengthBatches:
    """Cuts sentences into batches of similar length, in an order that depends on the epoch alone.

    Exactly one of `sentences` and `tokens` is given.

    Args:
        lengths: the length of each sentence.
        sentences: how many sentences a batch has.
        tokens: how many tokens a batch has at most, counted with padding (its longest sentence
            times its sentences); a longer sentence is a batch by itself.
        seed: the order of an epoch is a function of the seed and the epoch's number, so a run that
            is resumed needs to know nothing else.
    """

    lengths: Sequence[int]
    sentences: int | None = None
    tokens: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if (self.sentences is None) == (self.tokens is None):
            raise ValueError(
                "give either sentences or tokens per batch; "
                f"got sentences={self.sentences}, tokens={self.tokens}"
            )
        for name in ("sentences", "tokens"):
            size = getattr(self, name)
            if size is not None and size < 1:
                raise ValueError(f"{name} must be at least 1, got {size}")

    def epoch(self, number: int, rank: int = 0, world: int = 1) -> list[list[int]]:
        """The batches of an epoch, as indices of sentences; each sentence occurs once.

        Among `world` processes, process `rank` gets its share of the same batches: every `world`-th
        sentence of each. All processes get as many batches; a share may be empty.
        """
        if not 0 <= rank < world:
            raise ValueError(f"rank must be in 0..{world - 1}, got {rank}")
        order = list(range(len(self.lengths)))
        chance = random.Random(f"{self.seed} {number}")
        chance.shuffle(order)  # which sentences of one length meet
        order.sort(key=self.lengths.__getitem__)
        batches = self._cut(order)
        chance.shuffle(batches)
        return [batch[rank::world] for batch in batches]

    def in_order(self) -> list[list[int]]:
        """Batches for evaluation: the same every time, by length."""
        return self._cut(sorted(range(len(self.lengths)), key=self.lengths.__getitem__))

    def _cut(self, order: list[int]) -> list[list[int]]:
        if self.sentences is not None:
            size = self.sentences
            return [order[start : start + size] for start in range(0, len(order), size)]
        assert self.tokens is not None
        batches: list[list[int]] = []
        room = 0  # for so many sentences as long as the next one, which is the longest yet
        for index in order:
            room = self.tokens // max(1, self.lengths[index])
            if batches and len(batches[-1]) < room:
                batches[-1].append(index)
            else:
                batches.append([index])
        return batches
