"""Viterbi for one long sentence whose scores do not fit in memory at once."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from ..chain import LinearChain
from ..kernels.folded_chain import checked_scores

__all__ = ["windowed_viterbi"]

# We convert the backpointers of this many positions to Python numbers at a time.
_TRACED = 1024


@torch.no_grad()
def windowed_viterbi(windows: Iterable[LinearChain], length: int) -> Tensor:
    """Return a best tag sequence, int64 [n] on the CPU, of a sentence that is given in windows.

    The score of the best path to each tag is carried from window to window in float64. The sums are
    those of `viterbi`, so the result is that of `viterbi` on the whole chain. Only the backpointers
    of the whole sentence are kept in memory: one byte per position and tag for up to 256 tags.

    Args:
        windows: chains of one sentence without padding. The first position of a window repeats the
            last position of the previous window; the unary scores of this position count once.
        length: n, at least 1.
    """
    best: Tensor | None = None  # [T]: score of the best path to each tag of the last position
    done = 0
    for window in windows:
        unary, pair = (scores.to("cpu", torch.float64) for scores in checked_scores(window))
        if best is None:
            best = unary[0, 0]
            # One tensor for all windows: many small tensors would fragment the memory.
            pointers = torch.empty(length - 1, len(best), dtype=_pointer_dtype(len(best)))
        best, sources = _forward(best, unary[0, 1:], pair if pair.dim() == 2 else pair[0])
        pointers[done : done + len(sources)] = sources
        done += len(sources)
    if best is None or done != length - 1:
        raise ValueError(f"the windows have {done + 1} positions, expected length = {length}")
    if not bool(best.max() > -math.inf):
        raise ValueError(
            "the sentence has no path left: every tag sequence uses a removed (-inf) tag or "
            "transition"
        )
    return _trace_back(int(best.argmax()), pointers)


def _forward(best: Tensor, unary: Tensor, pair: Tensor) -> tuple[Tensor, Tensor]:
    """Extend the best paths by m positions with scores `unary` [m, T] and `pair` [(m,) T, T].

    Return the scores [T] at the last position, and backpointers int64 [m, T]: the previous tag on
    the best path to each tag.
    """
    sources = torch.empty(unary.shape, dtype=torch.int64)
    # The loop reuses its memory: an allocation per position would cost as much as a sum.
    best, arriving = best.clone(), torch.empty_like(best)
    arcs = best.new_empty(len(best), len(best))
    pairs = [pair] * len(unary) if pair.dim() == 2 else pair.unbind(0)
    leaving = best.unsqueeze(-1)
    for edge, scores, source in zip(pairs, unary.unbind(0), sources.unbind(0), strict=True):
        torch.add(edge, leaving, out=arcs)
        torch.max(arcs, 0, out=(arriving, source))
        torch.add(arriving, scores, out=best)
    return best, sources


def _pointer_dtype(num_tags: int) -> torch.dtype:
    return torch.uint8 if num_tags <= 256 else torch.int16 if num_tags <= 1 << 15 else torch.int32


def _trace_back(tag: int, pointers: Tensor) -> Tensor:
    """Return the tags [n] of the best path that ends in `tag`, from backpointers [n - 1, T]."""
    path = torch.empty(len(pointers) + 1, dtype=torch.int64)
    path[-1] = tag
    for stop in range(len(pointers), 0, -_TRACED):
        start = max(0, stop - _TRACED)
        tags = []
        for sources in reversed(pointers[start:stop].tolist()):
            tag = sources[tag]
            tags.append(tag)
        path[start:stop] = torch.tensor(tags[::-1])
    return path
