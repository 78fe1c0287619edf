"""Column files: one word per line, with its tag in a column (two columns, CoNLL-2003, UNER).

- Columns are separated by tabs if the line of the first word has a tab, otherwise by spaces.
- A line of spaces and tabs is an empty line (WNUT-17 separates sentences by such lines).
- There are no comments, because `#` may be a word. Only UNER files have comments: there the line of
  a word starts with its number, so a line that starts with `#` is not a word.
- A line with `-DOCSTART-` in its first column starts a document, if it comes before the first word
  of a sentence. It is not a word.
- A byte order mark may start any line, because files may have been concatenated. It is not part of
  a word, unless it is the whole first column.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from .conllu_fields import WordIds
from .lines import BOM, Block, DataError, content, ending, shorten, split_blocks
from .sentence import Entity, Format, Sentence, Word, check_fields

__all__ = ["ColumnsFormat", "is_blank"]

DOCUMENT_START = "-DOCSTART-"

# Separators are tabs and spaces only: other white space, such as U+00A0, occurs in words.
_FIELD = re.compile(r"[^ \t]+")

_COUNT = {"conll2003": 4, "uner": 5}
_TAG_INDEX = {"conll2003": {"xpos": 1, "ner": 3}, "uner": {"ner": 2}}


def is_blank(line: str) -> bool:
    """Return whether a raw line separates sentences."""
    return not content(line).strip(" \t")


def _content(line: str) -> str:
    """Return a raw line without its line end and byte order mark.

    A byte order mark (U+FEFF) that is the whole first column stays: it is the word.
    """
    text = content(line)
    is_word = line.startswith(BOM) and text.startswith("\t") and not is_blank(line)
    return BOM + text if is_word else text


def _starts_document(line: str) -> bool:
    first = _FIELD.match(line)
    return first is not None and first[0] == DOCUMENT_START


@dataclass(frozen=True, slots=True)
class ColumnsFormat(Format):
    """A column format. `tabs` and `count` are None until the first line with a word is read.

    Args:
        name: "columns" (the word first, its tag last), "conll2003" (word, part of speech, chunk,
            entity) or "uner" (number, word, entity and two more columns; comments).
        tabs: True if columns are separated by tabs, False if by spaces.
        count: the number of columns.
    """

    name: str = "columns"
    tabs: bool | None = None
    count: int | None = None

    @property
    def composes(self) -> bool:
        return self.name == "columns"  # the others have columns that we cannot fill

    @property
    def numbered(self) -> bool:
        """Whether each line starts with the number of its word; such files may have comments."""
        return self.name == "uner"

    def sentences(self, lines: Iterable[str], path: str) -> Iterator[Sentence | DataError]:
        layout = self
        for block in split_blocks(lines, path, is_blank):
            if layout.count is None:
                first = next(filter(self._holds_word, map(_content, block.lines)), None)
                layout = self if first is None else self._with_layout_of(first)
            try:
                yield layout._parse(block)
            except DataError as error:
                yield error

    def tags(self, sentence: Sentence, column: str) -> list[str]:
        index = self._tag_index(column)
        if index is None:
            raise DataError(sentence.path, None, f"has no column with {column} tags")
        lines = sentence.block.lines
        tags = [self._split(_content(lines[row]))[index] for row in sentence.rows]
        if not all(tags):
            raise sentence.error(tags.index(""), "the tag is empty")
        return tags

    def fill_lines(
        self,
        sentence: Sentence,
        tags: Sequence[str],
        column: str,
        probabilities: Sequence[float] | None = None,
        entities: Sequence[Entity] | None = None,
    ) -> Iterator[str]:
        lines, done = sentence.block.lines, 0
        index = self._tag_index(column)
        for position, (row, tag) in enumerate(zip(sentence.rows, tags, strict=True)):
            yield from lines[done:row]
            end = ending(lines[row])
            line = _content(lines[row])
            start = lines[row].removesuffix(line + end)  # empty, or the byte order mark
            line = self._append(line, tag) if index is None else self._replace(line, index, tag)
            if probabilities is not None:
                line = self._append(line, f"{probabilities[position]:.4f}")
            yield start + line + end
            done = row + 1
        yield from lines[done:]

    def compose_lines(
        self,
        words: Sequence[Word],
        column: str,
        text: str | None = None,
        offset: int | None = None,
        entities: Sequence[Entity] | None = None,
    ) -> Iterator[str]:
        if not self.composes:
            raise ValueError(
                f"new sentences cannot be written in the format {self.name}; use columns instead"
            )
        check_fields(words, "\t\r\n", "columns")
        return chain(map(_composed, words), ["\n"])

    def rewrite_lines(
        self, sentence: Sentence, words: Sequence[Word], column: str, text: str | None = None
    ) -> Iterator[str]:
        """Yield new lines for a sentence; the line that starts a document is kept."""
        before = sentence.block.lines[: sentence.rows[0] if sentence.rows else None]
        starts = any(_starts_document(content(line)) for line in before)
        tag = "O" if column == "ner" else "-X-"  # as in CoNLL-2003
        marker = [f"{DOCUMENT_START}\t{tag}\n"] if starts else []
        # `compose_lines` ends with an empty line, also if there are no words after the marker.
        return chain(marker, self.compose_lines(words, column, text))

    # Reading

    def _holds_word(self, line: str) -> bool:
        """Return whether a line holds a word, if no earlier line of the sentence does."""
        if not line.strip(" \t") or _starts_document(line):
            return False
        return not (self.numbered and line.startswith("#"))

    def _with_layout_of(self, line: str) -> ColumnsFormat:
        """Return this format with the separator and the number of columns of a word's line."""
        tabs = "\t" in line
        count = len(line.split("\t") if tabs else _FIELD.findall(line))
        return ColumnsFormat(self.name, tabs, _COUNT.get(self.name, count))

    def _split(self, line: str) -> list[str]:
        return line.split("\t") if self.tabs else _FIELD.findall(line)

    def _parse(self, block: Block) -> Sentence:
        words: list[str] = []
        rows = array("q")
        text = None
        ids = WordIds()
        for row, raw in enumerate(block.lines):
            line = _content(raw)
            if not (self._holds_word(line) or (words and _starts_document(line))):
                if self.numbered and line.startswith("# text ="):
                    text = line.partition("=")[2].removeprefix(" ")
                continue
            fields = self._split(line)
            if len(fields) != self.count:
                kind = "tab" if self.tabs else "space"
                found = f"found {len(fields)} {kind}-separated columns"
                raise block.error(row, f"{found}; expected {self.count}: {shorten(line)}")
            if self.numbered:
                ids.take(fields[0], block, row)
                if not ids.at_word:
                    continue
            word = fields[1 if self.numbered else 0]
            if not word:
                raise block.error(row, f"the word is empty: {shorten(line)}")
            words.append(word)
            rows.append(row)
        return Sentence(tuple(words), rows, block, self, text)

    def _tag_index(self, column: str) -> int | None:
        """Return the index of the column with these tags; None if the file has no such column."""
        if self.name in _TAG_INDEX:
            return _TAG_INDEX[self.name].get(column)
        return None if self.count == 1 else -1

    # Writing

    def _append(self, line: str, field: str) -> str:
        return f"{line}\t{field}" if self.tabs else f"{line} {field}"

    def _replace(self, line: str, index: int, field: str) -> str:
        """Return `line` with one field replaced; the separators stay as they are."""
        if self.tabs:
            fields = line.split("\t")
            fields[index] = field
            return "\t".join(fields)
        place = list(_FIELD.finditer(line))[index]
        return line[: place.start()] + field + line[place.end() :]


def _composed(word: Word) -> str:
    fields = [word.form] if word.tag is None else [word.form, word.tag]
    if word.probability is not None:
        fields.append(f"{word.probability:.4f}")
    return "\t".join(fields) + "\n"
