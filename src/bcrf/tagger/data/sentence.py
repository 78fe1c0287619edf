"""`Sentence`, used for all file formats, and `Format`, the interface of a file format."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar, overload

from .lines import Block, DataError, shorten

__all__ = ["ComputedSequence", "Entity", "Format", "Sentence", "Token", "Word", "check_fields"]


@dataclass(frozen=True, slots=True)
class Sentence:
    """The words of a sentence and the raw lines that they were read from.

    Joined in order, the raw lines of all sentences of a file equal the file. A sentence may have no
    words: an empty line of raw text, a `-DOCSTART-` line, an empty list of words in JSONL.

    Args:
        words: the words, in order.
        rows: for each word, the index of its line in the block.
        block: the raw lines, including comments and the empty lines around the sentence.
        format: the format of the lines, which reads and writes their tags.
        text: the text of the sentence, if the file has it.
        offset: for a sentence of raw text, where it begins in the file, in characters.

    Example:
        >>> import io
        >>> from bcrf.tagger.data import read
        >>> (sentence,) = read(io.BytesIO(b"Ada sings\\n"), "text", name="songs.txt")
        >>> sentence.words, sentence.path, sentence.first_line
        (('Ada', 'sings'), 'songs.txt', 1)
    """

    words: tuple[str, ...]
    rows: Sequence[int]
    block: Block
    format: Format
    text: str | None = None
    offset: int | None = None

    def __len__(self) -> int:
        return len(self.words)

    @property
    def path(self) -> str:
        return self.block.path

    @property
    def first_line(self) -> int:
        """The line number of the first word (of the first line, if there is no word)."""
        return self.block.first_line + (self.rows[0] if self.rows else 0)

    def error(self, position: int, message: str) -> DataError:
        """Return a DataError that names the file and line of word `position`."""
        return self.block.error(self.rows[position] if self.rows else 0, message)


@dataclass(frozen=True, slots=True)
class Word:
    """A word to be written.

    Args:
        form: the word itself.
        tag: its tag; None: it has none.
        probability: the probability of the tag; None: it is not written.
        space: the white space after the word; None if it is not known.
        start: where in the text the word starts; None: it is not written.
    """

    form: str
    tag: str | None
    probability: float | None = None
    space: str | None = None
    start: int | None = None


@dataclass(frozen=True, slots=True)
class Entity:
    """A mention of an entity.

    Args:
        start, end: it is `text[start:end]` of the text of the sentence, in characters (Unicode code
            points). A sentence without a text has the words joined by single spaces. None: the text
            does not consist of the words.
        label: its type, such as "PER".
        text: the mention as it stands in the text; if its place is not known, its words joined by
            spaces.
        start_word, end_word: it has the words start_word, ..., end_word - 1 of the sentence.
        probability: the probability of this mention; None: it was not asked for.

    Example:
        >>> from bcrf.tagger.data import Entity
        >>> Entity(0, 12, "PER", "Ada Lovelace", 0, 2, 0.93123).to_dict()["probability"]
        0.9312
    """

    start: int | None
    end: int | None
    label: str
    text: str
    start_word: int
    end_word: int
    probability: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the entity as plain values, for JSON; the probability has four digits.

        Example:
            >>> Entity(0, 3, "PER", "Ada", 0, 1).to_dict()["text"]
            'Ada'
        """
        values = {name: getattr(self, name) for name in self.__slots__}
        if self.probability is None:
            del values["probability"]
        else:
            values["probability"] = round(self.probability, 4)
        return values


class Token(NamedTuple):
    """A token of the text: a word, or a multiword token (French `du`) with its words (`de`, `le`).

    Args:
        form: the token, as it stands in the text.
        words: its words, at least one.
        space: the white space after the token; None if it is not known.
    """

    form: str
    words: tuple[str, ...]
    space: str | None


class Format(ABC):
    """A file format: reads sentences from lines, and writes sentences with tags."""

    name: str

    @property
    def fills(self) -> bool:
        """Whether the format can hold tags beside the words (`fill`)."""
        return True

    @property
    def composes(self) -> bool:
        """Whether sentences of other formats can be written in this format (`compose`)."""
        return True

    @abstractmethod
    def sentences(self, lines: Iterable[str], path: str) -> Iterator[Sentence | DataError]:
        """Yield the sentences of a file, and the error of each malformed sentence in its place."""

    @abstractmethod
    def tags(self, sentence: Sentence, column: str) -> list[str]:
        """Return the tags of the words in the file; `column` is "upos", "xpos" or "ner"."""

    def spaces(self, sentence: Sentence) -> list[str] | None:
        """Return the white space after each word; None if it is not known."""
        return None

    def tokens(self, sentence: Sentence) -> list[Token]:
        """Return the tokens of the text; by default, each word is one."""
        unknown: list[str | None] = [None] * len(sentence)
        spaces = self.spaces(sentence) or unknown
        return [Token(w, (w,), space) for w, space in zip(sentence.words, spaces, strict=True)]

    def starts_paragraph(self, sentence: Sentence) -> bool:
        """Return whether the file says that a paragraph or document begins with the sentence."""
        return False

    # Sentences are written line by line: all lines of a long sentence would take much memory.

    @abstractmethod
    def fill_lines(
        self,
        sentence: Sentence,
        tags: Sequence[str],
        column: str,
        probabilities: Sequence[float] | None = None,
        entities: Sequence[Entity] | None = None,
    ) -> Iterator[str]:
        """Yield the lines of the sentence with `tags` in `column`; nothing else changes.

        Args:
            entities: the mentions that the tags stand for; only JSONL can hold them.
        """

    @abstractmethod
    def compose_lines(
        self,
        words: Sequence[Word],
        column: str,
        text: str | None = None,
        offset: int | None = None,
        entities: Sequence[Entity] | None = None,
    ) -> Iterator[str]:
        """Yield new lines for a sentence of another format.

        Args:
            words: the words.
            column: the column of their tags.
            text: the text of the sentence, if it is known.
            offset: where the text begins in the file, see `Sentence`; only JSONL can hold it.
            entities: as for `fill_lines`.
        """

    def rewrite_lines(
        self, sentence: Sentence, words: Sequence[Word], column: str, text: str | None = None
    ) -> Iterator[str]:
        """Yield lines with new words or columns for a sentence that has this class of format.

        Comments and other fields are kept.
        """
        return self.compose_lines(words, column, text)

    def fill(
        self,
        sentence: Sentence,
        tags: Sequence[str],
        column: str,
        probabilities: Sequence[float] | None = None,
    ) -> str:
        """Return the lines of `fill_lines` as one string."""
        return "".join(self.fill_lines(sentence, tags, column, probabilities))

    def compose(self, words: Sequence[Word], column: str, text: str | None = None) -> str:
        """Return the lines of `compose_lines` as one string."""
        return "".join(self.compose_lines(words, column, text))


def check_fields(words: Sequence[Word], forbidden: str, format: str) -> None:
    """Raise ValueError if a word or tag is empty or holds a character that would break a line."""
    for word in words:
        for field in (word.form, *([] if word.tag is None else [word.tag])):
            if not field or any(character in field for character in forbidden):
                raise ValueError(
                    f"{shorten(field)} cannot be written as {format}; a field must not be empty "
                    f"and must not contain {', '.join(map(repr, forbidden))}. Write JSONL instead"
                )


Item = TypeVar("Item")


class ComputedSequence(Sequence[Item], Generic[Item]):
    """A sequence whose items are computed on access.

    A tuple of two numbers takes 120 bytes, which is too much for a sentence of a million words.

    Args:
        length: the number of items.
        item: returns the item at an index.
    """

    def __init__(self, length: int, item: Callable[[int], Item]) -> None:
        self._range, self._item = range(length), item

    def __len__(self) -> int:
        return len(self._range)

    def __iter__(self) -> Iterator[Item]:
        return map(self._item, self._range)

    @overload
    def __getitem__(self, index: int) -> Item: ...

    @overload
    def __getitem__(self, index: slice) -> list[Item]: ...

    def __getitem__(self, index: int | slice) -> Item | list[Item]:
        if isinstance(index, slice):
            return [self._item(i) for i in self._range[index]]
        return self._item(self._range[index])
