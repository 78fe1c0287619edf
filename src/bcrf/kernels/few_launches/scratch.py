"""Log-sums over the tags of one axis, in one block of memory that all steps of a call share.

The log form of a product of scores with a vector adds the vector to a buffer [..., T, T], and sums
exponentials over one of the two axes. `torch.logcumsumexp` does this in one launch, in place: each
entry becomes the log of the sum of the exponentials up to it, so the last one holds the result. It
is exact for scores of any range, and for -inf.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

__all__ = ["CHUNK", "Scratch", "log_sum"]

CHUNK = 1 << 26
"""The most numbers of a temporary, unless those of one sentence are more: 256 MB in float32.

Beyond this size a step treats a few sentences at a time, which takes more launches.
"""


class Scratch:
    """The memory of the temporaries [b, k, T, T] of one call, of which one is alive at a time.

    Args:
        like: [B, n, T], of the dtype and the device of the memory.
        rows: the most positions k of a temporary; None: n // 2, the most edges in half a sentence.
    """

    def __init__(self, like: Tensor, rows: int | None = None) -> None:
        self.batch, n, self.num_tags = like.shape
        self._rows = n // 2 if rows is None else rows
        per_sentence = self._rows * self.num_tags**2
        most = max(per_sentence, CHUNK)
        self._memory = like.new_empty(min(self.batch * per_sentence, most))

    def sentences(self, rows: int) -> Iterator[slice]:
        """Return slices of the batch, so that temporaries of `rows` positions fit."""
        size = max(1, CHUNK // max(1, rows * self.num_tags**2))
        for begin in range(0, self.batch, size):
            yield slice(begin, min(begin + size, self.batch))

    def block(self, sentences: slice, rows: int) -> Tensor:
        """Return the memory as [b, rows, T, T], with any content."""
        shape = (sentences.stop - sentences.start, rows, self.num_tags, self.num_tags)
        return self._memory[: math.prod(shape)].view(shape)


def log_sum(buffer: Tensor, dim: int) -> Tensor:
    """Return log sum exp of `buffer` over `dim` (-1 or -2), [...]; the buffer is overwritten.

    The result is a view of the buffer, or a new tensor on devices without `logcumsumexp`.
    """
    if not _has_logcumsumexp(buffer.device):
        peak = buffer.amax(dim, keepdim=True).clamp_(min=torch.finfo(buffer.dtype).min)
        return buffer.sub_(peak).exp_().sum(dim).log_().add_(peak.squeeze(dim))
    # Each row is read before it is written, as in `cumsum_`.
    torch.logcumsumexp(buffer, dim, out=buffer)
    return buffer.select(dim, -1)


def _has_logcumsumexp(device: torch.device) -> bool:
    return device.type != "mps"
