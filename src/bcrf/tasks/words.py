"""Tasks that label words which are given."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence

from ..data import (
    ComputedSequence,
    DataError,
    Sentence,
    Word,
    format_named,
    gaps_after,
    surface,
)
from .example import Example, Task

__all__ = ["WordTask"]


class WordTask(Task):
    """A task with one label per word of the sentence."""

    @property
    @abstractmethod
    def _tag_column(self) -> str:
        """The column of files that has the labels."""

    def example(self, sentence: Sentence) -> Example:
        return Example(sentence.words, sentence)

    def render_lines(
        self,
        example: Example,
        labels: Sequence[str],
        format: str | None = None,
        probabilities: Sequence[float] | None = None,
    ) -> Iterator[str]:
        sentence = example.sentence
        name = self._output_format(sentence, format, new_words=False)
        if name == sentence.format.name:
            return sentence.format.fill_lines(sentence, labels, self._tag_column, probabilities)
        spaces = _spaces(sentence)

        def word(i: int) -> Word:
            chance = None if probabilities is None else probabilities[i]
            return Word(sentence.words[i], labels[i], chance, spaces[i])

        words = ComputedSequence(len(labels), word)
        return self._write(sentence, words, format_named(name), self._tag_column, sentence.text)


def _spaces(sentence: Sentence) -> list[str | None]:
    """The white space after each word; None where the text is not known, or does not consist of
    the words (French `du` for the words `de le`)."""
    unknown: list[str | None] = [None] * len(sentence)
    if sentence.text is None:
        return unknown
    try:
        return list(gaps_after(*surface(sentence)))
    except DataError:
        return unknown
