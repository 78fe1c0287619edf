"""Joint word segmentation and part-of-speech tagging: BIES x tag labels of characters.

**Spaces.** Characters are code points. White space (`str.isspace`) is not labelled: it is a hard
word boundary, by removing the labels that would cross it (`limits`), in training and tagging alike.
So digits, Latin letters and spaces come out as they went in, and no word ever holds a space. Only
if words of the training corpus hold spaces (`spaces="token"`) is a space a character like others:
inside a word it is labelled I, between words O.
"""

from __future__ import annotations

from array import array
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..data import ComputedSequence, DataError, Sentence, Word, format_named, surface
from ..structure import Structure
from .example import Example, Metric, Task
from .metrics import Score
from .pos_tags import check_pos_column, read_pos_tags
from .spans import Span, encode_spans, find_spans, iterate_spans

__all__ = ["CharacterExample", "Segmentation", "WordF1"]


@dataclass(frozen=True, slots=True)
class CharacterExample(Example):
    """Characters of a text.

    Args:
        text: the whole text, white space included.
        offsets: where in the text each token is.
    """

    text: str = ""
    offsets: Sequence[int] = ()

    @property
    def breaks(self) -> frozenset[int]:
        """The tokens between which and the token before lies white space."""
        offsets = self.offsets
        return frozenset(i for i in range(1, len(offsets)) if offsets[i] > offsets[i - 1] + 1)

    def part(self, start: int, stop: int) -> CharacterExample:
        inside = slice(start, stop)
        tokens, offsets = self.tokens[inside], self.offsets[inside]
        return replace(self, tokens=tokens, offsets=offsets, labels=None, allowed=None)

    def error(self, position: int, message: str) -> DataError:
        where = f"character {self.offsets[position]}: " if self.offsets else ""
        return self.sentence.error(0, where + message)


@dataclass(frozen=True)
class Segmentation(Task):
    """Words and their parts of speech from characters.

    Args:
        labels: the letters B, I, E, S with each tag; and O, for spaces that are tokens.
        column: "upos" or "xpos".
        spaces: "boundary" or "token", see above; for `fit` also "auto", what the words demand.
    """

    name: ClassVar[str] = "segmentation"

    column: str = "upos"
    spaces: str = "boundary"

    def __post_init__(self) -> None:
        check_pos_column(self.column)
        if self.spaces not in ("boundary", "token"):
            raise ValueError(f"spaces must be 'boundary' or 'token', got {self.spaces!r}")

    @classmethod
    def fit(cls, sentences: Sequence[Sentence], **settings: Any) -> Segmentation:
        if settings.get("spaces", "auto") == "auto":
            inside = any(any(map(str.isspace, w)) for s in sentences for w in s.words)
            settings["spaces"] = "token" if inside else "boundary"
        task = cls((), **settings)
        tags = sorted({tag for s in sentences for tag in read_pos_tags(s, task.column)})
        outside = ["O"] if task.spaces == "token" else []
        labels = (*outside, *(f"{letter}-{tag}" for tag in tags for letter in "BIES"))
        return cls(labels, task.column, task.spaces)

    def annotated(self, sentences: Sequence[Sentence]) -> list[Example]:
        return [self._annotated(sentence) for sentence in sentences]

    def example(self, sentence: Sentence) -> CharacterExample:
        text = surface(sentence).text if sentence.text is None else sentence.text
        return self._example(sentence, text)

    def words(self, example: Example, labels: Sequence[str]) -> list[Span]:
        """The words that a label sequence means, as spans of tokens; it may be ill-formed.

        A word ends before B and S, after E and S, where the tag changes, and at white space.
        """
        return list(self._iterate_words(example, labels))

    def _iterate_words(self, example: Example, labels: Sequence[str]) -> Iterator[Span]:
        example = _characters(example)
        tokens = example.tokens
        for token, label in zip(tokens, labels, strict=True):
            if label == "O" and not token.isspace():
                raise ValueError(f"{token!r} is labelled O; decode within `limits`")
        if self.spaces == "boundary":
            yield from iterate_spans(labels, example.breaks)
            return
        trimmed = (_trim(span, tokens) for span in iterate_spans(labels))
        yield from (span for span in trimmed if span.start < span.end)

    def place(self, example: Example, span: Span) -> tuple[int, int]:
        """Where in the text a span of tokens starts and ends."""
        offsets = _characters(example).offsets
        return offsets[span.start], offsets[span.end - 1] + 1

    def repair(self, example: Example, labels: Sequence[str]) -> list[str]:
        """The labels of `words`."""
        spans = self._iterate_words(example, labels)
        return encode_spans(spans, len(labels), self._scheme)

    def metric(self, known_words: Container[str] | None = None) -> Metric:
        return WordF1(self)

    def limits(self, example: Example) -> Tensor | None:
        example = _characters(example)
        letters = "".join(label[0] for label in self.labels)
        if self.spaces == "token":
            space = torch.tensor([token.isspace() for token in example.tokens], dtype=torch.bool)
            on_space, on_others = _mask(letters, "OI"), _mask(letters, "BIES")
            return torch.where(space.unsqueeze(-1), on_space, on_others)
        breaks = sorted(example.breaks)
        if not breaks:
            return None
        mask = torch.ones(len(example), len(letters), dtype=torch.bool)
        after = torch.tensor(breaks)
        mask[after] &= _mask(letters, "BS")
        mask[after - 1] &= _mask(letters, "ES")
        return mask

    def render_lines(
        self,
        example: Example,
        labels: Sequence[str],
        format: str | None = None,
        probabilities: Sequence[float] | None = None,
    ) -> Iterator[str]:
        """See `Task.render_lines`. There is one probability per word of `words`."""
        example = _characters(example)
        text = example.text
        starts, ends, tags = array("q"), array("q"), []
        for span in self._iterate_words(example, labels):
            start, end = self.place(example, span)
            starts.append(start)
            ends.append(end)
            tags.append(span.type)

        def word(i: int) -> Word:
            chance = None if probabilities is None else probabilities[i]
            gap = text[ends[i] : starts[i + 1] if i + 1 < len(starts) else len(text)]
            return Word(text[starts[i] : ends[i]], tags[i], chance, gap, starts[i])

        words = ComputedSequence(len(tags), word)
        output = format_named(self._output_format(example.sentence, format, new_words=True))
        return self._write(example.sentence, words, output, self.column, text)

    @cached_property
    def structure(self) -> Structure:
        return Structure.from_labels(self.labels, self._scheme)

    @property
    def _scheme(self) -> str:
        return "BIES" if self.spaces == "boundary" else "BIOES"

    def _example(self, sentence: Sentence, text: str) -> CharacterExample:
        keep_spaces = self.spaces == "token"
        offsets = array(
            "q", (i for i, token in enumerate(text) if keep_spaces or not token.isspace())
        )
        # Each character as one object, however often it occurs.
        characters = {character: character for character in set(text)}
        tokens = tuple(characters[text[i]] for i in offsets)
        return CharacterExample(tokens, sentence, text=text, offsets=offsets)

    def _annotated(self, sentence: Sentence) -> CharacterExample:
        text, places = surface(sentence)
        example = self._example(sentence, text)
        token_at = {offset: index for index, offset in enumerate(example.offsets)}
        spans = []
        for position, (tag, (start, end)) in enumerate(
            zip(read_pos_tags(sentence, self.column), places, strict=True)
        ):
            if text[start].isspace() or text[end - 1].isspace():
                raise sentence.error(position, "a word that starts or ends with white space")
            spans.append(Span(token_at[start], token_at[end - 1] + 1, tag))
        labels = encode_spans(spans, len(example), self._scheme)
        return replace(example, labels=tuple(labels))


class WordF1(Metric):
    """F1 of words with their tags ("f1") and of words alone ("f1/words").

    White space does not count, so that both equal the numbers that the CoNLL 2018 scorer gives for
    UPOS (or XPOS) and for words.
    """

    main: ClassVar[str] = "f1"

    def __init__(self, task: Segmentation) -> None:
        self._task = task
        self._tagged = Score()
        self._words = Score()

    def add(self, example: Example, labels: Sequence[str]) -> None:
        gold, found = find_spans(example.gold()), self._task.words(example, labels)
        self._tagged.add(gold, found)
        self._words.add([span[:2] for span in gold], [span[:2] for span in found])

    def result(self) -> dict[str, float]:
        scores = self._tagged.named() | self._words.named("/words")
        return scores | {"words": self._words.gold}


def _characters(example: Example) -> CharacterExample:
    if not isinstance(example, CharacterExample):
        raise TypeError(f"expected an example of characters, got {type(example).__name__}")
    return example


def _trim(span: Span, tokens: Sequence[str]) -> Span:
    """A span without spaces at its ends."""
    start, end, tag = span
    while start < end and tokens[start].isspace():
        start += 1
    while start < end and tokens[end - 1].isspace():
        end -= 1
    return Span(start, end, tag)


def _mask(letters: str, permitted: str) -> Tensor:
    return torch.tensor([letter in permitted for letter in letters])
