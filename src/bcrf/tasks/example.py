"""What all tasks share: examples, and the door through which training and tagging use a task."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..data import DataError, Format, Sentence, Word, format_named
from ..structure import Structure

__all__ = ["Example", "Metric", "Task"]


@dataclass(frozen=True, slots=True)
class Example:
    """A sentence as the model sees it.

    Args:
        tokens: what is labelled: words, or characters.
        sentence: where they come from.
        labels: the right labels, where they are known.
        allowed: what is known of the labels otherwise: for each token the labels one of which is
            right, or None where it may be any.
    """

    tokens: tuple[str, ...]
    sentence: Sentence
    labels: tuple[str, ...] | None = None
    allowed: tuple[frozenset[str] | None, ...] | None = None

    def __len__(self) -> int:
        return len(self.tokens)

    def part(self, start: int, stop: int) -> Example:
        """Tokens start, ..., stop - 1 as an example without labels."""
        return replace(self, tokens=self.tokens[start:stop], labels=None, allowed=None)

    def error(self, position: int, message: str) -> DataError:
        """The error at token `position`."""
        return self.sentence.error(position, message)

    def gold(self) -> tuple[str, ...]:
        """The labels; an error if they are not fully known."""
        if self.labels is None:
            raise self.error(0, "the right labels are not known; expected full annotation")
        return self.labels


class Metric(ABC):
    """Counts what is right, sentence by sentence.

    Attributes:
        main: the key of `result` by which models are compared.
    """

    main: ClassVar[str]

    @abstractmethod
    def add(self, example: Example, labels: Sequence[str]) -> None:
        """Compare predicted labels with the example's own."""

    @abstractmethod
    def result(self) -> dict[str, float]:
        """Shares in 0..1, and counts."""


@dataclass(frozen=True)
class Task(ABC):
    """What is to be labelled and how: a fixed list of labels, and the task's settings.

    A task is made by `fit`, which reads the labels off the training sentences, or from the plain
    values of `to_dict`.
    """

    name: ClassVar[str]
    default_format: ClassVar[str] = "conllu"  # of output, where the input has no place for tags

    labels: tuple[str, ...]

    @classmethod
    @abstractmethod
    def fit(cls, sentences: Sequence[Sentence], **settings: Any) -> Task:
        """The task whose labels are those of the training sentences."""

    @abstractmethod
    def annotated(self, sentences: Sequence[Sentence]) -> list[Example]:
        """Examples with what the sentences say of their labels."""

    @abstractmethod
    def example(self, sentence: Sentence) -> Example:
        """An example without labels, to be tagged."""

    @abstractmethod
    def repair(self, example: Example, labels: Sequence[str]) -> list[str]:
        """Well-formed labels instead of `labels`, which a decoder chose one by one; what is
        well-formed stays as it is. Each task documents its rule."""

    @abstractmethod
    def metric(self, known_words: Container[str] | None = None) -> Metric:
        """A new metric; `known_words` are those of the training set, where that matters."""

    @abstractmethod
    def render_lines(
        self,
        example: Example,
        labels: Sequence[str],
        format: str | None = None,
        probabilities: Sequence[float] | None = None,
    ) -> Iterator[str]:
        """The sentence with its labels as lines of a file.

        Args:
            labels: well-formed ones.
            format: None: the format that the sentence comes from, in which its lines stay as they
                are but for the tags; or the `default_format`, where it has no place for tags.
            probabilities: to be written beside the tags.
        """

    @property
    @abstractmethod
    def structure(self) -> Structure | None:
        """Which label sequences are well-formed; None: all of them."""

    # The same for all tasks

    def render(
        self,
        example: Example,
        labels: Sequence[str],
        format: str | None = None,
        probabilities: Sequence[float] | None = None,
    ) -> str:
        """`render_lines` as one string."""
        return "".join(self.render_lines(example, labels, format, probabilities))

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {label: index for index, label in enumerate(self.labels)}

    def target(self, example: Example) -> list[int]:
        """The numbers of the example's labels; an error names a label that the task has not."""
        return [self._id(example, i, label) for i, label in enumerate(example.gold())]

    def allowed(self, example: Example) -> Tensor:
        """What the example says of its labels, as bool [n, T]: one label, several, or all."""
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

    def limits(self, example: Example) -> Tensor | None:
        """Which labels the input itself permits, bool [n, T], in training and tagging alike; None:
        all of them."""
        return None

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        settings = {field.name: getattr(self, field.name) for field in fields(self)}
        return {"task": self.name} | settings | {"labels": list(self.labels)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Task:
        """The task of which `to_dict` gave these values (without `task`)."""
        expected = {field.name for field in fields(cls)}
        if set(values) != expected:
            raise ValueError(
                f"the {cls.name} task has {', '.join(sorted(expected))}; "
                f"got {', '.join(sorted(values)) or 'nothing'}"
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
                position, f"{label!r} is none of the {len(self.labels)} labels of the task"
            )
        return self._ids[label]

    @staticmethod
    def _write(
        sentence: Sentence, words: Sequence[Word], output: Format, column: str, text: str | None
    ) -> Iterator[str]:
        """New lines for a sentence; what a format of the same kind can keep of the old is kept."""
        if type(output) is type(sentence.format):
            return output.rewrite_lines(sentence, words, column, text)
        return output.compose_lines(words, column, text)

    def _output_format(self, sentence: Sentence, format: str | None, new_words: bool) -> str:
        """The name of the format to write, for the words that are there or for new ones."""
        if format is not None:
            return format_named(format).name
        own = sentence.format
        usable = own.composes if new_words else own.fills
        return own.name if usable else self.default_format
