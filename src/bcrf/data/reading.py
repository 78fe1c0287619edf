"""Sentences from files of any format."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import chain

from .detection import detect_format, format_named
from .errors import DataError
from .lines import Source, read_lines, record_lines
from .sentence import Sentence

__all__ = ["read", "read_with_errors"]


def read(source: Source, format: str = "auto", name: str | None = None) -> Iterator[Sentence]:
    """The sentences of a file, one at a time.

    Args:
        source: a path, or a binary stream.
        format: "conllu", "columns", "conll2003", "uner", "jsonl", "text", or "auto": by the file's
            suffix and first lines (`detect_format`).
        name: what to call it in messages; None: its path.

    Raises:
        DataError: the file cannot be read, is not UTF-8, or is malformed; with its line.
    """
    for sentence in read_with_errors(source, format, name):
        if isinstance(sentence, DataError):
            raise sentence
        yield sentence


def read_with_errors(
    source: Source, format: str = "auto", name: str | None = None
) -> Iterator[Sentence | DataError]:
    """Like `read`, but a malformed sentence is given as its error, and the next ones follow."""
    if name is None:
        name = os.fspath(source) if isinstance(source, str | os.PathLike) else "<stream>"
    lines = read_lines(source, name)
    if format == "auto":
        looked_at: list[str] = []
        layout = detect_format(name, record_lines(lines, looked_at))
        lines = chain(looked_at, lines)
    else:
        layout = format_named(format)
    yield from layout.sentences(lines, name)
