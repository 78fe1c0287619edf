"""Metrics: accuracy of tags, and precision, recall and F1 of mentions.

We compare spans ourselves instead of using a library, so that ill-formed sequences are read in the
same way everywhere (`find_spans`, as conlleval does), also in BIOES, which nervaluate refuses. The
tests compare the numbers with seqeval and nervaluate.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Sequence
from typing import ClassVar

from ...spans import Score, Span, find_spans, share
from .task import Example, Metric

__all__ = ["Accuracy", "MentionF1"]


class Accuracy(Metric):
    """The share of tokens with the right label, of all tokens and of those not in `known_words`.

    Without unknown tokens, `result` has no "unknown_accuracy".
    """

    main: ClassVar[str] = "accuracy"

    def __init__(self, known_words: Container[str] | None = None) -> None:
        self._known = known_words
        self._count: Counter[str] = Counter()

    def add(self, example: Example, labels: Sequence[str]) -> None:
        count = self._count
        for token, gold, label in zip(example.tokens, example.gold(), labels, strict=True):
            count["tokens"] += 1
            count["correct"] += gold == label
            if self._known is not None and token not in self._known:
                count["unknown"] += 1
                count["unknown correct"] += gold == label

    def result(self) -> dict[str, float]:
        count = self._count
        result: dict[str, float] = {
            "accuracy": share(count["correct"], count["tokens"]),
            "tokens": count["tokens"],
        }
        if self._known is not None:
            if count["unknown"]:
                result["unknown_accuracy"] = count["unknown correct"] / count["unknown"]
            result["unknown_tokens"] = count["unknown"]
        return result


class MentionF1(Metric):
    """F1 of mentions, over all types ("f1") and for each type ("f1/PER").

    A predicted mention is right if its start, end and type are those of a gold mention.
    """

    main: ClassVar[str] = "f1"

    def __init__(self) -> None:
        self._all = Score()
        self._types: dict[str, Score] = {}

    def add(self, example: Example, labels: Sequence[str]) -> None:
        _check_length(example, labels)
        self.add_labels(example.gold(), labels)

    def add_labels(self, gold_labels: Sequence[str], labels: Sequence[str]) -> None:
        """Count the mentions of a sentence, given by its gold and its predicted labels."""
        gold, predicted = find_spans(gold_labels), find_spans(labels)
        self._all.add(gold, predicted)
        for span_type in {span.type for span in (*gold, *predicted)}:
            score = self._types.setdefault(span_type, Score())
            score.add(_of_type(gold, span_type), _of_type(predicted, span_type))

    def result(self) -> dict[str, float]:
        result = self._all.named() | {"mentions": self._all.gold}
        for span_type in sorted(self._types):
            score = self._types[span_type]
            result |= score.named(f"/{span_type}") | {f"mentions/{span_type}": score.gold}
        return result


def _check_length(example: Example, labels: Sequence[str]) -> None:
    if len(labels) != len(example):
        raise ValueError(
            f"expected {len(example)} predicted labels, one for each token, got {len(labels)}"
        )


def _of_type(spans: list[Span], span_type: str) -> list[Span]:
    return [span for span in spans if span.type == span_type]
