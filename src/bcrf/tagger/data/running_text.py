"""The text of a sentence, and the positions of its words in the text."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from itertools import chain, islice
from typing import NamedTuple

from .lines import shorten
from .sentence import ComputedSequence, Sentence

__all__ = ["Surface", "gaps_after", "locate", "surface"]


class Surface(NamedTuple):
    """The text of a sentence, and for each word its (start, end) in the text, in code points."""

    text: str
    spans: Sequence[tuple[int, int]]


def gaps_after(text: str, spans: Sequence[tuple[int, int]]) -> list[str]:
    """Return, for each word, the text up to the next word or to the end of the text."""
    starts = chain((start for start, _ in islice(spans, 1, None)), [len(text)])
    return [text[end:start] for (_, end), start in zip(spans, starts, strict=False)]


def surface(sentence: Sentence) -> Surface:
    """Return the text of a sentence and the positions of its words.

    If the file has the text (`# text`, raw text, JSON), it is returned. Otherwise the words are
    joined with the spaces that the file marks (SpaceAfter), or without spaces if it marks none.

    Raises:
        DataError: the text does not consist of the words, as in a contraction (French `du` is the
            words `de le`).
    """
    text = sentence.text
    if text is None:
        spaces = sentence.format.spaces(sentence) or [""] * len(sentence)
        if spaces:
            spaces[-1] = ""
        text = "".join(word + space for word, space in zip(sentence.words, spaces, strict=True))
    starts, ends = locate(sentence, text, sentence.words, range(len(sentence)))
    return Surface(text, ComputedSequence(len(starts), lambda i: (starts[i], ends[i])))


def locate(
    sentence: Sentence, text: str, forms: Iterable[str], positions: Iterable[int]
) -> tuple[array[int], array[int]]:
    """Return where in the text the forms start and end; they make up the text, besides white space.

    Args:
        sentence: the sentence of the text, for errors.
        text: its text.
        forms: its words or tokens, in order.
        positions: for each form, the position of its first word, for errors.

    Raises:
        DataError: the text does not consist of the forms.
    """
    starts, ends = array("q"), array("q")
    end = 0
    for word, position in zip(forms, positions, strict=True):
        start = end
        while not text.startswith(word, start) and text[start : start + 1].isspace():
            start += 1
        if not text.startswith(word, start):
            found = text[start : start + len(word)]
            raise sentence.error(
                position,
                f"expected the word {shorten(word)} in the text, found {shorten(found)}",
            )
        end = start + len(word)
        starts.append(start)
        ends.append(end)
    if text[end:].strip():
        raise sentence.error(
            len(sentence) - 1,
            f"the text continues after the last word: {shorten(text[end:].strip())}",
        )
    return starts, ends
