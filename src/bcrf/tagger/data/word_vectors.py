"""Read pretrained word vectors from a text file of fastText or GloVe."""

from __future__ import annotations

import math
import os
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import BinaryIO

from ..files import open_regular
from .lines import DataError, shorten

__all__ = ["MAX_LINE_BYTES", "MAX_VECTOR_WIDTH", "WordVectors", "read_word_vectors"]

MAX_LINE_BYTES = 1 << 18
"""Maximal bytes of a line of a file of vectors."""

MAX_VECTOR_WIDTH = 4096
"""Maximal width of a vector."""


@dataclass(frozen=True)
class WordVectors:
    """Words with their vectors.

    Args:
        words: the words, in the order of the file.
        width: width of the vectors.
        numbers: the float32 numbers of all vectors, one vector after the other.
    """

    words: tuple[str, ...]
    width: int
    numbers: array[float]


def read_word_vectors(
    path: str | os.PathLike[str], is_wanted: Callable[[str], bool], first: int = 0
) -> WordVectors:
    """Return the vectors of the wanted words; the file is streamed.

    Each line has a word and its numbers, separated by single spaces. The first line may instead
    hold the number of words and the width, as fastText writes it. A word may contain spaces. If a
    word occurs twice, its first vector counts.

    Args:
        path: the file, in UTF-8.
        is_wanted: whether the vector of a word is kept.
        first: keep also the first words of the file, as many as this number. Most files begin with
            the most frequent words.

    Raises:
        DataError: a line is malformed, or the file has no vector.

    Example:
        >>> import tempfile
        >>> with tempfile.NamedTemporaryFile("w", suffix=".vec") as file:
        ...     _ = file.write("2 3\\nthe 0.5 0 1\\ncat 1 2 3\\n")
        ...     _ = file.flush()
        ...     found = read_word_vectors(file.name, {"cat", "dog"}.__contains__)
        >>> found.words, found.width, list(found.numbers)
        (('cat',), 3, [1.0, 2.0, 3.0])
    """
    name = os.fspath(path)
    kept: dict[str, None] = {}
    numbers = array("f")
    width = declared = count = 0
    try:
        with open_regular(path) as stream:
            for number, line in _lines(stream, name):
                if number == 1 and (declared := _declared_width(line)):
                    continue
                if not width:
                    width = declared or _width_of(line, name, number)
                fields = line.rsplit(b" ", width)
                if len(fields) <= width or not fields[0]:
                    raise DataError(
                        name,
                        number,
                        f"expected a word and {width} numbers, separated by single spaces, found "
                        f"{len(line.split())} fields: {_quoted(line)}",
                    )
                count += 1
                word = _decoded(fields[0], name, number)
                if word in kept or not (count <= first or is_wanted(word)):
                    continue
                if b" " in fields[0] and _is_number(fields[0].rsplit(b" ", 1)[1]):
                    raise DataError(
                        name, number, f"expected {width} numbers after the word, found more"
                    )
                numbers.extend(_parsed(fields[1:], name, number))
                kept[word] = None
    except OSError as error:
        raise DataError(name, None, f"cannot be read: {error.strerror or error}") from error
    if not count:
        raise DataError(name, None, "has no vectors; expected a text file of fastText or GloVe")
    return WordVectors(tuple(kept), width, numbers)


def _lines(stream: BinaryIO, name: str) -> Iterator[tuple[int, bytes]]:
    """Yield the number and the content of each line that is not empty."""
    lines = iter(partial(stream.readline, MAX_LINE_BYTES + 1), b"")
    for number, line in enumerate(lines, start=1):
        if len(line) > MAX_LINE_BYTES:
            raise DataError(
                name,
                number,
                f"the line has more than {MAX_LINE_BYTES:,} bytes; expected a word and its vector, "
                "as in a text file of fastText or GloVe",
            )
        line = line.rstrip(b" \r\n")
        if line:
            yield number, line


def _declared_width(line: bytes) -> int:
    """Return the width in the first line of a fastText file; 0: it is no such line."""
    fields = line.split()
    if len(fields) != 2 or not all(field.isdigit() and len(field) < 12 for field in fields):
        return 0
    width = int(fields[1])
    return width if 2 <= width <= MAX_VECTOR_WIDTH else 0


def _width_of(line: bytes, name: str, number: int) -> int:
    """Return the width of the vectors, from the first line that has one."""
    width = len(line.split(b" ")) - 1
    if not 2 <= width <= MAX_VECTOR_WIDTH:
        raise DataError(
            name,
            number,
            f"expected a word and 2 to {MAX_VECTOR_WIDTH:,} numbers, separated by single spaces, "
            f"found {_quoted(line)}",
        )
    return width


def _parsed(fields: list[bytes], name: str, number: int) -> list[float]:
    values = []
    for field in fields:
        if not _is_number(field):
            raise DataError(name, number, f"expected a finite number, found {_quoted(field)}")
        values.append(float(field))
    return values


def _is_number(field: bytes) -> bool:
    """Return whether a field is a number that float32 can hold."""
    try:
        value = float(field)
    except ValueError:
        return False
    return math.isfinite(value) and abs(value) < 3e38


def _decoded(word: bytes, name: str, number: int) -> str:
    try:
        return word.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            name, number, f"expected a word in UTF-8, found {word[:60]!r}; convert the file"
        ) from error


def _quoted(line: bytes) -> str:
    return shorten(line[:100].decode("utf-8", "backslashreplace"))
