"""Read files as raw lines, split them into blocks at empty lines, and locate errors by line."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO

__all__ = [
    "BOM",
    "MAX_SENTENCE_BYTES",
    "MAX_SENTENCE_LINES",
    "Block",
    "DataError",
    "Source",
    "content",
    "ending",
    "read_lines",
    "read_lines_with_errors",
    "record_lines",
    "shorten",
    "split_blocks",
]

BOM = "\ufeff"

MAX_SENTENCE_BYTES = 64 << 20
"""Maximal bytes of a line, and maximal characters of the lines of a sentence. Input without end
does not fill the memory, and a sentence of a million words is still read."""

MAX_SENTENCE_LINES = 4_000_000
"""Maximal lines of a sentence: each line takes memory beyond its characters."""

Source = str | os.PathLike[str] | BinaryIO
"""A path, or a binary stream such as `sys.stdin.buffer`."""


# Bytes that are read at a time to skip the rest of a line that is too long.
_CHUNK = 1 << 16

# How many characters of a value a message quotes; a line may have millions.
_QUOTED = 60


def shorten(value: object) -> str:
    """Return the repr of a value for a message; a long one is cut and ends in dots.

    >>> shorten("a" * 1000)
    "'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa'..."
    """
    if isinstance(value, str):
        return repr(value[:_QUOTED]) + ("..." if len(value) > _QUOTED else "")
    text = repr(value)
    return text if len(text) <= _QUOTED else f"{text[:_QUOTED]}..."


class DataError(ValueError):
    """Malformed data. The message reads `path:line: what was found and what was expected`.

    Args:
        path: the file, or the name of a stream such as `<stdin>`.
        line: the line, counted from 1; None if the error is about the whole file.
        message: what was found and what was expected.

    Example:
        >>> print(DataError("train.conllu", 7, "the form (column 2) is empty; expected a word"))
        train.conllu:7: the form (column 2) is empty; expected a word
    """

    def __init__(self, path: str, line: int | None, message: str) -> None:
        super().__init__(path, line, message)  # `pickle` calls the class with these arguments
        self.path = path
        self.line = line
        self.message = message

    def __str__(self) -> str:
        place = self.path if self.line is None else f"{self.path}:{self.line}"
        return f"{place}: {self.message}"


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive raw lines of a file with one sentence. Joined, all blocks equal the file."""

    path: str
    first_line: int
    lines: tuple[str, ...]

    def error(self, row: int, message: str) -> DataError:
        """Return a DataError at `lines[row]`."""
        return DataError(self.path, self.first_line + row, message)


def content(line: str) -> str:
    """Return a raw line without its end (`\\n` or `\\r\\n`) and without a byte order mark."""
    if line.endswith("\n"):
        line = line[:-2] if line.endswith("\r\n") else line[:-1]
    return line.removeprefix(BOM)


def ending(line: str) -> str:
    """Return the line end of a raw line: `\\n`, `\\r\\n`, or "" (in the last line of a file)."""
    return "\r\n" if line.endswith("\r\n") else "\n" if line.endswith("\n") else ""


def read_lines(source: Source, name: str) -> Iterator[str]:
    """Yield the lines of a UTF-8 file; line ends and byte order marks are kept.

    Only `\\n` ends a line. The other characters at which `str.splitlines` splits (form feeds,
    U+2028, ...) occur inside words of real corpora.
    """
    for line in read_lines_with_errors(source, name):
        if isinstance(line, DataError):
            raise line
        yield line


def read_lines_with_errors(source: Source, name: str) -> Iterator[str | DataError]:
    """Yield what `read_lines` yields, and the error of each line that is too long or not UTF-8.

    A file that cannot be read raises DataError.
    """
    try:
        if isinstance(source, str | os.PathLike):
            with Path(source).open("rb") as stream:
                yield from _decode(stream, name)
        else:
            yield from _decode(source, name)
    except OSError as error:
        raise DataError(name, None, f"cannot be read: {error.strerror or error}") from error


def _decode(stream: BinaryIO, name: str) -> Iterator[str | DataError]:
    offset = number = 0
    for raw in iter(partial(stream.readline, MAX_SENTENCE_BYTES + 1), b""):
        number += 1  # noqa: SIM113 (`enumerate` would keep a reference to the line)
        length, is_complete = len(raw), raw.endswith(b"\n")
        line: str | DataError
        if length > MAX_SENTENCE_BYTES:
            line = DataError(
                name,
                number,
                f"the line has more than {MAX_SENTENCE_BYTES:,} bytes; split the text into "
                "sentences, with a line feed after each line",
            )
        else:
            try:
                line = raw.decode("utf-8")
            except UnicodeDecodeError as error:
                found = f"byte 0x{raw[error.start]:02X} at offset {offset + error.start}"
                line = DataError(
                    name,
                    number,
                    f"expected UTF-8, found {found} of the file; convert the file to UTF-8",
                )
        del raw  # otherwise a long line would stay in memory until the next one is read
        yield line
        # Skip the rest of a line that is too long, only after its error: the line may have no end.
        while length > MAX_SENTENCE_BYTES and not is_complete:
            rest = stream.readline(_CHUNK)
            length += len(rest)
            is_complete = not rest or rest.endswith(b"\n")
        offset += length


def record_lines(lines: Iterator[str], record: list[str]) -> Iterator[str]:
    """Yield the lines, and append each of them to `record`.

    Stop after as many characters as a sentence may have. So reading ahead takes no more memory than
    reading a sentence.
    """
    size = 0
    for line in lines:
        record.append(line)
        yield line
        size += len(line)
        if size > MAX_SENTENCE_BYTES:
            return


def split_blocks(
    lines: Iterable[str], path: str, is_blank: Callable[[str], bool]
) -> Iterator[Block]:
    """Split the lines of a file after each run of blank lines.

    Blank lines at the start belong to the first block. A file that has only blank lines is one
    block, an empty file has no block.
    """
    pending: list[str] = []
    size = 0
    first, filled, closed = 1, False, False
    for number, line in enumerate(lines, start=1):
        if is_blank(line):
            closed = filled
        else:
            if closed:
                block, pending = Block(path, first, tuple(pending)), []
                yield block
                size, first, closed = 0, number, False
            filled = True
        pending.append(line)
        size += len(line)
        if size > MAX_SENTENCE_BYTES or len(pending) > MAX_SENTENCE_LINES:
            raise DataError(
                path,
                number,
                f"the sentence that begins in line {first} has more than {MAX_SENTENCE_BYTES:,} "
                f"characters or {MAX_SENTENCE_LINES:,} lines; separate sentences by empty lines",
            )
    if pending:
        block, pending = Block(path, first, tuple(pending)), []
        yield block
