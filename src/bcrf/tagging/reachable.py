"""Which tags some path can have, at every position of a long sentence."""

from __future__ import annotations

from array import array
from collections.abc import Iterable

import torch
from torch import Tensor

__all__ = ["ReachableTags"]


class ReachableTags:
    """The tags at each position that some path from one end of the sentence leads to.

    There are few different sets of such tags in a sentence, and few different limits. Each step
    from a set to the next one is computed once, and positions hold numbers of sets.

    Args:
        first: bool [T], tags at the end of the sentence where paths begin.
        follow: bool [T, T], the tags that may come after each tag, away from that end.
        limits: bool [w, T] of consecutive positions, away from that end: the tags that they may
            have.
    """

    def __init__(self, first: Tensor, follow: Tensor, limits: Iterable[Tensor]) -> None:
        self._sets: list[Tensor] = []
        self._numbers = array("i")
        known: dict[bytes, int] = {}
        steps: dict[tuple[int, bytes], int] = {}
        number = -1  # before the first position
        for masks in limits:
            rows, index = torch.unique(masks, dim=0, return_inverse=True)
            keys = [bytes(row) for row in rows.tolist()]
            for row in index.tolist():
                step = (number, keys[row])
                if step not in steps:
                    tags = first if number < 0 else follow[self._sets[number]].any(0)
                    tags = tags & rows[row]
                    steps[step] = known.setdefault(bytes(tags.tolist()), len(known))
                    if steps[step] == len(self._sets):
                        self._sets.append(tags)
                number = steps[step]
                self._numbers.append(number)

    def __getitem__(self, distance: int) -> Tensor:
        """bool [T]: the tags at a position, by its distance from the end of the sentence."""
        return self._sets[self._numbers[distance]]
