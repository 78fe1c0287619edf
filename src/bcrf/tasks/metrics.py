"""What share of the labels, mentions or words is right.

The spans are compared by hand rather than by a library, so that ill-formed sequences are read in
one way everywhere (`find_spans`, as conlleval does), also in BIOES, which nervaluate does not take.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from .example import Example, Metric
from .spans import Span, find_spans

__all__ = ["Accuracy", "MentionF1", "Score"]


@dataclass(slots=True)
class Score:
    """Precision, recall and F1 of sets of things; a share of nothing is 0, as in conlleval."""

    correct: int = 0
    predicted: int = 0
    gold: int = 0

    def add(self, gold: Iterable[object], predicted: Iterable[object]) -> None:
        """Count the members of two collections without repetitions."""
        right, found = set(gold), set(predicted)
        self.correct += len(right & found)
        self.predicted += len(found)
        self.gold += len(right)

    @property
    def precision(self) -> float:
        return _share(self.correct, self.predicted)

    @property
    def recall(self) -> float:
        return _share(self.correct, self.gold)

    @property
    def f1(self) -> float:
        return _share(2 * self.correct, self.predicted + self.gold)

    def named(self, suffix: str = "") -> dict[str, float]:
        return {
            f"f1{suffix}": self.f1,
            f"precision{suffix}": self.precision,
            f"recall{suffix}": self.recall,
        }


class Accuracy(Metric):
    """The share of tokens that have the right label, also among those not in `known_words`."""

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
            "accuracy": _share(count["correct"], count["tokens"]),
            "tokens": count["tokens"],
        }
        if self._known is not None:
            result["unknown_accuracy"] = _share(count["unknown correct"], count["unknown"])
            result["unknown_tokens"] = count["unknown"]
        return result


class MentionF1(Metric):
    """F1 of mentions, over all types ("f1") and of each ("f1/PER"): start, end and type count."""

    main: ClassVar[str] = "f1"

    def __init__(self) -> None:
        self._all = Score()
        self._types: dict[str, Score] = {}

    def add(self, example: Example, labels: Sequence[str]) -> None:
        _check_length(example, labels)
        gold, found = find_spans(example.gold()), find_spans(labels)
        self._all.add(gold, found)
        for kind in {span.type for span in (*gold, *found)}:
            score = self._types.setdefault(kind, Score())
            score.add(_of_type(gold, kind), _of_type(found, kind))

    def result(self) -> dict[str, float]:
        result = self._all.named() | {"mentions": self._all.gold}
        for kind in sorted(self._types):
            result |= self._types[kind].named(f"/{kind}")
        return result


def _check_length(example: Example, labels: Sequence[str]) -> None:
    if len(labels) != len(example):
        raise ValueError(f"{len(example)} tokens have {len(labels)} predicted labels")


def _of_type(spans: list[Span], kind: str) -> list[Span]:
    return [span for span in spans if span.type == kind]


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
