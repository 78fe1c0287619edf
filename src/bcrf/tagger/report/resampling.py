"""Confidence intervals and a paired test, by resampling sentences.

The words of a sentence are not independent of each other, but sentences nearly are. So whole
sentences are resampled. A score is a ratio of sums over sentences, such as right words / words.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

__all__ = ["approximate_randomisation", "bootstrap_interval", "paired_interval"]

RESAMPLES = 2000
"""Resamples of the bootstrap: the ends of an interval then vary by about 0.05 of its width."""

ROUNDS = 10_000
"""Rounds of the randomisation test: the least p-value is 1 / 10,001."""

LEVEL = 0.95
"""Share of the resamples whose scores lie in an interval."""

# Entries of the random matrices that are in memory at a time.
_CHUNK = 1 << 21


def bootstrap_interval(
    counts: Tensor, resamples: int = RESAMPLES, seed: int = 0, level: float = LEVEL
) -> tuple[float, float] | None:
    """Return the percentile bootstrap interval of the score sum(counts[:, 0]) / sum(counts[:, 1]).

    Each resample draws as many sentences as there are, with replacement.

    Args:
        counts: [S, 2], numerator and denominator of each sentence.
        resamples: number of resamples.
        seed: seed of the random numbers; the same seed gives the same interval.
        level: share of the resamples inside of the interval.

    Returns:
        None if the denominators are all 0.

    Example:
        >>> import torch
        >>> bootstrap_interval(torch.tensor([[1.0, 1.0]] * 9 + [[0.0, 1.0]]))
        (0.7, 1.0)
    """
    counts = counts.double()
    if not bool((counts[:, 1] != 0).any()):
        return None
    scores = torch.cat([_scores(weights @ counts) for weights in _draws(counts, resamples, seed)])
    return _percentiles(scores, level)


def paired_interval(
    first: Tensor,
    second: Tensor,
    resamples: int = RESAMPLES,
    seed: int = 0,
    level: float = LEVEL,
) -> tuple[float, float] | None:
    """Return the percentile bootstrap interval of the difference of two scores, first - second.

    Both scores are computed on the same resamples.

    Args:
        first, second: counts of the two systems on the same sentences, as for `bootstrap_interval`.

    Returns:
        None if the denominators of a system are all 0.

    Example:
        >>> import torch
        >>> first = torch.tensor([[1.0, 1.0]] * 10)
        >>> paired_interval(first, first)
        (0.0, 0.0)
    """
    first, second = first.double(), second.double()
    if any(not bool((counts[:, 1] != 0).any()) for counts in (first, second)):
        return None
    differences = [
        _scores(weights @ first) - _scores(weights @ second)
        for weights in _draws(first, resamples, seed)
    ]
    return _percentiles(torch.cat(differences), level)


def approximate_randomisation(
    first: Tensor, second: Tensor, rounds: int = ROUNDS, seed: int = 0
) -> float:
    """Return the two-sided p-value of the difference of two scores on the same sentences.

    If both systems were equally good, exchanging their results on a sentence would change nothing.
    Each round exchanges the results on a random half of the sentences. The p-value is the share of
    rounds, the observed one included, whose difference is at least as large as the observed one
    (Noreen 1989; Yeh 2000, More accurate tests for the statistical significance of result
    differences).

    Args:
        first, second: counts of the two systems, as for `bootstrap_interval`.

    Example:
        >>> import torch
        >>> first = torch.tensor([[1.0, 1.0]] * 10)
        >>> approximate_randomisation(first, first)
        1.0
    """
    first, second = first.double(), second.double()
    observed = _difference(first.sum(0), second.sum(0)).abs()
    change = second - first
    # Sentences with the same results on both sides change nothing.
    change = change[(change != 0).any(1)]
    generator = torch.Generator().manual_seed(seed)
    extreme = 0
    for size in _chunks(rounds, len(change)):
        swapped = torch.rand(size, len(change), generator=generator) < 0.5
        moved = swapped.double() @ change
        difference = _difference(first.sum(0) + moved, second.sum(0) - moved)
        # The tolerance covers rounding of the quotients; counts are exact.
        extreme += int((difference.abs() >= observed - 1e-12).sum())
    return (1 + extreme) / (1 + rounds)


def _difference(first: Tensor, second: Tensor) -> Tensor:
    """Return the difference of the scores of two rows of counts; a score without items is 0."""
    return _scores(first).nan_to_num(0.0) - _scores(second).nan_to_num(0.0)


def _scores(sums: Tensor) -> Tensor:
    """Return numerators / denominators [...] of sums [..., 2]; NaN where a denominator is 0."""
    return torch.where(sums[..., 1] == 0, torch.nan, sums[..., 0] / sums[..., 1])


def _draws(counts: Tensor, resamples: int, seed: int) -> Iterator[Tensor]:
    """Yield how often each sentence is drawn in some resamples, float64 [r, S]."""
    total = len(counts)
    generator = torch.Generator().manual_seed(seed)
    for size in _chunks(resamples, total):
        drawn = torch.randint(total, (size, total), generator=generator)
        weights = torch.zeros(size, total, dtype=torch.float64)
        yield weights.scatter_add_(1, drawn, torch.ones_like(drawn, dtype=torch.float64))


def _chunks(rounds: int, width: int) -> Iterator[int]:
    """Yield numbers of rounds that fit into memory at a time; their sum is `rounds`."""
    most = max(1, _CHUNK // max(1, width))
    for start in range(0, rounds, most):
        yield min(most, rounds - start)


def _percentiles(scores: Tensor, level: float) -> tuple[float, float]:
    """Return the ends of the middle part of the scores; resamples without a score are left out."""
    ends = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=torch.float64)
    low, high = torch.nanquantile(scores, ends).tolist()
    return low, high
