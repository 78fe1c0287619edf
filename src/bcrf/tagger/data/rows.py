"""Read JSON lines row by row: a row that cannot be read does not stop the rows after it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .jsonl import JsonlFormat
from .lines import Block, DataError, Source, content, read_lines_with_errors
from .sentence import Sentence

__all__ = ["BadRow", "parse_row", "read_rows"]

_JSONL = JsonlFormat()


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that cannot be read or tagged.

    Args:
        error: what is wrong, with the file and the line.
        text: the row, without its line end; None if it is too long or not UTF-8.
    """

    error: DataError
    text: str | None = None


def read_rows(source: Source, name: str) -> Iterator[Sentence | BadRow]:
    """Yield a `Sentence` or a `BadRow` for each line of a file of JSON lines, in order.

    Args:
        source: a path, or a binary stream.
        name: the name of the file in messages.

    Raises:
        DataError: the file cannot be read.

    Example:
        >>> import io
        >>> good, bad = read_rows(io.BytesIO(b'{"words": ["Ada"]}\\n{"words": 1}\\n'), "a.jsonl")
        >>> good.words
        ('Ada',)
        >>> print(bad.error)
        a.jsonl:2: "words": expected a list of non-empty strings, found 1
    """
    for number, line in enumerate(read_lines_with_errors(source, name), start=1):
        if isinstance(line, DataError):
            yield BadRow(line)
        else:
            yield parse_row(line, name, number)


def parse_row(line: str, name: str, number: int) -> Sentence | BadRow:
    """Return the row in a line; `name` and `number` are the place in messages."""
    try:
        return _JSONL.parse(Block(name, number, (line,)))
    except DataError as error:
        return BadRow(error, content(line))
