"""Label sequences enumerated in plain Python: which are legal, their scores, and their spans.

Nothing here imports the library under test.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

Span = tuple[int, int, str]


def split(label: str) -> tuple[str, str]:
    prefix, _, span_type = label.partition("-")
    return {"M": "I", "L": "E", "U": "S"}.get(prefix, prefix), span_type


def spans_of(labels: Sequence[str], scheme: str) -> list[Span] | None:
    """Return the spans (start, end, type) of a sequence; None if the scheme forbids it."""
    spans: list[Span] = []
    is_open = False  # BIOES: whether the last span needs more positions
    for i, label in enumerate(labels):
        prefix, span_type = split(label)
        touches = bool(spans) and spans[-1][1] == i and spans[-1][2] == span_type
        if scheme == "BIO" and prefix == "I" and not touches:
            return None
        if scheme == "IOB1" and prefix == "B" and not touches:
            return None
        if scheme == "BIOES" and (prefix in "IE") != is_open:
            return None
        if scheme == "BIOES" and prefix in "IE" and not touches:
            return None
        if scheme == "BIOES":
            is_open = prefix in "BI"
        if prefix == "O":
            continue
        begins = prefix in "BS" or (scheme == "IOB1" and not touches)
        if begins:
            spans.append((i, i + 1, span_type))
        else:
            spans[-1] = (spans[-1][0], i + 1, span_type)
    return None if is_open else spans


def bias_of(labels: Sequence[str], spans: Sequence[Span], scheme: str, bias: Mapping[str, float]):
    """Return the sum of the biases of a legal sequence, counted by spans."""
    total = sum(
        bias["stay_outside"]
        for x, y in itertools.pairwise(labels)
        if split(x)[0] == split(y)[0] == "O"
    )
    for start, end, _ in spans:
        total += bias["enter_span"]
        size = end - start
        if scheme == "BIOES":
            if size > 1:
                total += (size - 2) * bias["continue_span"] + bias["end_span"]
        else:
            total += (size - 1) * bias["continue_span"] + bias["end_span"]
    return total


def log_softmax(row: Sequence[float]) -> list[float]:
    top = max(row)
    total = top + math.log(sum(math.exp(x - top) for x in row))
    return [x - total for x in row]


def legal_sequences(
    logits: Sequence[Sequence[float]],
    labels: Sequence[str],
    scheme: str,
    bias: Mapping[str, float] | None = None,
    pair: Sequence[Sequence[float]] | None = None,
) -> Iterator[tuple[float, tuple[str, ...], list[Span]]]:
    """Yield the score, the labels and the spans of every legal sequence."""
    rows = [log_softmax(row) for row in logits]
    for tags in itertools.product(range(len(labels)), repeat=len(rows)):
        names = tuple(labels[tag] for tag in tags)
        spans = spans_of(names, scheme)
        if spans is None:
            continue
        score = math.fsum(row[tag] for row, tag in zip(rows, tags, strict=True))
        if bias is not None:
            score += bias_of(names, spans, scheme, bias)
        if pair is not None:
            score += sum(pair[x][y] for x, y in itertools.pairwise(tags))
        if score > -math.inf:
            yield score, names, spans


def best_and_probabilities(*arguments, **keywords):
    """Return the best (score, labels, spans), and the probability of each span of any sequence."""
    found = list(legal_sequences(*arguments, **keywords))
    best = max(found, key=lambda entry: entry[0])
    weights = [math.exp(score - best[0]) for score, _, _ in found]
    probabilities: dict[Span, float] = {}
    for weight, (_, _, spans) in zip(weights, found, strict=True):
        for span in spans:
            probabilities[span] = probabilities.get(span, 0.0) + weight / math.fsum(weights)
    return best, probabilities
