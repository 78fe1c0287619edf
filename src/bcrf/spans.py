"""Convert label sequences to typed spans of tokens, and back; count how many spans are right.

Mentions (IOB1, IOB2, BIOES) and words (BIES) share this code. Labels are those of
`bcrf.tag_schemes`: `O`, `B-PER`, `S-NOUN`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .tag_schemes import TagScheme, format_label, parse_label

__all__ = ["Score", "Span", "encode_spans", "find_spans", "iterate_spans", "share"]


class Span(NamedTuple):
    """Tokens start, ..., end - 1 form one mention or word of this type."""

    start: int
    end: int
    type: str


def find_spans(labels: Sequence[str], breaks: Collection[int] = ()) -> list[Span]:
    """Return the spans of a label sequence of any scheme, well-formed or not.

    A span ends before B, S and O, after E and S, where the type changes, and before the tokens
    whose indices are in `breaks`. A label that cannot continue a span therefore begins one. This is
    how conlleval reads mentions. On well-formed sequences, `find_spans` is the inverse of
    `encode_spans`. An ill-formed sequence is repaired by finding its spans and encoding them.

    Example:
        >>> find_spans(["B-PER", "I-PER", "O", "I-LOC"])
        [Span(start=0, end=2, type='PER'), Span(start=3, end=4, type='LOC')]
    """
    return list(iterate_spans(labels, breaks))


def iterate_spans(labels: Sequence[str], breaks: Collection[int] = ()) -> Iterator[Span]:
    """Yield the spans of `find_spans` one at a time, to save memory on long sentences."""
    start, open_type, previous_prefix = -1, "", "O"
    for index, label in enumerate(labels):
        prefix, span_type = parse_label(label)
        if start >= 0 and (
            prefix in "OBS" or previous_prefix in "ES" or span_type != open_type or index in breaks
        ):
            yield Span(start, index, open_type)
            start = -1
        if start < 0 and prefix != "O":
            start, open_type = index, span_type
        previous_prefix = prefix
    if start >= 0:
        yield Span(start, len(labels), open_type)


def encode_spans(spans: Iterable[Span], length: int, scheme: str) -> list[str]:
    """Return the labels of `length` tokens with these spans.

    The spans must be in order and must not overlap. Tokens outside all spans get O. BIES has no O:
    there the spans must cover all tokens.

    Example:
        >>> encode_spans([Span(0, 2, "PER")], 3, "BIOES")
        ['B-PER', 'E-PER', 'O']
    """
    rules = TagScheme.named(scheme)
    first, middle, last, single = tuple(rules.encoding)
    labels: list[str] = []
    previous = Span(0, 0, "")
    for span in spans:
        if not previous.end <= span.start < span.end <= length:
            raise ValueError(
                f"expected spans of {length} tokens, in order and without overlap; got {span} "
                f"after {previous}"
            )
        labels += ["O"] * (span.start - previous.end)
        size = span.end - span.start
        prefixes = single if size == 1 else first + middle * (size - 2) + last
        touches = previous.end == span.start > 0 and previous.type == span.type
        if rules.name == "IOB1" and touches:
            prefixes = "B" + prefixes[1:]
        labels += [format_label(prefix, span.type) for prefix in prefixes]
        previous = span
    labels += ["O"] * (length - previous.end)
    if not rules.has_outside and "O" in labels:
        raise ValueError(
            f"token {labels.index('O')} is in no span; expected spans that cover all tokens, "
            f"because {scheme} has no label for a token outside all spans"
        )
    return labels


@dataclass(slots=True)
class Score:
    """Counts for precision, recall and F1. As in conlleval, a score without items is 0."""

    correct: int = 0
    predicted: int = 0
    gold: int = 0

    def add(self, gold: Iterable[object], predicted: Iterable[object]) -> None:
        """Count the gold and the predicted items of one sentence; neither may repeat an item."""
        gold_items, predicted_items = set(gold), set(predicted)
        self.correct += len(gold_items & predicted_items)
        self.predicted += len(predicted_items)
        self.gold += len(gold_items)

    @property
    def precision(self) -> float:
        return share(self.correct, self.predicted)

    @property
    def recall(self) -> float:
        return share(self.correct, self.gold)

    @property
    def f1(self) -> float:
        return share(2 * self.correct, self.predicted + self.gold)

    def named(self, suffix: str = "") -> dict[str, float]:
        """Return the three scores by name; `suffix` is appended to each name."""
        return {
            f"f1{suffix}": self.f1,
            f"precision{suffix}": self.precision,
            f"recall{suffix}": self.recall,
        }


def share(part: int, whole: int) -> float:
    """Return part / whole; 0 if there is nothing."""
    return part / whole if whole else 0.0
