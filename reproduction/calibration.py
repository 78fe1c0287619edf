"""Measure whether the tag probabilities of a model are right: the expected calibration error."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from bcrf.tagger import Tagger
from bcrf.tagger.tasks import Example

from .batches import chains

__all__ = ["calibration"]

_BINS = 15


@torch.no_grad()
def calibration(tagger: Tagger, examples: Sequence[Example]) -> dict[str, Any]:
    """Return how well the tag marginals of a model agree with the gold tags.

    The model predicts the most probable tag of each position; the probability of this tag is the
    confidence. Positions are divided into 15 bins of equal width by their confidence.

    Returns:
        `ece`, the expected calibration error: the mean over positions of the absolute difference
        between accuracy and mean confidence of the bin; `confidence` and `accuracy`, their means.
    """
    number = {label: index for index, label in enumerate(tagger.task.labels)}
    sums = torch.zeros(3, _BINS, dtype=torch.float64)  # positions, confidences, right positions
    for batch, chain in chains(tagger, examples):
        confidence, tags = tagger.model.marginals(chain).double().cpu().max(-1)
        for example, p, predicted in zip(batch, confidence, tags, strict=True):
            # A label that the model does not know is an error of the model.
            gold = torch.tensor([number.get(label, -1) for label in example.gold()])
            p, right = p[: len(gold)], (predicted[: len(gold)] == gold).double()
            place = (p * _BINS).long().clamp(0, _BINS - 1)
            for total, values in zip(sums, (torch.ones_like(p), p, right), strict=True):
                total.index_add_(0, place, values)
    count = sums[0].sum().clamp(min=1)
    return {
        "ece": round(float((sums[1] - sums[2]).abs().sum() / count), 6),
        "confidence": round(float(sums[1].sum() / count), 6),
        "accuracy": round(float(sums[2].sum() / count), 6),
    }
