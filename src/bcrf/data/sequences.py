"""Sequences of many small objects that are not all in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar, overload

__all__ = ["ComputedSequence"]

Item = TypeVar("Item")


class ComputedSequence(Sequence[Item], Generic[Item]):
    """A sequence whose items are made when they are asked for.

    A tuple of two numbers takes 120 bytes; for a sentence of a million words that is too much.

    Args:
        length: number of items.
        item: the item at an index.
    """

    def __init__(self, length: int, item: Callable[[int], Item]) -> None:
        self._range, self._item = range(length), item

    def __len__(self) -> int:
        return len(self._range)

    def __iter__(self) -> Iterator[Item]:
        return map(self._item, self._range)

    @overload
    def __getitem__(self, index: int) -> Item: ...

    @overload
    def __getitem__(self, index: slice) -> list[Item]: ...

    def __getitem__(self, index: int | slice) -> Item | list[Item]:
        if isinstance(index, slice):
            return [self._item(i) for i in self._range[index]]
        return self._item(self._range[index])
