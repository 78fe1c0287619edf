"""Additional training texts for tokenizers: edited texts as people type and store them.

Treebanks hold complete, punctuated sentences in clean paragraphs. Users also have texts whose lines
are sentences without a final full stop, hard-wrapped lines, paragraphs without empty lines between
them, and lower case. Each function here edits a text together with the labels of its characters
(see `tokenization`).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

__all__ = ["LabeledText", "augmented", "cut_at_sentences"]

_PIECE = 800
"""Characters of a training text: a batch has a few, and few words are at the edge of one."""

_FINAL = frozenset(".!?…。！？")

# The share of the texts of which an edited copy is added, and of sentences that lose their stop.
_EDITED, _UNPUNCTUATED = 0.5, 0.5


class LabeledText(NamedTuple):
    """A text, and the label of each character."""

    text: str
    labels: list[str]


def cut_at_sentences(whole: LabeledText) -> list[LabeledText]:
    """Cut a text before sentences, into pieces of about `_PIECE` characters."""
    pieces = []
    start = 0
    for i, label in enumerate(whole.labels):
        if label == "sentence" and i >= start + _PIECE:
            pieces.append(_stripped(whole, start, i))
            start = i
    return [*pieces, _stripped(whole, start, len(whole.text))]


def augmented(texts: Sequence[LabeledText], seed: int) -> Iterator[LabeledText]:
    """Yield edited copies of a share of the texts; the same ones for the same seed."""
    chance = random.Random(f"augmentation {seed}")
    for text in texts:
        if chance.random() < _EDITED:
            edit = chance.choice(_EDITS)
            yield edit(text, chance)


def _one_line_per_sentence(whole: LabeledText, chance: random.Random) -> LabeledText:
    return _separated(_without_final_stops(whole, chance), "\n", "\n")


def _one_line(whole: LabeledText, chance: random.Random) -> LabeledText:
    return _separated(whole, " ", " ")


def _two_spaces(whole: LabeledText, chance: random.Random) -> LabeledText:
    return _separated(whole, "  ", "\n")


def _paragraphs_without_stops(whole: LabeledText, chance: random.Random) -> LabeledText:
    return _separated(_without_final_stops(whole, chance), "\n\n", "\n\n")


def _wrapped(whole: LabeledText, chance: random.Random) -> LabeledText:
    """Break lines at white space such that they have at most 40 to 90 characters, if possible."""
    width = chance.randint(40, 90)
    characters = list(whole.text)
    start, last_space = 0, -1
    for i, character in enumerate(whole.text):
        if character == "\n":
            start = i + 1
        if i - start >= width and last_space > start:
            characters[last_space] = "\n"
            start = last_space + 1
        if character == " " and whole.labels[i] == "space":
            last_space = i
    return LabeledText("".join(characters), whole.labels)


def _lower_case(whole: LabeledText, chance: random.Random) -> LabeledText:
    # Only characters whose lower case is one character: the labels stay as they are.
    text = "".join(c.lower() if len(c.lower()) == 1 else c for c in whole.text)
    return LabeledText(text, whole.labels)


_EDITS: tuple[Callable[[LabeledText, random.Random], LabeledText], ...] = (
    _one_line_per_sentence,
    _one_line,
    _two_spaces,
    _paragraphs_without_stops,
    _wrapped,
    _lower_case,
)


def _separated(whole: LabeledText, between: str, after_paragraph: str) -> LabeledText:
    """Replace the white space before sentences, by `after_paragraph` where it has a line end."""
    text, labels = [], []
    done = 0
    for i, label in enumerate(whole.labels):
        if label != "sentence" or i == 0:
            continue
        end = i
        while end > done and whole.labels[end - 1] == "space":
            end -= 1
        gap = after_paragraph if "\n" in whole.text[end:i] else between
        text += [whole.text[done:end], gap]
        labels += [*whole.labels[done:end], *["space"] * len(gap)]
        done = i
    return LabeledText("".join(text) + whole.text[done:], labels + whole.labels[done:])


def _without_final_stops(whole: LabeledText, chance: random.Random) -> LabeledText:
    """Remove the last word of some sentences if it is a stop; no sentence becomes empty."""
    text, labels = whole
    keep = [True] * len(text)
    firsts = [i for i, label in enumerate(labels) if label == "sentence"]
    for end in [*firsts[1:], len(text)]:
        last = end
        while labels[last - 1] == "space":
            last -= 1
        first = last - 1
        while labels[first] == "inside":
            first -= 1
        is_stop = labels[first] == "word" and set(text[first:last]) <= _FINAL
        if is_stop and chance.random() < _UNPUNCTUATED:
            keep[first:last] = [False] * (last - first)
    kept = [i for i, one in enumerate(keep) if one]
    return LabeledText("".join(text[i] for i in kept), [labels[i] for i in kept])


def _stripped(whole: LabeledText, start: int, stop: int) -> LabeledText:
    """Return a part of a text without the white space at its end."""
    while stop > start and whole.labels[stop - 1] == "space":
        stop -= 1
    return LabeledText(whole.text[start:stop], whole.labels[start:stop])
