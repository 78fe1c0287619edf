"""Joint word segmentation and part-of-speech tagging of characters.

The labels of characters are BIES prefixes with part-of-speech tags, such as `B-NOUN`. Characters
are code points.

There are two treatments of white space (`str.isspace`):

- `spaces="boundary"`: white space has no label and always separates words. In training and in
  tagging, `permitted_tags` excludes the labels with which a word would cross white space. So no
  word holds a space.
- `spaces="token"`, for corpora whose words hold spaces: a space is a character like any other. Its
  label is I inside a word and O between words.
"""

from __future__ import annotations

from array import array
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from ...spans import Score, Span, encode_spans, find_spans, iterate_spans
from ...structure import Structure
from ...tag_schemes import SCHEMES
from ..data import ComputedSequence, DataError, Sentence, Word, format_named, surface
from .pos import check_pos_column, read_pos_tags
from .task import NO_TAG, Example, Metric, Task

__all__ = ["CharacterExample", "Segmentation", "WordF1"]


@dataclass(frozen=True, slots=True)
class CharacterExample(Example):
    """The characters of a text.

    Args:
        text: the whole text, including white space.
        offsets: the position of each token in the text.
    """

    text: str = ""
    offsets: Sequence[int] = ()

    @property
    def breaks(self) -> frozenset[int]:
        """Indices of the tokens that are preceded by white space."""
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
    """The task of finding the words of a text and their parts of speech.

    Args:
        labels: each of the prefixes B, I, E, S with each tag; and O if spaces are tokens.
        column: "upos" or "xpos".
        spaces: "boundary" or "token" (see the module). `fit` also takes "auto", which chooses
            "token" if a training word holds a space.
    """

    name: ClassVar[str] = "segmentation"
    is_on_text: ClassVar[bool] = True
    has_spans: ClassVar[bool] = True

    column: str = "upos"
    spaces: str = "boundary"

    def __post_init__(self) -> None:
        check_pos_column(self.column)
        if self.spaces not in ("boundary", "token"):
            raise ValueError(f"spaces must be 'boundary' or 'token', got {self.spaces!r}")

    @classmethod
    def fit(
        cls, sentences: Sequence[Sentence], *, column: str = "upos", spaces: str = "auto"
    ) -> Segmentation:
        if spaces == "auto":
            inside = any(any(map(str.isspace, w)) for s in sentences for w in s.words)
            spaces = "token" if inside else "boundary"
        task = cls((), column, spaces)
        tags = sorted({tag for s in sentences for tag in read_pos_tags(s, task.column)})
        outside = ["O"] if task.spaces == "token" else []
        prefixes = SCHEMES["BIES"].span_prefixes
        labels = (*outside, *(f"{prefix}-{tag}" for tag in tags for prefix in prefixes))
        return cls(labels, task.column, task.spaces)

    def annotated(self, sentences: Sequence[Sentence]) -> list[Example]:
        return [self._annotated(sentence) for sentence in sentences]

    def example(self, sentence: Sentence) -> CharacterExample:
        text = surface(sentence).text if sentence.text is None else sentence.text
        return self._example(sentence, text)

    def words(self, example: Example, labels: Sequence[str]) -> list[Span]:
        """Return the words of a label sequence, well-formed or not, as spans of tokens.

        A word ends before B and S, after E and S, where the tag changes, and at white space.
        """
        return list(self._iterate_words(example, labels))

    def _iterate_words(self, example: Example, labels: Sequence[str]) -> Iterator[Span]:
        example = _characters(example)
        tokens = example.tokens
        for token, label in zip(tokens, labels, strict=True):
            if label == "O" and not token.isspace():
                raise ValueError(
                    f"{token!r} has the label O, which only white space may have; remove the tags "
                    "that `permitted_tags` excludes before decoding"
                )
        if self.spaces == "boundary":
            yield from iterate_spans(labels, example.breaks)
            return
        trimmed = (_trim(span, tokens) for span in iterate_spans(labels))
        yield from (span for span in trimmed if span.start < span.end)

    def place(self, example: Example, span: Span) -> tuple[int, int]:
        """Return the (start, end) of a span of tokens in the text."""
        offsets = _characters(example).offsets
        return offsets[span.start], offsets[span.end - 1] + 1

    def repair(self, example: Example, labels: Sequence[str]) -> list[str]:
        """Return the labels of the words that `words` finds."""
        spans = self._iterate_words(example, labels)
        return encode_spans(spans, len(labels), self._scheme)

    def items(self, example: Example, labels: Sequence[str]) -> list[Span]:
        """Return the words with their tags."""
        return self.words(example, labels)

    def withhold(
        self, example: Example, labels: Sequence[str], kept: Sequence[bool]
    ) -> tuple[str, ...]:
        """Return labels with the same words; the tag of a word that is not kept is `_`."""
        words = zip(self.words(example, labels), kept, strict=True)
        spans = [word if keep else word._replace(type=NO_TAG) for word, keep in words]
        return tuple(encode_spans(spans, len(labels), self._scheme))

    def metric(self, known_words: Container[str] | None = None) -> Metric:
        return WordF1(self)

    def permitted_tags(self, example: Example) -> Tensor | None:
        example = _characters(example)
        prefixes = "".join(label[0] for label in self.labels)
        if self.spaces == "token":
            space = torch.tensor([token.isspace() for token in example.tokens], dtype=torch.bool)
            on_space, on_others = _mask(prefixes, "OI"), _mask(prefixes, "BIES")
            return torch.where(space.unsqueeze(-1), on_space, on_others)
        breaks = sorted(example.breaks)
        if not breaks:
            return None
        mask = torch.ones(len(example), len(prefixes), dtype=torch.bool)
        after = torch.tensor(breaks)
        mask[after] &= _mask(prefixes, "BS")
        mask[after - 1] &= _mask(prefixes, "ES")
        return mask

    def render_lines(
        self,
        example: Example,
        labels: Sequence[str],
        format: str | None = None,
        probabilities: Sequence[float] | None = None,
        item_probabilities: Sequence[float] | None = None,
    ) -> Iterator[str]:
        """Yield lines as `Task.render_lines` does; `probabilities` has one entry for each word."""
        example = _characters(example)
        text = example.text
        starts, ends, tags = array("q"), array("q"), []
        for span in self._iterate_words(example, labels):
            start, end = self.place(example, span)
            starts.append(start)
            ends.append(end)
            tags.append(span.type)

        def word(i: int) -> Word:
            probability = None if probabilities is None else probabilities[i]
            gap = text[ends[i] : starts[i + 1] if i + 1 < len(starts) else len(text)]
            return Word(text[starts[i] : ends[i]], tags[i], probability, gap, starts[i])

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
        # Equal characters share one string object, which saves memory in long texts.
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
                raise sentence.error(
                    position, "the word starts or ends with white space; remove it"
                )
            spans.append(Span(token_at[start], token_at[end - 1] + 1, tag))
        labels = encode_spans(spans, len(example), self._scheme)
        return replace(example, labels=tuple(labels))


class WordF1(Metric):
    """F1 of words with their tags ("f1") and of words alone ("f1/words").

    White space is not counted. So the two scores equal those of the CoNLL 2018 scorer for UPOS (or
    XPOS) and for words.
    """

    main: ClassVar[str] = "f1"

    def __init__(self, task: Segmentation) -> None:
        self._task = task
        self._tagged = Score()
        self._words = Score()

    def add(self, example: Example, labels: Sequence[str]) -> None:
        gold, predicted = find_spans(example.gold()), self._task.words(example, labels)
        self._tagged.add(gold, predicted)
        self._words.add([span[:2] for span in gold], [span[:2] for span in predicted])

    def result(self) -> dict[str, float]:
        scores = self._tagged.named() | self._words.named("/words")
        return scores | {"words": self._words.gold}


def _characters(example: Example) -> CharacterExample:
    if not isinstance(example, CharacterExample):
        raise TypeError(f"expected an example of characters, got {type(example).__name__}")
    return example


def _trim(span: Span, tokens: Sequence[str]) -> Span:
    """Return a span without the spaces at its ends."""
    start, end, tag = span
    while start < end and tokens[start].isspace():
        start += 1
    while start < end and tokens[end - 1].isspace():
        end -= 1
    return Span(start, end, tag)


def _mask(prefixes: str, permitted: str) -> Tensor:
    """Return bool [T]: whether each of the T prefixes is among the permitted ones."""
    return torch.tensor([prefix in permitted for prefix in prefixes])
