"""The tables of a report, computed from outcomes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..prediction.calibration import Reliability
from .outcomes import Outcome
from .resampling import bootstrap_interval

__all__ = [
    "by_tag",
    "calibration",
    "confusion",
    "rounded",
    "score_counts",
    "scores_with_intervals",
    "unknown_words",
]

MAX_TAGS = 200
"""Most rows of the table of tags."""

MAX_CONFUSED = 30
"""Most tags of the confusion matrix; the others share a row and a column."""

MAX_WORDS = 20
"""Most rows of the table of unknown words."""

NONE, OTHER = "(none)", "(other)"
"""Names of a row and a column of the confusion matrix, after those of the tags."""

_DIGITS = 6


def rounded(value: float | None) -> float | None:
    """Return a number with six decimals."""
    return None if value is None else round(value, _DIGITS)


# Scores


def score_counts(
    outcomes: Sequence[Outcome], task: str, known: Container[str] | None
) -> dict[str, Tensor]:
    """Return numerator and denominator of each score and sentence, float64 [S, 2].

    The first score is the main score of the task. Words have "accuracy", and "unknown_accuracy" if
    the known words are given. Spans have "f1", "precision", "recall", and "f1/places": F1 of places
    without tags. All tasks have "perfect": the share of sentences without an error.
    """
    found: dict[str, list[tuple[int, int]]] = {}

    def count(name: str, right: int, of: int) -> None:
        found.setdefault(name, []).append((right, of))

    for outcome in outcomes:
        gold, predicted = len(outcome.gold_keys), len(outcome.predicted_keys)
        if task in ("segmentation", "ner"):
            count("f1", 2 * outcome.correct, gold + predicted)
            count("precision", outcome.correct, predicted)
            count("recall", outcome.correct, gold)
            places = {item.place for item in outcome.gold}
            shared = places & {item.place for item in outcome.predicted}
            count("f1/places", 2 * len(shared), gold + predicted)
        else:
            count("accuracy", outcome.correct, gold)
            if known is not None:
                unknown = [item for item in outcome.gold if _word(outcome, item) not in known]
                right = sum(item.key in outcome.predicted_keys for item in unknown)
                count("unknown_accuracy", right, len(unknown))
        count("perfect", outcome.is_perfect, 1)
    return {name: torch.tensor(rows, dtype=torch.float64) for name, rows in found.items()}


def scores_with_intervals(counts: dict[str, Tensor], seed: int) -> list[dict[str, Any]]:
    """Return the scores that have items, with their bootstrap intervals and numbers of items."""
    found = []
    for name, rows in counts.items():
        interval = bootstrap_interval(rows, seed=seed)
        if interval is None:
            continue
        right, total = rows.sum(0).tolist()
        low, high = map(rounded, interval)
        found.append({"name": name, "value": rounded(right / total), "low": low, "high": high})
    return found


# Tags


def by_tag(outcomes: Iterable[Outcome]) -> list[dict[str, Any]]:
    """Return precision, recall, F1 and counts of each tag, the most frequent tag first."""
    gold: Counter[str] = Counter()
    predicted: Counter[str] = Counter()
    correct: Counter[str] = Counter()
    for outcome in outcomes:
        gold.update(item.tag for item in outcome.gold)
        predicted.update(item.tag for item in outcome.predicted)
        correct.update(item.tag for item in outcome.predicted if item.key in outcome.gold_keys)
    tags = sorted(gold.keys() | predicted.keys(), key=lambda tag: (-gold[tag], tag))
    return [
        {
            "tag": tag,
            "precision": _share(correct[tag], predicted[tag]),
            "recall": _share(correct[tag], gold[tag]),
            "f1": _share(2 * correct[tag], gold[tag] + predicted[tag]),
            "gold": gold[tag],
            "predicted": predicted[tag],
            "correct": correct[tag],
        }
        for tag in tags[:MAX_TAGS]
    ]


def confusion(outcomes: Iterable[Outcome]) -> dict[str, Any]:
    """Return how often each gold tag was predicted as each tag, for items with the same place.

    An item whose place only one side has counts as `NONE` on the other side. The tags are those
    with the most items.
    """
    pairs: Counter[tuple[str | None, str | None]] = Counter()
    for outcome in outcomes:
        gold = {item.place: item.tag for item in outcome.gold}
        predicted = {item.place: item.tag for item in outcome.predicted}
        for place in gold.keys() | predicted.keys():
            pairs[gold.get(place), predicted.get(place)] += 1
    sizes: Counter[str] = Counter()
    for pair, count in pairs.items():
        for tag in set(pair) - {None}:
            assert tag is not None
            sizes[tag] += count
    tags = sorted(sizes, key=lambda tag: (-sizes[tag], tag))
    shown = {tag: number for number, tag in enumerate(tags[:MAX_CONFUSED])}
    names = [*shown]
    other = len(names)
    if len(tags) > len(shown):
        names.append(OTHER)
    none = len(names)
    if any(None in pair for pair in pairs):
        names.append(NONE)
    matrix = [[0] * len(names) for _ in names]
    for (one, two), count in pairs.items():
        row, column = (none if tag is None else shown.get(tag, other) for tag in (one, two))
        matrix[row][column] += count
    return {
        "tags": names,
        "counts": matrix,
        "has_none": len(names) > none,
        "has_other": len(tags) > len(shown),
    }


# Unknown words


def unknown_words(
    outcomes: Sequence[Outcome], task: str, known: Container[str] | None
) -> dict[str, Any] | None:
    """Return how well words were tagged that the training data did not have.

    For mentions, it is the recall of those with at least one such word.

    Returns:
        None if the model does not know its training words, or reads characters.
    """
    if known is None or task == "segmentation":
        return None
    found: Counter[str] = Counter()
    wrong: Counter[tuple[str, str, str]] = Counter()
    for outcome in outcomes:
        unknown = {token[0] for token in outcome.tokens if outcome.text[slice(*token)] not in known}
        found["words"] += len(unknown)
        found["all words"] += len(outcome.tokens)
        predicted = {item.place: item.tag for item in outcome.predicted}
        for item in outcome.gold:
            has_unknown = any(item.start <= start < item.end for start in unknown)
            kind = "unknown" if has_unknown else "known"
            is_right = item.key in outcome.predicted_keys
            found[kind] += 1
            found[f"{kind} right"] += is_right
            if has_unknown and not is_right:
                tag = predicted.get(item.place, NONE)
                wrong[_word(outcome, item), item.tag, tag] += 1
    most = sorted(wrong.items(), key=lambda entry: (-entry[1], entry[0]))
    return {
        "words": found["words"],
        "share": _share(found["words"], found["all words"]),
        "items": found["unknown"],
        "recall": _share(found["unknown right"], found["unknown"]),
        "known_items": found["known"],
        "known_recall": _share(found["known right"], found["known"]),
        "wrong": [
            {"text": _shortened(text), "gold": gold, "predicted": tag, "count": count}
            for (text, gold, tag), count in most[:MAX_WORDS]
        ],
    }


def _word(outcome: Outcome, item: Any) -> str:
    return outcome.text[item.start : item.end]


def _shortened(text: str, most: int = 80) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


# Calibration


def calibration(outcomes: Iterable[Outcome]) -> dict[str, Any]:
    """Return the calibration of the predicted items: error, Brier score and the curve."""
    items = [
        (item.confidence, item.key in outcome.gold_keys)
        for outcome in outcomes
        for item in outcome.predicted
    ]
    found = Reliability()
    if items:
        confidences, right = zip(*items, strict=True)
        found.add(torch.tensor(confidences, dtype=torch.float64), torch.tensor(right))
    return {
        "items": found.count,
        "ece": rounded(found.error),
        "brier": rounded(found.brier),
        "confidence": rounded(found.confidence),
        "accuracy": rounded(found.accuracy),
        "bins": [
            {
                "from": rounded(number / found.bins),
                "to": rounded((number + 1) / found.bins),
                "count": count,
                "confidence": rounded(confidence),
                "accuracy": rounded(accuracy),
            }
            for number, (count, confidence, accuracy) in enumerate(found.curve())
        ],
    }


def _share(part: int, whole: int) -> float | None:
    """Return part / whole; None if there is nothing to count."""
    return rounded(part / whole) if whole else None
