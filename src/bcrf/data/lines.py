"""Files as lines of text, byte for byte, and lines as blocks between empty lines."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO

from .errors import DataError

__all__ = [
    "BOM",
    "MAX_SENTENCE_BYTES",
    "MAX_SENTENCE_LINES",
    "Block",
    "Source",
    "content",
    "ending",
    "read_lines",
    "record_lines",
    "split_blocks",
]

BOM = "\ufeff"

MAX_SENTENCE_BYTES = 64 << 20
"""A line may have so many bytes, and the lines of a sentence so many characters: input without end
does not fill the memory, and a sentence of a million words passes."""

MAX_SENTENCE_LINES = 4_000_000
"""A sentence may have so many lines, because short lines take more memory than their bytes."""

Source = str | os.PathLike[str] | BinaryIO
"""A path, or a binary stream such as `sys.stdin.buffer`."""


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive raw lines of a file that hold one sentence: all blocks together are the file."""

    path: str
    first_line: int
    lines: tuple[str, ...]

    def error(self, row: int, message: str) -> DataError:
        """The error at `lines[row]`."""
        return DataError(self.path, self.first_line + row, message)


def content(line: str) -> str:
    """A raw line without its end (`\\n` or `\\r\\n`) and without a byte order mark."""
    if line.endswith("\n"):
        line = line[:-2] if line.endswith("\r\n") else line[:-1]
    return line.removeprefix(BOM)


def ending(line: str) -> str:
    """How a raw line ends: `\\n`, `\\r\\n`, or nothing at the end of some files."""
    return "\r\n" if line.endswith("\r\n") else "\n" if line.endswith("\n") else ""


def read_lines(source: Source, name: str) -> Iterator[str]:
    """The lines of a UTF-8 file, with their ends and a byte order mark as they are.

    Only `\\n` ends a line: the other characters that `str.splitlines` splits at (form feeds,
    U+2028, ...) occur inside words of real corpora.
    """
    try:
        if isinstance(source, str | os.PathLike):
            with Path(source).open("rb") as stream:
                yield from _decode(stream, name)
        else:
            yield from _decode(source, name)
    except OSError as error:
        raise DataError(name, None, f"cannot be read: {error.strerror or error}") from error


def _decode(stream: BinaryIO, name: str) -> Iterator[str]:
    offset = number = 0
    for raw in iter(partial(stream.readline, MAX_SENTENCE_BYTES + 1), b""):
        number += 1  # noqa: SIM113 (`enumerate` would hold the last line)
        if len(raw) > MAX_SENTENCE_BYTES:
            raise DataError(
                name,
                number,
                f"the line has more than {MAX_SENTENCE_BYTES:,} bytes; expected shorter lines that "
                "end with a line feed: split the text into sentences",
            )
        try:
            line = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            found = f"byte 0x{raw[error.start]:02X} at offset {offset + error.start}"
            raise DataError(
                name, number, f"expected UTF-8, found {found} of the file; convert it to UTF-8"
            ) from error
        offset += len(raw)
        del raw  # a long line would stay in memory until the next one is asked for
        yield line


def record_lines(lines: Iterator[str], record: list[str]) -> Iterator[str]:
    """The lines, each of which is added to `record`.

    They end when they have as many characters as a sentence may have, so that looking ahead takes
    no more memory than reading.
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
    """Cut a file after each run of blank lines; blank lines at its start join the first block.

    A file of blank lines alone is one block; an empty file is none.
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
