"""Labels <-> spans: one codec for mentions (IOB1, IOB2, BIOES) and for words (BIES).

A label is a letter, or a letter, "-" and a type: `O`, `B-PER`, `S-NOUN`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

__all__ = ["Span", "encode_spans", "find_spans", "iterate_spans", "split_label"]

# M (BMES), L and U (BIOUL) are other letters for I, E and S.
_LETTERS = {"B": "B", "I": "I", "O": "O", "E": "E", "S": "S", "M": "I", "L": "E", "U": "S"}

# Scheme -> the letters of the first, middle and last token of a span, and of a span of one token.
_ENCODING = {"IOB1": "IIII", "IOB2": "BIIB", "BIOES": "BIES", "BIES": "BIES"}

# Labels that are kept, so that equal labels of a long sentence are one object.
_LABELS = 1 << 12


class Span(NamedTuple):
    """Tokens start, ..., end - 1 form one mention or word of this type."""

    start: int
    end: int
    type: str


@lru_cache(_LABELS)
def split_label(label: str) -> tuple[str, str]:
    """A label's letter (one of B, I, O, E, S) and type ("" for none)."""
    letter, dash, kind = label.partition("-")
    if letter not in _LETTERS or (dash and not kind) or (dash and letter == "O"):
        raise ValueError(
            f"{label!r} is no label; expected O, or one of B, I, E, S (also M, L, U) and a type, "
            "such as B-PER"
        )
    return _LETTERS[letter], kind


def find_spans(labels: Sequence[str], breaks: Collection[int] = ()) -> list[Span]:
    """The spans of a label sequence of any scheme, well-formed or not.

    A span ends before B, S and O, after E and S, where the type changes, and before the tokens
    whose indices are in `breaks`; so a letter that cannot go on with a span begins one. This is how
    conlleval reads mentions. On well-formed sequences it is the inverse of `encode_spans`, so that
    reading and encoding again repairs a sequence and changes nothing else.
    """
    return list(iterate_spans(labels, breaks))


def iterate_spans(labels: Sequence[str], breaks: Collection[int] = ()) -> Iterator[Span]:
    """`find_spans`, one at a time: those of a long sentence take much memory."""
    start, open_type, before = -1, "", "O"
    for index, label in enumerate(labels):
        letter, kind = split_label(label)
        if start >= 0 and (
            letter in "OBS" or before in "ES" or kind != open_type or index in breaks
        ):
            yield Span(start, index, open_type)
            start = -1
        if start < 0 and letter != "O":
            start, open_type = index, kind
        before = letter
    if start >= 0:
        yield Span(start, len(labels), open_type)


def encode_spans(spans: Iterable[Span], length: int, scheme: str) -> list[str]:
    """The labels of `length` tokens with these spans, which are in order and do not overlap.

    Tokens outside all spans get O, which BIES has not: there spans must cover all tokens.
    """
    if scheme not in _ENCODING:
        raise ValueError(f"scheme: expected one of {', '.join(_ENCODING)}, got {scheme!r}")
    first, middle, last, single = tuple(_ENCODING[scheme])
    labels: list[str] = []
    before = Span(0, 0, "")
    for span in spans:
        if not before.end <= span.start < span.end <= length:
            raise ValueError(
                f"{span} after {before} among {length} tokens: expected spans in order"
            )
        labels += ["O"] * (span.start - before.end)
        size = span.end - span.start
        letters = single if size == 1 else first + middle * (size - 2) + last
        if scheme == "IOB1" and before.end == span.start > 0 and before.type == span.type:
            letters = "B" + letters[1:]
        labels += [_label(letter, span.type) for letter in letters]
        before = span
    labels += ["O"] * (length - before.end)
    if scheme == "BIES" and "O" in labels:
        raise ValueError(f"token {labels.index('O')} is in no span; BIES has no label for it")
    return labels


@lru_cache(_LABELS)
def _label(letter: str, kind: str) -> str:
    """The label of a letter and a type."""
    return f"{letter}-{kind}" if kind else letter
