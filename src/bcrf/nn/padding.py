"""Ragged lists as tensors, and tensors without their padding."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["Packing", "padded"]


def padded(rows: Sequence[Sequence[int]], fill: int) -> Tensor:
    """int64 [len(rows), longest], `fill` beyond the end of a row."""
    width = max(map(len, rows), default=0)
    full = [[*row, *[fill] * (width - len(row))] for row in rows]
    return torch.tensor(full, dtype=torch.int64).view(len(rows), width)


class Packing:
    """Where the N words and P adjacent pairs of B sentences are in padded tensors.

    Work on each word or pair is done on packed tensors, [N, ...] and [P, ...], which have no
    padding. Sentences follow each other in them, so the neighbour of a word is in the next row.

    Attributes:
        left: int64 [P], row of each pair's first word; the second is in the row after it.
    """

    def __init__(self, lengths: Tensor, max_length: int) -> None:
        self.shape = (len(lengths), max_length)
        inside = torch.arange(max_length, device=lengths.device) < lengths.unsqueeze(1)
        pair = inside[:, 1:]
        self._words, self._pairs = _places(inside), _places(pair)
        rows = inside.flatten().cumsum(0).view(self.shape) - 1
        self.left = rows[:, :-1][pair]

    def pack(self, states: Tensor) -> Tensor:
        """[B, n, d] -> [N, d]."""
        flat = states.flatten(0, 1)
        return flat if self._words is None else F.embedding(self._words, flat)

    def unpack_words(self, rows: Tensor) -> Tensor:
        """[N, d] -> [B, n, d], zeros on the padding."""
        return _unpack(rows, self._words, *self.shape)

    def unpack_pairs(self, rows: Tensor) -> Tensor:
        """[P, d] -> [B, max(n - 1, 0), d], zeros on the padding."""
        batch, n = self.shape
        return _unpack(rows, self._pairs, batch, max(n - 1, 0))


def _places(inside: Tensor) -> Tensor | None:
    """Indices of the True entries of the flattened mask; None if that is all of them."""
    places = inside.flatten().nonzero().squeeze(1)
    return None if len(places) == inside.numel() else places


def _unpack(rows: Tensor, places: Tensor | None, batch: int, n: int) -> Tensor:
    if places is not None:
        rows = rows.new_zeros(batch * n, rows.shape[1]).index_copy(0, places, rows)
    return rows.view(batch, n, rows.shape[1])
