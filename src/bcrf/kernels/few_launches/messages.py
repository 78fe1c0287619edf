"""Forward and backward messages of the exact CRF, both directions in the same launches."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ...numerics.logspace import widest_dtype
from .prepared import PreparedChain
from .scratch import log_sum

__all__ = ["Messages", "sequential_messages", "subtract_peak"]

# The messages of both directions grow by the scores of each position. We subtract their maximum
# every few steps, because each time takes two launches.
_STEPS_PER_PEAK = 4


class Messages(NamedTuple):
    """Messages up to a constant per position, and the log-partition A(w).

    Args:
        alpha: [B, n, T], log weight of all partial paths to a tag, with its unary score.
        beta: [B, n, T], log weight of all continuations of a tag, with its unary score.
        total: [B], in float64 where the device has it; no meaning for empty sentences.
    """

    alpha: Tensor
    beta: Tensor
    total: Tensor


def sequential_messages(problem: PreparedChain) -> Messages:
    """Return the messages of a chain with n > 0 by one loop over the positions.

    The second direction runs over the reversed sentences. With shared transitions, each sentence is
    reversed by itself, so both directions begin at position 0 and need no mask:

        direction 0    y_0 y_1 y_2  .   .
        direction 1    y_2 y_1 y_0  .   .

    With one matrix per edge we reverse the whole batch instead, which copies no matrices. All
    scores beyond the lengths are 0 there, so the messages remain constants until the sentence
    begins.
    """
    unary, lengths = problem.unary, problem.lengths
    batch, n, num_tags = unary.shape
    if problem.shared:
        mirror = (lengths.unsqueeze(1) - 1 - problem.position).clamp_(min=0)
        mirror = mirror.unsqueeze(-1).expand_as(unary)
        scores = torch.stack([unary, unary.gather(1, mirror)])
        pairs = torch.stack([problem.pair, problem.pair.mT]).unsqueeze(1)
    else:
        scores = torch.stack([unary, unary.flip(1)])
    states = torch.empty_like(scores)
    states[:, :, 0] = scores[:, :, 0]
    buffer = scores.new_empty(2, batch, num_tags, num_tags)
    peaks = []
    for i in range(1, n):
        before = states[:, :, i - 1].unsqueeze(-1)
        if problem.shared:
            torch.add(before, pairs, out=buffer)
        else:
            torch.add(before[0], problem.pair[:, i - 1], out=buffer[0])
            torch.add(before[1], problem.pair[:, n - 1 - i].mT, out=buffer[1])
        torch.add(log_sum(buffer, -2), scores[:, :, i], out=states[:, :, i])
        if i % _STEPS_PER_PEAK == 0:
            here = states[:, :, i]
            peaks.append(subtract_peak(problem, here, out=here)[0])
    alpha, mirrored = states.unbind(0)
    beta = mirrored.gather(1, mirror) if problem.shared else mirrored.flip(1)
    return Messages(alpha, beta, _total(problem, alpha, peaks))


def subtract_peak(problem: PreparedChain, messages: Tensor, out: Tensor) -> Tensor:
    """Write `messages` [..., T] minus their maximum to `out`, and return the maximum, [..., 1]."""
    peak = messages.amax(-1, keepdim=True)
    if not problem.plain:
        peak.clamp_(min=torch.finfo(peak.dtype).min)  # -inf - -inf is NaN
    torch.sub(messages, peak, out=out)
    return peak


def _total(problem: PreparedChain, alpha: Tensor, peaks: list[Tensor]) -> Tensor:
    """Return the log sum of the messages of the last positions, plus what was subtracted there."""
    wide = widest_dtype(alpha.device)
    last = (problem.lengths - 1).clamp_(min=0).view(-1, 1, 1).expand(-1, 1, alpha.shape[-1])
    total = log_sum(alpha.gather(1, last).squeeze(1).to(wide), -1)
    if not peaks:
        return total
    step = _STEPS_PER_PEAK
    subtracted = torch.cat(peaks, 1) * problem.minus_inside[:, step::step]
    return total - subtracted.sum(1, dtype=wide)
