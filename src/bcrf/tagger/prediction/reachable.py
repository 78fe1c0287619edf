"""The tags that a legal path can have at each position of a long sentence."""

from __future__ import annotations

from array import array
from collections.abc import Iterable

import torch
from torch import Tensor

__all__ = ["ReachableTagSets"]


class ReachableTagSets:
    """The tags that a path from one end of the sentence can reach at each position.

    A sentence has few different sets of reachable tags. So each step from one set to another is
    computed once, and a position stores only the number of its set.

    Args:
        first: bool [T], tags that are permitted where the paths begin.
        follow: bool [T, T], the tags that may come after each tag on a path.
        permitted: bool [w, T] for consecutive positions on a path: the tags that the text permits.
    """

    def __init__(self, first: Tensor, follow: Tensor, permitted: Iterable[Tensor]) -> None:
        self._sets: list[Tensor] = []
        self._numbers = array("i")
        known: dict[bytes, int] = {}
        steps: dict[tuple[int, bytes], int] = {}
        number = -1  # before the first position
        for masks in permitted:
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
        """Return the reachable tags, bool [T], `distance` steps after the start of the paths."""
        return self._sets[self._numbers[distance]]
