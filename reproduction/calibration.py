"""Measure whether the tag probabilities of a model are right: the expected calibration error."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from bcrf.tagger import Tagger
from bcrf.tagger.prediction.calibration import Reliability, gold_tags
from bcrf.tagger.tasks import Example

from .batches import chains

__all__ = ["calibration"]


@torch.no_grad()
def calibration(tagger: Tagger, examples: Sequence[Example]) -> dict[str, Any]:
    """Return how well the tag marginals of a model agree with the gold tags.

    The model predicts the most probable tag of each position; the probability of this tag is the
    confidence. Positions are divided into 15 bins of equal width by their confidence. A label that
    the model does not know is an error of the model.

    Returns:
        `ece`, the expected calibration error: the mean over positions of the absolute difference
        between accuracy and mean confidence of the bin; `confidence` and `accuracy`, their means.
    """
    found = Reliability()
    for batch, chain in chains(tagger, examples):
        confidence, tags = tagger.model.marginals(chain).double().cpu().max(-1)
        gold = gold_tags(tagger.task, batch, chain.max_length)
        kept = gold != -100
        found.add(confidence[kept], (tags == gold)[kept])
    return {
        "ece": round(found.error, 6),
        "confidence": round(found.confidence, 6),
        "accuracy": round(found.accuracy, 6),
    }
