"""Transition scores from counted tags."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..chain import PAD
from ..checks import check_number

__all__ = ["LogFrequencies", "log_frequencies"]


class LogFrequencies(NamedTuple):
    """A Markov chain over tags that ends: log p(first tag) [T], log p(to | from) [T, T] and
    log p(end | from) [T]."""

    start: Tensor
    follow: Tensor
    end: Tensor


def log_frequencies(
    sequences: Iterable[Sequence[int] | Tensor] | Tensor, num_tags: int, smoothing: float = 1.0
) -> LogFrequencies:
    """Smoothed relative frequencies of what comes first, next and last, float64.

    Args:
        sequences: tags of each sentence, as lists or tensors (or one tensor [B, n]); -100 is left
            out.
        smoothing: added to every count, > 0.
    """
    check_number("smoothing", smoothing)
    if not 0 < smoothing < math.inf:
        raise ValueError(f"smoothing must be positive and finite, got {smoothing}")
    start = torch.full((num_tags,), float(smoothing), dtype=torch.float64)
    follow = torch.full((num_tags, num_tags + 1), float(smoothing), dtype=torch.float64)
    end = num_tags
    # One long sequence: pairs that would cross a sentence go through `end`.
    flat: list[int] = []
    for number, sequence in enumerate(sequences):
        tags = _tags(sequence, number, num_tags)
        if tags:
            start[tags[0]] += 1
            flat += tags
            flat.append(end)
    if flat:
        row = torch.tensor(flat)
        before, after = row[:-1], row[1:]
        pairs = (before * (num_tags + 1) + after)[before != end]
        counts = torch.bincount(pairs, minlength=num_tags * (num_tags + 1))
        follow += counts.view(num_tags, num_tags + 1)
    following = torch.log(follow / follow.sum(1, keepdim=True))
    return LogFrequencies(torch.log(start / start.sum()), following[:, :-1], following[:, -1])


def _tags(sequence: Sequence[int] | Tensor, number: int, num_tags: int) -> list[int]:
    """The tags of one sentence without -100, checked."""
    given = sequence.tolist() if isinstance(sequence, Tensor) else sequence
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise TypeError(f"tag_sequences[{number}] must be a sequence of tags, got {sequence!r}")
    for position, tag in enumerate(given):
        if isinstance(tag, bool) or not isinstance(tag, int):
            raise TypeError(f"tag_sequences[{number}][{position}] must be an int, got {tag!r}")
        if tag != PAD and not 0 <= tag < num_tags:
            raise ValueError(
                f"tag_sequences[{number}][{position}]: tag {tag} is not in 0..{num_tags - 1}"
            )
    return [tag for tag in given if tag != PAD]
