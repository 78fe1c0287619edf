"""Initial transition scores from the tag frequencies of a corpus."""

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
    """The log-probabilities of a Markov chain over tags with an end state.

    Args:
        start: [T], log p(first tag).
        follow: [T, T], log p(to | from).
        end: [T], log p(end | from).
    """

    start: Tensor
    follow: Tensor
    end: Tensor


def log_frequencies(
    sequences: Iterable[Sequence[int] | Tensor] | Tensor, num_tags: int, smoothing: float = 1.0
) -> LogFrequencies:
    """Return smoothed log frequencies of first tags, adjacent tags and last tags, in float64.

    Args:
        sequences: the tags of each sentence, as lists or tensors, or one tensor [B, n]. Positions
            with -100 are skipped.
        smoothing: a number > 0 that is added to every count.
    """
    check_number("smoothing", smoothing)
    if not 0 < smoothing < math.inf:
        raise ValueError(f"smoothing must be positive and finite, got {smoothing}")
    start = torch.full((num_tags,), float(smoothing), dtype=torch.float64)
    follow = torch.full((num_tags, num_tags + 1), float(smoothing), dtype=torch.float64)
    end = num_tags
    # `flat` holds all sentences in one sequence, with the extra tag `end` after each sentence.
    flat: list[int] = []
    for number, sequence in enumerate(sequences):
        tags = _checked_tags(sequence, number, num_tags)
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


def _checked_tags(sequence: Sequence[int] | Tensor, number: int, num_tags: int) -> list[int]:
    """Return the tags of sentence `number` without -100; raise if one is not in 0..T-1."""
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
