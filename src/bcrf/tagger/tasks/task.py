"""Task and Example: the interface through which training and tagging use every task."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from ...spans import Span
from ...structure import Structure
from ..data import (
    ComputedSequence,
    DataError,
    Entity,
    Format,
    Sentence,
    Word,
    format_named,
    gaps_after,
    locate_entities,
    surface,
)

__all__ = ["NO_TAG", "Example", "Metric", "Task", "WordTask"]

NO_TAG = "_"
"""Stands for a tag that is not told (see `Task.withhold`), as in CoNLL-U."""


@dataclass(frozen=True, slots=True)
class Example:
    """A sentence as the model sees it.

    Args:
        tokens: the words or characters to be labeled.
        sentence: the sentence of the file that they come from.
        labels: the gold labels, if the sentence is fully annotated.
        allowed: the labels that each token may have, if the annotation is partial; its entry is
            None for a token that may have any label.
    """

    tokens: tuple[str, ...]
    sentence: Sentence
    labels: tuple[str, ...] | None = None
    allowed: tuple[frozenset[str] | None, ...] | None = None

    def __len__(self) -> int:
        return len(self.tokens)

    def part(self, start: int, stop: int) -> Example:
        """Return tokens start, ..., stop - 1 as an example without labels."""
        return replace(self, tokens=self.tokens[start:stop], labels=None, allowed=None)

    def error(self, position: int, message: str) -> DataError:
        """Return a DataError that names the file and line of token `position`."""
        return self.sentence.error(position, message)

    def gold(self) -> tuple[str, ...]:
        """Return the gold labels; raise DataError if the sentence is not fully annotated."""
        if self.labels is None:
            raise self.error(
                0, "the sentence has partial labels or none; expected one gold label for each token"
            )
        return self.labels


class Metric(ABC):
    """Compares predicted labels with gold labels, sentence by sentence.

    Attributes:
        main: the key of `result` by which models are compared.
    """

    main: ClassVar[str]

    @abstractmethod
    def add(self, example: Example, labels: Sequence[str]) -> None:
        """Compare the predicted labels of one sentence with its gold labels."""

    @abstractmethod
    def result(self) -> dict[str, float]:
        """Return shares between 0 and 1 (floats) and counts (ints) by name."""


@dataclass(frozen=True)
class Task(ABC):
    """A labeling task: its labels and settings, and how sentences become examples and back.

    `fit` makes a task from the labels of the training sentences. `from_dict` makes a task from the
    plain values that `to_dict` returned.

    Args:
        labels: all labels, in the order of the tag ids.
    """

    name: ClassVar[str]
    has_spans: ClassVar[bool] = False  # whether an item may have several tokens, see `items`
    has_mentions: ClassVar[bool] = False  # whether items are mentions; other tokens are O
    default_format: ClassVar[str] = "conllu"  # output format if the input cannot hold tags
    is_on_text: ClassVar[bool] = False  # whether the tokens are the characters of a text

    labels: tuple[str, ...]

    @classmethod
    @abstractmethod
    def fit(cls, sentences: Sequence[Sentence]) -> Task:
        """Return the task with the labels of the training sentences.

        Each task adds keyword arguments for its own settings.
        """

    @abstractmethod
    def annotated(self, sentences: Sequence[Sentence]) -> list[Example]:
        """Return examples with the gold labels, or the partial labels, of the sentences."""

    @abstractmethod
    def example(self, sentence: Sentence) -> Example:
        """Return an example without labels, to be tagged."""

    @abstractmethod
    def repair(self, example: Example, labels: Sequence[str]) -> list[str]:
        """Return repaired labels; well-formed labels are returned unchanged.

        A decoder that chooses the tag of each position separately may return ill-formed labels.
        Each task documents its rule.
        """

    @abstractmethod
    def metric(self, known_words: Container[str] | None = None) -> Metric:
        """Return a new metric.

        Args:
            known_words: the words of the training set, for scores of unknown words.
        """

    @abstractmethod
    def render_lines(
        self,
        example: Example,
        labels: Sequence[str],
        format: str | None = None,
        probabilities: Sequence[float] | None = None,
        item_probabilities: Sequence[float] | None = None,
    ) -> Iterator[str]:
        """Yield the lines of a file that holds the sentence with these labels.

        Args:
            labels: well-formed labels.
            format: the output format. None: the format of the input, where only the tags change, or
                `default_format` if the input format cannot hold tags.
            probabilities: probabilities to be written beside the tags.
            item_probabilities: probabilities to be written beside the mentions (see `entities`).
        """

    @property
    @abstractmethod
    def structure(self) -> Structure | None:
        """The well-formed label sequences; None if all sequences are well-formed."""

    # The same for all tasks

    def render(
        self,
        example: Example,
        labels: Sequence[str],
        format: str | None = None,
        probabilities: Sequence[float] | None = None,
        item_probabilities: Sequence[float] | None = None,
    ) -> str:
        """Return the lines of `render_lines` as one string."""
        lines = self.render_lines(example, labels, format, probabilities, item_probabilities)
        return "".join(lines)

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {label: index for index, label in enumerate(self.labels)}

    def target(self, example: Example) -> list[int]:
        """Return the tag ids of the gold labels; raise DataError for a label without an id."""
        return [self._id(example, i, label) for i, label in enumerate(example.gold())]

    def allowed(self, example: Example) -> Tensor:
        """Return bool [n, T]: the labels that each token may have according to the annotation."""
        if example.allowed is None:
            known: Sequence[frozenset[str] | None] = [frozenset({x}) for x in example.gold()]
        else:
            known = example.allowed
        mask = torch.zeros(len(example), len(self.labels), dtype=torch.bool)
        for position, options in enumerate(known):
            if options is None:
                mask[position] = True
            else:
                mask[position, [self._id(example, position, label) for label in options]] = True
        return mask

    def training_examples(self, examples: Sequence[Example], seed: int) -> list[Example]:
        """Return the examples to train on, made from annotated examples; by default the same.

        Args:
            examples: the annotated examples.
            seed: the seed of random changes.
        """
        return list(examples)

    def permitted_tags(self, example: Example) -> Tensor | None:
        """Return bool [n, T]: the tags that the text itself permits; None if it permits all.

        Training and tagging remove all other tags.
        """
        return None

    def items(self, example: Example, labels: Sequence[str]) -> list[Span]:
        """Return the units that are predicted and scored: tagged words, or mentions.

        Ill-formed labels have the items of the repaired labels.
        """
        return [Span(position, position + 1, label) for position, label in enumerate(labels)]

    def entities(
        self,
        example: Example,
        labels: Sequence[str],
        item_probabilities: Sequence[float] | None = None,
    ) -> list[Entity]:
        """Return the mentions with their places in the text; none if the task has no mentions.

        Args:
            item_probabilities: the probability of each of the `items`.
        """
        spans = self.items(example, labels) if self.has_mentions else []
        if not spans:
            return []
        values = [None] * len(spans) if item_probabilities is None else item_probabilities
        mentions = ((*span, p) for span, p in zip(spans, values, strict=True))
        return list(locate_entities(example.sentence, mentions))

    def withhold(
        self, example: Example, labels: Sequence[str], kept: Sequence[bool]
    ) -> tuple[str, ...]:
        """Return labels that do not tell the tags of some items: `_` stands for such a tag.

        Args:
            kept: whether the tag of each item is told.
        """
        return tuple(label if keep else NO_TAG for label, keep in zip(labels, kept, strict=True))

    def to_dict(self) -> dict[str, Any]:
        """Return the task as plain values, for JSON."""
        settings = {field.name: getattr(self, field.name) for field in fields(self)}
        return {"task": self.name} | settings | {"labels": list(self.labels)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Task:
        """Return the task from the values that `to_dict` returned (without `task`)."""
        expected = {field.name for field in fields(cls)}
        if set(values) != expected:
            raise ValueError(
                f"the {cls.name} task has the fields {', '.join(sorted(expected))}; "
                f"got {', '.join(sorted(values)) or 'none'}"
            )
        labels = values["labels"]
        if not (isinstance(labels, list) and all(isinstance(label, str) for label in labels)):
            raise ValueError("labels must be a list of strings")
        if len(set(labels)) < len(labels):
            raise ValueError("labels must be distinct")
        return cls(**{**values, "labels": tuple(labels)})

    def _id(self, example: Example, position: int, label: str) -> int:
        if label not in self._ids:
            raise example.error(
                position,
                f"{label!r} is not among the {len(self.labels)} labels of the training data",
            )
        return self._ids[label]

    @staticmethod
    def _write(
        sentence: Sentence,
        words: Sequence[Word],
        output: Format,
        column: str,
        text: str | None,
        entities: Sequence[Entity] | None = None,
    ) -> Iterator[str]:
        """Yield new lines for a sentence.

        If input and output have the same class of format, comments and other fields are kept.
        """
        if type(output) is type(sentence.format):
            return output.rewrite_lines(sentence, words, column, text)
        return output.compose_lines(words, column, text, sentence.offset, entities)

    def _output_format(self, sentence: Sentence, format: str | None, new_words: bool) -> str:
        """Return the name of the output format, for the words of the input or for new words."""
        if format is not None:
            return format_named(format).name
        own = sentence.format
        usable = own.composes if new_words else own.fills
        return own.name if usable else self.default_format


class WordTask(Task):
    """A task with one label for each word of the sentence."""

    @property
    @abstractmethod
    def _tag_column(self) -> str:
        """The column of files that holds the labels."""

    def example(self, sentence: Sentence) -> Example:
        return Example(sentence.words, sentence)

    def render_lines(
        self,
        example: Example,
        labels: Sequence[str],
        format: str | None = None,
        probabilities: Sequence[float] | None = None,
        item_probabilities: Sequence[float] | None = None,
    ) -> Iterator[str]:
        sentence = example.sentence
        name = self._output_format(sentence, format, new_words=False)
        entities = None
        if self.has_mentions and name == "jsonl":
            entities = self.entities(example, labels, item_probabilities)
        if name == sentence.format.name:
            return sentence.format.fill_lines(
                sentence, labels, self._tag_column, probabilities, entities
            )
        spaces, starts = _places_of_words(sentence)

        def word(i: int) -> Word:
            probability = None if probabilities is None else probabilities[i]
            start = starts[i] if sentence.offset is not None else None
            return Word(sentence.words[i], labels[i], probability, spaces[i], start)

        words = ComputedSequence(len(labels), word)
        output, column = format_named(name), self._tag_column
        return self._write(sentence, words, output, column, sentence.text, entities)


def _places_of_words(sentence: Sentence) -> tuple[Sequence[str | None], Sequence[int | None]]:
    """Return the white space after each word, and where in the text each word starts.

    All entries are None if the text is not known, or if the text does not consist of the words
    (French `du` is the words `de le`).
    """
    unknown: list[str | None] = [None] * len(sentence)
    unknown_starts: list[int | None] = [None] * len(sentence)
    if sentence.text is None:
        return unknown, unknown_starts
    try:
        text, spans = surface(sentence)
    except DataError:
        return unknown, unknown_starts
    return gaps_after(text, spans), ComputedSequence(len(spans), lambda i: spans[i][0])
