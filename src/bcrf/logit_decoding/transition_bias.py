"""`TransitionBias`: four numbers that trade precision for recall, and the scores that they add."""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass, fields
from typing import NamedTuple

import torch
from torch import Tensor

from ..checks import check_number
from .label_set import LabelSet

__all__ = ["TransitionBias", "TransitionScores", "transition_scores"]


@dataclass(frozen=True)
class TransitionBias:
    """Scores that decoding adds to four kinds of transitions; all are 0 by default.

    A negative `enter_span` or a positive `stay_outside` gives fewer spans: precision rises and
    recall falls. `tune_transition_bias` chooses the numbers on development data.

    Args:
        stay_outside: from O to O.
        enter_span: to the first position of a span, also at the start of a sentence.
        continue_span: from a position in a span to the next one of this span; in BIOES only if the
            span does not end there.
        end_span: in BIOES from a position in a span to the last one. In BIO and IOB1 from the
            last position of a span to the next position, or to the end of the sentence.

    Example:
        >>> from bcrf import TransitionBias
        >>> TransitionBias(enter_span=-2.0)
        TransitionBias(stay_outside=0.0, enter_span=-2.0, continue_span=0.0, end_span=0.0)
    """

    stay_outside: float = 0.0
    enter_span: float = 0.0
    continue_span: float = 0.0
    end_span: float = 0.0

    def __post_init__(self) -> None:
        for name, value in zip((field.name for field in fields(self)), astuple(self), strict=True):
            check_number(name, value)
            if not math.isfinite(value):
                raise ValueError(f"{name} must be finite, got {value!r}")


class TransitionScores(NamedTuple):
    """The scores of all transitions: the biases, and -inf where the tag scheme forbids one.

    Attributes:
        start: [T], to the first label of a sentence.
        pair: [T, T], from -> to.
        end: [T], from the last label of a sentence.
    """

    start: Tensor
    pair: Tensor
    end: Tensor


def transition_scores(labels: LabelSet, bias: TransitionBias | Tensor | None) -> TransitionScores:
    """Return the scores of the transitions between `labels`, in float64.

    Args:
        bias: a `TransitionBias`; or a tensor [T, T], from -> to, whose scores are finite or -inf
            (which forbids the transition); None: no bias.
    """
    rules = labels.structure
    allowed = (rules.start, rules.follow, rules.end)
    start, pair, end = (torch.zeros(mask.shape, dtype=torch.float64) for mask in allowed)
    if isinstance(bias, TransitionBias):
        inside, continues, finishes = labels.in_span, labels.continues, labels.finishes
        pair[~inside.unsqueeze(1) & ~inside] += bias.stay_outside
        pair[inside & ~continues] += bias.enter_span
        start[inside] += bias.enter_span
        pair[continues & ~finishes] += bias.continue_span
        if labels.scheme in ("BIO", "IOB1"):
            pair[inside.unsqueeze(1) & ~continues] += bias.end_span
            end[inside] += bias.end_span
        else:
            pair[continues & finishes] += bias.end_span
    elif bias is not None:
        pair = _checked_tensor(bias, labels)
    scores = zip((start, pair, end), allowed, strict=True)
    return TransitionScores(*(x.masked_fill(~mask, -math.inf) for x, mask in scores))


def _checked_tensor(bias: Tensor, labels: LabelSet) -> Tensor:
    size = labels.num_tags
    if not isinstance(bias, Tensor):
        raise TypeError(
            f"transition_bias must be a TransitionBias or a tensor [T, T], got "
            f"{type(bias).__name__}"
        )
    if bias.shape != (size, size):
        raise ValueError(
            f"transition_bias must be [T, T] = {[size, size]} for {size} labels, "
            f"got {list(bias.shape)}"
        )
    if not bias.is_floating_point():
        raise TypeError(f"transition_bias must be floating point, got {bias.dtype}")
    scores = bias.detach().to("cpu", torch.float64)
    bad = ~(scores < math.inf)
    if bool(bad.any()):
        before, after = bad.nonzero()[0].tolist()
        raise ValueError(
            f"transition_bias[{before}, {after}], from {labels.labels[before]!r} to "
            f"{labels.labels[after]!r}, is {float(scores[before, after])}; expected a finite "
            "score, or -inf to forbid the transition"
        )
    return scores
