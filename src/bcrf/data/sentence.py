"""One sentence of a file, whatever the format, and what a format can do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from .errors import DataError, shorten
from .lines import Block

__all__ = ["Format", "Sentence", "Word", "check_fields"]


@dataclass(frozen=True, slots=True)
class Sentence:
    """The words of a sentence and the raw lines that they were read from.

    The raw lines of all sentences of a file, in order, are the file. A sentence may have no words:
    an empty line of raw text, a `-DOCSTART-` line, an empty list in JSONL.

    Args:
        words: the words, in order.
        rows: for each word, which of the block's lines holds it.
        block: the raw lines, with comments and the empty lines around the sentence.
        format: how the lines are laid out; it reads tags from them and writes tags into them.
        text: the sentence as running text, where the file has it.
    """

    words: tuple[str, ...]
    rows: Sequence[int]
    block: Block
    format: Format
    text: str | None = None

    def __len__(self) -> int:
        return len(self.words)

    @property
    def path(self) -> str:
        return self.block.path

    @property
    def first_line(self) -> int:
        """The line of the first word (of the first line, if there is no word)."""
        return self.block.first_line + (self.rows[0] if self.rows else 0)

    def error(self, position: int, message: str) -> DataError:
        """The error at word `position`."""
        return self.block.error(self.rows[position] if self.rows else 0, message)


@dataclass(frozen=True, slots=True)
class Word:
    """A word to be written: its tag, the tag's probability, the white space after the word, and
    where in the text it starts; the last three as far as they are known or wanted."""

    form: str
    tag: str
    probability: float | None = None
    space: str | None = None
    start: int | None = None


class Format(ABC):
    """A file format: it cuts lines into blocks, reads sentences from them, and writes tags."""

    name: str

    @property
    def fills(self) -> bool:
        """Whether it has a place for tags beside the words (`fill`)."""
        return True

    @property
    def composes(self) -> bool:
        """Whether sentences that come from elsewhere can be written in it (`compose`)."""
        return True

    @abstractmethod
    def sentences(self, lines: Iterable[str], path: str) -> Iterator[Sentence | DataError]:
        """The sentences of a file; a malformed one is given as its error, and reading goes on."""

    @abstractmethod
    def tags(self, sentence: Sentence, column: str) -> list[str]:
        """The tags that the file has for the words: `column` is upos, xpos or ner."""

    def spaces(self, sentence: Sentence) -> list[str] | None:
        """The white space after each word, where the format says it."""
        return None

    # Sentences are written line by line: all lines of a long one take much memory.

    @abstractmethod
    def fill_lines(
        self,
        sentence: Sentence,
        tags: Sequence[str],
        column: str,
        probabilities: Sequence[float] | None = None,
    ) -> Iterator[str]:
        """The sentence's lines with `tags` written into `column`, all else as it was."""

    @abstractmethod
    def compose_lines(
        self, words: Sequence[Word], column: str, text: str | None = None
    ) -> Iterator[str]:
        """New lines for a sentence that comes from elsewhere."""

    def rewrite_lines(
        self, sentence: Sentence, words: Sequence[Word], column: str, text: str | None = None
    ) -> Iterator[str]:
        """New lines for a sentence of this class of formats that gets other words or another
        layout; the rest is kept."""
        return self.compose_lines(words, column, text)

    def fill(
        self,
        sentence: Sentence,
        tags: Sequence[str],
        column: str,
        probabilities: Sequence[float] | None = None,
    ) -> str:
        """`fill_lines` as one string."""
        return "".join(self.fill_lines(sentence, tags, column, probabilities))

    def compose(self, words: Sequence[Word], column: str, text: str | None = None) -> str:
        """`compose_lines` as one string."""
        return "".join(self.compose_lines(words, column, text))


def check_fields(words: Sequence[Word], forbidden: str, format: str) -> None:
    """Refuse what would break a line: words and tags with separators in them, empty words."""
    for word in words:
        for field in (word.form, word.tag):
            if not field or any(character in field for character in forbidden):
                raise ValueError(
                    f"{shorten(field)} cannot be written as {format}, where a field must not be "
                    f"empty nor hold any of {', '.join(map(repr, forbidden))}; write JSONL instead"
                )
