"""Which positions count: from masks of any pattern to sequences without holes, and back.

A removed position is absent: the kept ones on both sides of it become neighbours. Solvers want the
kept positions first and the rest beyond a length, which is what most masks look like already.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..chain import PAD
from ..checks import checks_enabled, values_visible
from ..lazy import cached_property

__all__ = ["Layout", "compact", "kept_positions"]


@dataclass(frozen=True, eq=False)
class Layout:
    """Where the kept positions of B sentences stand, and where they go.

    Attributes:
        keep: bool [B, n]; None: every position is kept.
        lengths: int64 [B], how many are kept; None: all n.
        order: int64 [B, n], the caller's position of each compact one, the removed ones last; None
            if the kept positions come first already.
    """

    keep: Tensor | None = None
    lengths: Tensor | None = None
    order: Tensor | None = None

    @staticmethod
    def of(keep: Tensor | None) -> Layout:
        """The layout that keeps the positions `keep` (bool [B, n])."""
        if keep is None:
            return Layout()
        lengths = keep.sum(1)
        if values_visible(keep) and not bool((keep[:, 1:] > keep[:, :-1]).any()):
            return Layout(keep, lengths)
        # A permutation from running counts: no sort, and no shape that depends on a value.
        count = keep.cumsum(1)
        position = torch.arange(keep.shape[1], device=keep.device).expand_as(count)
        slot = torch.where(keep, count - 1, lengths.unsqueeze(1) + position - count)
        return Layout(keep, lengths, torch.zeros_like(slot).scatter(1, slot, position))

    def compact(self, x: Tensor) -> Tensor:
        """`x` [B, n, ...] with its kept positions first."""
        return x if self.order is None else _take_rows(x, self.order)

    def compact_pairs(self, pairs: Tensor) -> Tensor:
        """Scores [B, n-1, T, T] of adjacent pairs, for the pairs that are left.

        No score was given for two positions that have become neighbours: an error that names them.
        Where values are not looked at, the pair that enters the second of them serves.
        """
        if self.order is None or self.lengths is None or not pairs.shape[1]:
            return pairs
        before, after = self.order[:, :-1], self.order[:, 1:]
        if checks_enabled(pairs):
            inside = torch.arange(1, self.order.shape[1], device=pairs.device)
            gap = (inside < self.lengths.unsqueeze(1)) & (after != before + 1)
            if bool(gap.any()):
                sentence, edge = gap.nonzero()[0].tolist()
                i, j = int(before[sentence, edge]), int(after[sentence, edge])
                raise ValueError(
                    f"sentence {sentence}: positions {i} and {j} become neighbours when what lies "
                    f"between them is removed, but transitions [B, n-1, T, T] score the pairs of "
                    f"adjacent positions only; compute them from the kept positions alone "
                    f"(bcrf.layers.compact), and give a mask without holes"
                )
        return _take_rows(pairs, (after - 1).clamp(min=0))

    def restore_tags(self, tags: Tensor) -> Tensor:
        """Compact `tags` [..., B, n], back in their places; -100 at the others."""
        if self.order is None or self.keep is None:
            return tags  # beyond the lengths they are -100 already
        found = tags.gather(-1, self._slot.expand_as(tags))
        return torch.where(self.keep, found, PAD)

    def restore(self, x: Tensor) -> Tensor:
        """Compact `x` [B, n, K], back in its places; 0 at the others."""
        if self.order is None or self.keep is None:
            return x  # beyond the lengths it is 0 already
        return torch.where(self.keep.unsqueeze(-1), _take_rows(x, self._slot), 0.0)

    @cached_property
    def _slot(self) -> Tensor:
        """[B, n]: the compact position of each kept one."""
        assert self.keep is not None
        return (self.keep.cumsum(1) - 1).clamp(min=0)

    def slot(self, sentence: int, position: int) -> int | None:
        """The compact position of one of the caller's; None if it is not kept."""
        if self.keep is None:
            return position
        if not 0 <= position < self.keep.shape[1] or not bool(self.keep[sentence, position]):
            return None
        return int(self._slot[sentence, position])

    def lists(self, tags: Tensor) -> list[list[int]]:
        """Compact `tags` [B, n] as lists of the kept positions."""
        rows: list[list[int]] = tags.tolist()
        if self.lengths is None:
            return rows
        return [row[:length] for row, length in zip(rows, self.lengths.tolist(), strict=True)]

    def position(self, sentence: int, compact_position: int) -> int:
        """The caller's position of a compact one."""
        if self.order is None:
            return compact_position
        return int(self.order[sentence, compact_position])


def _take_rows(x: Tensor, index: Tensor) -> Tensor:
    """x[b, index[b, i]]: [B, n, ...], [B, m] -> [B, m, ...]. Whole rows at once: a `gather` takes
    five times as long on a CPU."""
    batch, n = x.shape[:2]
    first = torch.arange(batch, device=x.device).unsqueeze(1) * n
    rows = x.flatten(0, 1).index_select(0, (first + index).flatten())
    return rows.view(*index.shape, *x.shape[2:])


def compact(x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Remove masked positions: for scores of pairs that are to be computed from what is left.

    Args:
        x: [B, n, ...], hidden states for instance.
        mask: [B, n], of any pattern; 1 or True: kept.
    Returns:
        `x` with the kept positions of each sentence first, in their order, and the bool mask
        [B, n] that goes with it.
    """
    if x.dim() < 2:
        raise ValueError(f"x must be [B, n, ...], got {list(x.shape)}")
    keep = kept_positions(mask, x.shape[:2], "[B, n]", x.device)
    layout = Layout.of(keep)
    lengths = keep.sum(1, keepdim=True)
    return layout.compact(x), torch.arange(x.shape[1], device=x.device) < lengths


def kept_positions(mask: Tensor, shape: Sequence[int], axes: str, device: torch.device) -> Tensor:
    """`mask` as bool; of another type it has to hold 0 and 1 only."""
    if not isinstance(mask, Tensor):
        raise TypeError(f"mask must be a tensor, got {type(mask).__name__}")
    if tuple(mask.shape) != tuple(shape):
        raise ValueError(f"mask must be {axes} = {list(shape)}, got {list(mask.shape)}")
    mask = mask.to(device)
    if mask.dtype == torch.bool:
        return mask
    if checks_enabled(mask):
        odd = (mask != 0) & (mask != 1)
        if bool(odd.any()):
            # For instance an additive mask, in which 0 means kept.
            raise ValueError(
                f"mask holds {mask[odd][0].item()}: expected 1 (kept) and 0 (removed) only"
            )
    return mask != 0
