"""Errors in context, and the sentences in which two systems differ."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from .measures import rounded
from .outcomes import Item, Outcome

__all__ = ["differences", "worst_errors"]

MAX_ERRORS = 50
"""Most errors, and most sentences with differences, that a report shows."""

MAX_REGIONS = 5
"""Most differences that a report shows of one sentence."""

# Characters of context on either side, and of the region itself.
_CONTEXT = 80
_REGION = 240

# The context is cut between words if the word at its end has at most so many characters.
_LONGEST_WORD = 24

# Items that are listed of one region; a long region may have many.
_ITEMS = 12


@dataclass(frozen=True)
class _Region:
    """A part of a sentence in which items differ.

    Args:
        start, end: its place in the text.
        groups: the items of each side that overlap it.
    """

    start: int
    end: int
    groups: tuple[list[Item], ...]


def worst_errors(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Return the errors of which the model was most confident, with their context.

    Wrong items and missed items that overlap are one error. Its confidence is that of its most
    probable wrong item. If nothing was predicted there (a missed mention), it is the lowest
    probability of the labels of its words.
    """
    found = []
    for outcome in outcomes:
        wrong = [item for item in outcome.predicted if item.key not in outcome.gold_keys]
        missed = [item for item in outcome.gold if item.key not in outcome.predicted_keys]
        for region in _regions(missed, wrong):
            found.append((_confidence(outcome, region), outcome, region))
    found.sort(key=lambda error: -error[0])  # stable: otherwise in the order of the file
    shown = [
        {
            **_context(outcome, region),
            "confidence": rounded(confidence),
            "gold": _listed(outcome, region.groups[0]),
            "predicted": _listed(outcome, region.groups[1]),
        }
        for confidence, outcome, region in found[:MAX_ERRORS]
    ]
    return {"count": len(found), "shown": shown}


def differences(first: Sequence[Outcome], second: Sequence[Outcome]) -> dict[str, Any]:
    """Return the sentences in which two systems differ, the largest difference first."""
    counts = {"same": 0, "first_better": 0, "second_better": 0, "equally_good": 0}
    found = []
    for one, two in zip(first, second, strict=True):
        if one.predicted_keys == two.predicted_keys:
            counts["same"] += 1
            continue
        gain = _errors(two) - _errors(one)
        kind = "first_better" if gain > 0 else "second_better" if gain < 0 else "equally_good"
        counts[kind] += 1
        found.append((gain, one, two))
    found.sort(key=lambda entry: -abs(entry[0]))
    return counts | {
        "shown": [_compared(one, two) | {"gain": gain} for gain, one, two in found[:MAX_ERRORS]]
    }


def _errors(outcome: Outcome) -> int:
    """Return the number of wrong and missed items."""
    return len(outcome.gold_keys ^ outcome.predicted_keys)


def _compared(one: Outcome, two: Outcome) -> dict[str, Any]:
    """Return the first difference of a sentence with its context, and all regions that differ."""
    only_one = [item for item in one.predicted if item.key not in two.predicted_keys]
    only_two = [item for item in two.predicted if item.key not in one.predicted_keys]
    regions = _regions(only_one, only_two)
    rows = []
    for region in regions[:MAX_REGIONS]:
        gold = [g for g in one.gold if g.start < region.end and region.start < g.end]
        first, second = region.groups
        rows.append(
            {
                "gold": _listed(one, gold),
                "first": _listed(one, first),
                "second": _listed(two, second),
                "first_right": _agree(gold, first),
                "second_right": _agree(gold, second),
            }
        )
    return {**_context(one, regions[0]), "differences": len(regions), "regions": rows}


def _agree(gold: Sequence[Item], items: Sequence[Item]) -> bool:
    return {item.key for item in gold} == {item.key for item in items}


def _regions(*sides: Sequence[Item]) -> list[_Region]:
    """Return the parts of a sentence that overlapping items of the sides cover."""
    items = sorted(
        ((item, side) for side, group in enumerate(sides) for item in group),
        key=lambda entry: entry[0].place,
    )
    found: list[_Region] = []
    for item, side in items:
        if not found or item.start >= found[-1].end:
            found.append(_Region(item.start, item.end, tuple([] for _ in sides)))
        last = found[-1]
        last.groups[side].append(item)
        if item.end > last.end:
            found[-1] = _Region(last.start, item.end, last.groups)
    return found


def _confidence(outcome: Outcome, region: _Region) -> float:
    _, wrong = region.groups
    if wrong:
        return max(item.confidence or 0.0 for item in wrong)
    inside = [
        confidence
        for (start, _), confidence in zip(outcome.tokens, outcome.token_confidences, strict=False)
        if region.start <= start < region.end
    ]
    return min(inside, default=0.0)


def _context(outcome: Outcome, region: _Region) -> dict[str, Any]:
    """Return the place of a region, its text, and the text on either side, within limits."""
    text, start, end = outcome.text, region.start, region.end
    inside = text[start:end]
    if len(inside) > _REGION:
        inside = f"{inside[: _REGION // 2]}…{inside[-_REGION // 2 :]}"
    before = _at_most(text[:start][::-1], _CONTEXT)[::-1]
    return {
        "path": outcome.path,
        "line": outcome.line,
        "before": before,
        "text": inside,
        "after": _at_most(text[end:], _CONTEXT),
    }


def _at_most(text: str, size: int) -> str:
    """Return the beginning of a text and an ellipsis if the text is longer than `size`.

    The beginning ends before a word, unless the last word is very long, as in a text without
    spaces.
    """
    if len(text) <= size:
        return text
    cut = size
    while cut > size - _LONGEST_WORD and not text[cut].isspace():
        cut -= 1
    if not text[cut].isspace():
        cut = size
    return text[:cut].rstrip() + "\u00a0…" if text[cut].isspace() else text[:cut] + "…"


def _listed(outcome: Outcome, items: Iterable[Item]) -> list[dict[str, Any]]:
    """Return items with their texts, for a table."""
    found = []
    for item in items:
        text = outcome.text[item.start : item.end]
        if len(text) > _CONTEXT:
            text = f"{text[: _CONTEXT - 1]}…"
        row: dict[str, Any] = {"text": text, "tag": item.tag}
        if item.confidence is not None:
            row["probability"] = rounded(item.confidence)
        found.append(row)
    hidden = len(found) - _ITEMS
    return [*found[:_ITEMS], {"text": f"… {hidden} more", "tag": ""}] if hidden > 0 else found
