"""Padding of lists to tensors, and packed tensors without padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["Packing", "padded"]


def padded(rows: Sequence[Sequence[int]], fill: int) -> Tensor:
    """Return int64 [len(rows), longest row], with `fill` after the end of each row."""
    width = max(map(len, rows), default=0)
    full = [[*row, *[fill] * (width - len(row))] for row in rows]
    return torch.tensor(full, dtype=torch.int64).view(len(rows), width)


@dataclass(frozen=True)
class Packing:
    """Conversion between padded tensors [B, n, d] and packed ones without padding.

    A packed tensor has a row for each of the N words, [N, d], or for each of the P pairs of
    adjacent words, [P, d]. Sentences follow each other, so the next word is in the next row.

    Args:
        shape: B and n.
        words: int64 [N], index of each word in [B * n]; None: there is no padding.
        pairs: int64 [P], index of each pair in [B * (n - 1)]; None: there is no padding.
        left: int64 [P], row of the first word of each pair; the second word is in the next row.
    """

    shape: tuple[int, int]
    words: Tensor | None
    pairs: Tensor | None
    left: Tensor

    @classmethod
    def of(cls, lengths: Tensor, max_length: int) -> Packing:
        """Return the packing of sentences of these lengths (int64 [B]), padded to `max_length`.

        N and P are the shapes of tensors, so the host waits for the device of `lengths`. `collate`
        therefore packs on the CPU.
        """
        shape = (len(lengths), max_length)
        inside = torch.arange(max_length, device=lengths.device) < lengths.unsqueeze(1)
        pair = inside[:, 1:]
        rows = inside.flatten().cumsum(0).view(shape) - 1
        return cls(shape, _places(inside), _places(pair), rows[:, :-1][pair])

    def pack(self, states: Tensor) -> Tensor:
        """Return the states [B, n, d] of all words as [N, d]."""
        flat = states.flatten(0, 1)
        return flat if self.words is None else F.embedding(self.words, flat)

    def unpack_words(self, rows: Tensor) -> Tensor:
        """Return rows [N, d] as [B, n, d], with zeros in the padding."""
        return _unpack(rows, self.words, *self.shape)

    def unpack_pairs(self, rows: Tensor) -> Tensor:
        """Return rows [P, d] as [B, max(n - 1, 0), d], with zeros in the padding."""
        batch, n = self.shape
        return _unpack(rows, self.pairs, batch, max(n - 1, 0))


def _places(inside: Tensor) -> Tensor | None:
    """Return the indices of the True entries of the flattened mask; None if all are True."""
    places = inside.flatten().nonzero().squeeze(1)
    return None if len(places) == inside.numel() else places


def _unpack(rows: Tensor, places: Tensor | None, batch: int, n: int) -> Tensor:
    if places is not None:
        rows = rows.new_zeros(batch * n, rows.shape[1]).index_copy(0, places, rows)
    return rows.view(batch, n, rows.shape[1])
