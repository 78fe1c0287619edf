"""Word pieces of sentences, in overlapping windows for pretrained encoders."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .padding import padded

__all__ = ["Frame", "Pieces", "Windows", "spans"]


@dataclass(frozen=True)
class Pieces:
    """The ids of the pieces of a sentence, and the index of the first piece of each word."""

    ids: tuple[int, ...]
    first: tuple[int, ...]

    def __len__(self) -> int:
        """Return the number of words."""
        return len(self.first)


@dataclass(frozen=True)
class Windows:
    """W windows of up to L pieces from B sentences of up to n words.

    Args:
        pieces: int64 [W, L], piece ids.
        mask: bool [W, L], False in the padding.
        index: int64 [B, n], index in [W * L] of the state of each word; 0 in the padding.
        lengths: int64 [B], number of words of each sentence.
    """

    pieces: Tensor
    mask: Tensor
    index: Tensor
    lengths: Tensor


@dataclass(frozen=True)
class Frame:
    """The shape of the windows of an encoder.

    Args:
        size: largest number of pieces of a window, including `before` and `after`.
        before, after: special pieces at the beginning and the end of every window.
        padding: the piece that fills up shorter windows.
    """

    size: int
    before: tuple[int, ...]
    after: tuple[int, ...]
    padding: int

    def __post_init__(self) -> None:
        if self.capacity < 2:
            special = len(self.before) + len(self.after)
            raise ValueError(
                f"window must be at least {special + 2}, because {special} of its pieces are "
                f"special; got {self.size}"
            )

    @property
    def capacity(self) -> int:
        """The largest number of pieces of a sentence that fit into one window."""
        return self.size - len(self.before) - len(self.after)

    def windows(self, sentences: Sequence[Pieces], overlap: int | None = None) -> Windows:
        """Return the windows of these sentences.

        Adjacent windows of a sentence share `overlap` pieces; None: about a half of them. The state
        of a word comes from the window in which its first piece is farthest from an edge. The start
        and the end of the sentence do not count as edges.
        """
        rows: list[list[int]] = []
        places: list[list[tuple[int, int]]] = []  # (window, column) of each word
        for sentence in sentences:
            cuts = spans(len(sentence.ids), self.capacity, overlap)
            chosen = _farthest_from_edges(sentence.first, cuts, len(sentence.ids))
            places.append(
                [
                    (len(rows) + w, len(self.before) + piece - cuts[w][0])
                    for piece, w in zip(sentence.first, chosen, strict=True)
                ]
            )
            rows += [[*self.before, *sentence.ids[a:b], *self.after] for a, b in cuts]
        width = max(map(len, rows), default=0)
        sizes = torch.tensor([len(row) for row in rows], dtype=torch.int64)
        return Windows(
            padded(rows, self.padding),
            torch.arange(width) < sizes.unsqueeze(1),
            padded([[w * width + column for w, column in words] for words in places], 0),
            torch.tensor([len(words) for words in places], dtype=torch.int64),
        )


def spans(total: int, size: int, overlap: int | None = None) -> list[tuple[int, int]]:
    """Return spans of at most `size` that cover 0..total.

    Adjacent spans overlap by `overlap` (None: about a half), the last two perhaps by more.
    """
    if not total:
        return []
    step = (size + 1) // 2 if overlap is None else size - overlap
    if not 1 <= step <= size:
        raise ValueError(
            f"stride must be in 0..{size - 1}, because {size} pieces of the text fit into a "
            f"window; got {overlap}"
        )
    last = max(total - size, 0)
    starts = [*range(0, last, step), last]
    return [(start, min(start + size, total)) for start in starts]


def _farthest_from_edges(
    positions: Sequence[int], cuts: Sequence[tuple[int, int]], total: int
) -> list[int]:
    """Return, for each position, the index of the span in which it is farthest from an edge.

    The ends of the sentence, 0 and `total`, do not count as edges. From span to span, the distance
    of a position to the left edge falls and that to the right edge rises. So the best span of a
    position is not before the best span of an earlier position, and one pass finds all of them.

    Args:
        positions: in ascending order.
    """

    def distance(position: int, number: int) -> float:
        start, stop = cuts[number]
        if not start <= position < stop:
            return -1.0
        left = math.inf if start == 0 else position - start
        right = math.inf if stop == total else stop - 1 - position
        return min(left, right)

    chosen: list[int] = []
    number = 0
    for position in positions:
        while position >= cuts[number][1] or (
            number + 1 < len(cuts) and distance(position, number + 1) > distance(position, number)
        ):
            number += 1
        chosen.append(number)
    return chosen
