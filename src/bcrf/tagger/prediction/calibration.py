"""Calibration: do the probabilities of a model agree with the frequency of its errors?

`Reliability` measures it. `calibrate` improves it by temperature scaling: it chooses the
temperature T for which the probabilities at the scores w / T fit annotated sentences best. The tags
stay as they are, because every decoder reads the scores w.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ...chain import LinearChain
from ..nn import TaggerModel
from ..tasks import Example, Task
from .chains import ChainSource, iterate_chains

__all__ = ["Calibration", "Reliability", "calibrate", "gold_tags", "scaled"]

BINS = 15
"""Number of bins of confidence, as in Guo et al., On Calibration of Modern Neural Networks."""

MAX_TOKENS = 20_000
"""Most tokens that `calibrate` reads: one number needs no more."""

MAX_SCORES = 1 << 25
"""Most scores of tag pairs that `calibrate` holds at a time: 128 MB."""

LARGEST_TEMPERATURE = 20.0
"""`calibrate` searches from 1/20 to 20."""

# Accuracy of log T. The temperature is rounded to four digits, so that rounding errors of the
# marginals do not show.
_ACCURACY = 1e-3

# A smaller probability counts as this one: the logarithm of 0 would decide everything.
_LEAST_PROBABILITY = 1e-12


class Reliability:
    """Compares confidences with the share of right predictions, in bins of equal width.

    Args:
        bins: number of bins between 0 and 1.

    Example:
        >>> found = Reliability(bins=2)
        >>> found.add(torch.tensor([0.9, 0.7, 0.4]), torch.tensor([True, False, True]))
        >>> f"{found.error:.4f}"  # (2 |0.8 - 0.5| + |0.4 - 1|) / 3
        '0.4000'
        >>> f"{found.brier:.4f}"  # (0.1^2 + 0.7^2 + 0.6^2) / 3
        '0.2867'
    """

    def __init__(self, bins: int = BINS) -> None:
        self.bins = bins
        self._sums = torch.zeros(3, bins, dtype=torch.float64)  # items, confidences, right items
        self._squares = 0.0

    def add(self, confidence: Tensor, right: Tensor) -> None:
        """Count predictions: their confidences [N], and whether they are right, bool [N]."""
        p, correct = confidence.double(), right.double()
        place = (p * self.bins).long().clamp(0, self.bins - 1)
        for total, values in zip(self._sums, (torch.ones_like(p), p, correct), strict=True):
            total.index_add_(0, place, values)
        self._squares += float((p - correct).square().sum())

    @property
    def count(self) -> int:
        """The number of predictions."""
        return int(self._sums[0].sum())

    @property
    def error(self) -> float:
        """The expected calibration error (ECE).

        It is the mean over predictions of the absolute difference between accuracy and mean
        confidence of their bin.
        """
        return float((self._sums[1] - self._sums[2]).abs().sum() / self._divisor)

    @property
    def brier(self) -> float:
        """The Brier score: the mean squared difference between confidence and 1 (right) or 0."""
        return self._squares / self._divisor

    @property
    def confidence(self) -> float:
        """The mean confidence."""
        return float(self._sums[1].sum() / self._divisor)

    @property
    def accuracy(self) -> float:
        """The share of right predictions."""
        return float(self._sums[2].sum() / self._divisor)

    def curve(self) -> list[tuple[int, float, float]]:
        """Return count, mean confidence and accuracy of each bin; (0, 0, 0) without predictions."""
        return [
            (int(count), confidence / max(count, 1), right / max(count, 1))
            for count, confidence, right in self._sums.T.tolist()
        ]

    @property
    def _divisor(self) -> float:
        return max(1.0, float(self._sums[0].sum()))


class Calibration(NamedTuple):
    """The result of `calibrate`.

    Args:
        temperature: the temperature T; the probabilities are those of the scores w / T.
        tokens: number of tokens that it was fitted on.
        loss_before, loss_after: mean of -log p(gold tag) over these tokens, at 1 and at T.
        error_before, error_after: expected calibration error of the most probable tags.

    Example:
        >>> Calibration(1.2, 900, 0.21, 0.20, 0.03, 0.01).to_dict()["temperature"]
        1.2
    """

    temperature: float
    tokens: int
    loss_before: float
    loss_after: float
    error_before: float
    error_after: float

    def to_dict(self) -> dict[str, float]:
        """Return the values by name, rounded, for JSON."""
        return {
            name: round(value, 6) if isinstance(value, float) else value
            for name, value in self._asdict().items()
        }


class _Batch(NamedTuple):
    """A chain, and the gold tags of its tokens, int64 [B, n]; -1 where there is none."""

    chain: LinearChain
    gold: Tensor


def gold_tags(task: Task, examples: Sequence[Example], n: int) -> Tensor:
    """Return the tag ids of the gold labels, int64 [B, n].

    The entries are -100 after the end of a sentence, and -1 for labels that the task does not know.
    """
    number = {label: index for index, label in enumerate(task.labels)}
    found = torch.full((len(examples), n), -100)
    for row, example in zip(found, examples, strict=True):
        row[: len(example)] = torch.tensor([number.get(label, -1) for label in example.gold()])
    return found


def _sample(examples: Sequence[Example], num_tags: int, longest: int = 4096) -> list[Example]:
    """Return annotated sentences for `calibrate`, evenly spread, within `MAX_TOKENS` and memory."""
    usable = [e for e in examples if e.labels is not None and 0 < len(e) <= longest]
    most = min(MAX_TOKENS, max(1, MAX_SCORES // num_tags**2))
    step = max(1, math.ceil(sum(map(len, usable)) / most))
    return usable[::step]


@torch.no_grad()
def calibrate(tagger: ChainSource, examples: Sequence[Example]) -> Calibration | None:
    """Return the temperature for which the tag probabilities of a model fit the gold tags best.

    The temperature T minimises the sum over tokens of -log p_T(gold tag), plus (log T)^2 / 2. The
    second term is worth half a token. It keeps few sentences without an error from asking for the
    temperature 0, that is, for certainty. The tagger is not changed.

    Args:
        tagger: the tagger.
        examples: annotated sentences that the model was not trained on, such as those of dev.

    Returns:
        None if no sentence has gold labels that the model knows.

    Example (`tagger` and `file` as in `Tagger`):
        >>> from bcrf.tagger.data import read
        >>> examples = tagger.task.annotated(list(read(file)))
        >>> calibrate(tagger, examples).tokens
        1
    """
    sample = _sample(examples, len(tagger.task.labels))
    batches = []
    for rows, chain in iterate_chains(tagger, sample):
        gold = gold_tags(tagger.task, [sample[row] for row in rows], chain.max_length)
        batches.append(_Batch(chain, gold.to(chain.device)))
    tokens = sum(int((batch.gold >= 0).sum()) for batch in batches)
    if not tokens:
        return None
    model = tagger.model

    def objective(log_temperature: float) -> float:
        loss = _total_loss(model, batches, math.exp(log_temperature))
        return loss + log_temperature**2 / 2

    bound = math.log(LARGEST_TEMPERATURE)
    best = _minimise(objective, -bound, bound)
    temperature = float(f"{math.exp(best):.4g}")
    before, after = (_measured(model, batches, t) for t in (1.0, temperature))
    return Calibration(
        temperature,
        tokens,
        _total_loss(model, batches, 1.0) / tokens,
        _total_loss(model, batches, temperature) / tokens,
        before.error,
        after.error,
    )


def scaled(chain: LinearChain, temperature: float) -> LinearChain:
    """Return the chain with the scores w / temperature."""
    return chain if temperature == 1 else chain / temperature


def _total_loss(model: TaggerModel, batches: Sequence[_Batch], temperature: float) -> float:
    """Return the sum over tokens of -log p(gold tag) at a temperature."""
    total = 0.0
    for chain, gold in batches:
        marginals = model.marginals(scaled(chain, temperature))
        chosen = marginals.gather(-1, gold.clamp(min=0).unsqueeze(-1)).squeeze(-1)
        logs = chosen.double().clamp(min=_LEAST_PROBABILITY).log()
        total -= float(logs[gold >= 0].sum())
    return total


def _measured(model: TaggerModel, batches: Sequence[_Batch], temperature: float) -> Reliability:
    found = Reliability()
    for chain, gold in batches:
        confidence, tags = model.marginals(scaled(chain, temperature)).max(-1)
        kept = gold != -100
        found.add(confidence[kept].cpu(), (tags == gold)[kept].cpu())
    return found


def _minimise(function: Callable[[float], float], low: float, high: float) -> float:
    """Return the minimum of a function with one minimum in [low, high], by golden section.

    Example:
        >>> round(_minimise(lambda x: (x - 0.3) ** 2, -3, 3), 3)
        0.3
    """
    ratio = (math.sqrt(5) - 1) / 2
    left, right = high - ratio * (high - low), low + ratio * (high - low)
    at_left, at_right = function(left), function(right)
    while high - low > _ACCURACY:
        if at_left < at_right:
            high, right, at_right = right, left, at_left
            left = high - ratio * (high - low)
            at_left = function(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + ratio * (high - low)
            at_right = function(right)
    return (low + high) / 2
