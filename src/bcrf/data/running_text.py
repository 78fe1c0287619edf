"""The running text of a sentence, and where its words stand in it."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import chain, islice
from typing import NamedTuple

from .errors import shorten
from .sentence import Sentence
from .sequences import ComputedSequence

__all__ = ["Surface", "gaps_after", "surface"]


class Surface(NamedTuple):
    """A text, and for each word of the sentence its (start, end) in it, in code points."""

    text: str
    spans: Sequence[tuple[int, int]]


def gaps_after(text: str, spans: Sequence[tuple[int, int]]) -> list[str]:
    """What stands between each word and the next, or the end of the text."""
    starts = chain((start for start, _ in islice(spans, 1, None)), [len(text)])
    return [text[end:start] for (_, end), start in zip(spans, starts, strict=False)]


def surface(sentence: Sentence) -> Surface:
    """The text of a sentence: as the file has it (`# text`, raw text, JSON), else as the format
    tells the spaces (SpaceAfter), else its words without anything between them.

    An error if the words are not what the text consists of, as for the parts of a contraction that
    is written otherwise (French `du` = `de le`).
    """
    text = sentence.text
    if text is None:
        spaces = sentence.format.spaces(sentence) or [""] * len(sentence)
        if spaces:
            spaces[-1] = ""
        text = "".join(word + space for word, space in zip(sentence.words, spaces, strict=True))
    starts, ends = array("q"), array("q")
    end = 0
    for position, word in enumerate(sentence.words):
        start = end
        while not text.startswith(word, start) and text[start : start + 1].isspace():
            start += 1
        if not text.startswith(word, start):
            found = text[start : start + len(word)]
            raise sentence.error(
                position,
                f"the text goes on with {shorten(found)}; expected the word {shorten(word)}",
            )
        end = start + len(word)
        starts.append(start)
        ends.append(end)
    if text[end:].strip():
        raise sentence.error(
            len(sentence) - 1,
            f"the text goes on after the last word: {shorten(text[end:].strip())}",
        )
    return Surface(text, ComputedSequence(len(starts), lambda i: (starts[i], ends[i])))
