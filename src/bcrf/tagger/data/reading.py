"""Read the sentences of files of any format, and detect the format."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from pathlib import PurePath

from .columns import DOCUMENT_START, ColumnsFormat, is_blank
from .conllu import ConlluFormat
from .jsonl import JsonlFormat
from .lines import DataError, Source, content, read_lines, record_lines
from .sentence import Format, Sentence
from .text import TextFormat

__all__ = ["FORMATS", "SplitText", "detect_format", "format_named", "read", "read_with_errors"]

FORMATS: dict[str, Format] = {
    format.name: format
    for format in (
        ConlluFormat(),
        ColumnsFormat("columns"),
        ColumnsFormat("conll2003"),
        ColumnsFormat("uner"),
        JsonlFormat(),
        TextFormat(),
    )
}
"""All formats by name."""

SplitText = Callable[[Iterable[str], str], Iterator[Sentence]]
"""Divides raw text, given as the lines and the name of its file, into sentences."""

LOOK_AHEAD = 100
"""Maximal number of lines from which a format is detected."""

_BY_SUFFIX = {".conllu": "conllu", ".jsonl": "jsonl", ".ndjson": "jsonl"}
_COLUMN_SUFFIXES = {".conll", ".iob", ".iob1", ".iob2", ".bio", ".bioes", ".tsv", ".col"}

_NUMBERED = {10: "conllu", 5: "uner"}
_ID = re.compile(r"[0-9]+([-.][0-9]+)?")
_MENTION_TAG = re.compile(r"O|[BIOESLUM]-.+")


def read(
    source: Source,
    format: str = "auto",
    name: str | None = None,
    split: SplitText | None = None,
) -> Iterator[Sentence]:
    """Yield the sentences of a file.

    Args:
        source: a path, or a binary stream.
        format: "conllu", "columns", "conll2003", "uner", "jsonl", "text", or "auto", which detects
            the format by the suffix and the first lines (`detect_format`).
        name: the name of the file in messages; None: its path.
        split: divides the lines of raw text into sentences; None: every line is a sentence, whose
            words are separated by white space.

    Raises:
        DataError: the file cannot be read, is not UTF-8, or is malformed; the message names the
            file and the line.

    Example:
        >>> import io
        >>> [sentence.words for sentence in read(io.BytesIO(b"Hello world\\nBye\\n"), "text")]
        [('Hello', 'world'), ('Bye',)]
    """
    for sentence in read_with_errors(source, format, name, split):
        if isinstance(sentence, DataError):
            raise sentence
        yield sentence


def read_with_errors(
    source: Source,
    format: str = "auto",
    name: str | None = None,
    split: SplitText | None = None,
) -> Iterator[Sentence | DataError]:
    """Yield what `read` yields; yield the error of a malformed sentence instead of raising it."""
    if name is None:
        name = os.fspath(source) if isinstance(source, str | os.PathLike) else "<stream>"
    lines = read_lines(source, name)
    if format == "auto":
        seen: list[str] = []
        layout = detect_format(name, record_lines(lines, seen))
        lines = chain(seen, lines)
    else:
        layout = format_named(format)
    if split is not None and layout.name == "text":
        yield from split(lines, name)
    else:
        yield from layout.sentences(lines, name)


def format_named(name: str) -> Format:
    """Return the format of that name."""
    if name not in FORMATS:
        raise ValueError(f"format: expected auto or one of {', '.join(FORMATS)}, got {name!r}")
    return FORMATS[name]


def detect_format(path: str, lines: Iterable[str]) -> Format:
    """Return the format of a file, from its suffix or else from its first lines.

    The suffixes `.conllu`, `.jsonl` and `.ndjson` determine the format. For other suffixes, the
    first line of one of these kinds determines it:

    - a line that starts with `{`: JSONL;
    - ten columns that start with a number: CoNLL-U; five: UNER;
    - tabs, `-DOCSTART-`, or lines that all end in a mention tag (`O`, `B-...`): columns;
    - anything else: raw text, unless the suffix is that of a column file.

    No more lines are read than necessary.
    """
    suffix = PurePath(path).suffix.lower()
    if suffix in _BY_SUFFIX:
        return FORMATS[_BY_SUFFIX[suffix]]
    columns = suffix in _COLUMN_SUFFIXES
    rows = 0
    for line in map(content, islice(lines, LOOK_AHEAD)):
        if is_blank(line):
            if rows:
                break
        elif line.startswith(DOCUMENT_START):
            columns = True
        elif "\t" in line or not line.startswith("#"):  # otherwise the line may be a comment
            name = _format_of_line(line, columns)
            if name is not None:
                return FORMATS[name]
            rows += 1
    return FORMATS["columns" if rows or columns else "text"]


def _format_of_line(line: str, columns: bool) -> str | None:
    """Return the format that a line indicates; None if it may be columns or raw text."""
    fields = line.split("\t")
    if len(fields) > 1 and _ID.fullmatch(fields[0]) and len(fields) in _NUMBERED:
        return _NUMBERED[len(fields)]
    if len(fields) == 1:
        if line.startswith("{") and not columns:
            return "jsonl"
        fields = line.split()
        if not columns and not (len(fields) > 1 and _MENTION_TAG.fullmatch(fields[-1])):
            return "text"
    else:
        columns = True
    if len(fields) == 4 and all(map(_MENTION_TAG.fullmatch, fields[2:])):
        return "conll2003"
    return "columns" if columns else None
