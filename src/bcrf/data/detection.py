"""Which format a file has, from its name and its first lines."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import islice
from pathlib import PurePath

from .columns import DOCUMENT_START, ColumnsFormat, is_blank
from .conllu import ConlluFormat
from .jsonl import JsonlFormat
from .lines import content
from .sentence import Format
from .text import TextFormat

__all__ = ["FORMATS", "detect_format", "format_named"]

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

LOOK_AHEAD = 100
"""At most so many lines are looked at."""

_BY_SUFFIX = {".conllu": "conllu", ".jsonl": "jsonl", ".ndjson": "jsonl"}
_COLUMN_SUFFIXES = {".conll", ".iob", ".iob1", ".iob2", ".bio", ".bioes", ".tsv", ".col"}

_NUMBERED = {10: "conllu", 5: "uner"}
_ID = re.compile(r"[0-9]+([-.][0-9]+)?")
_MENTION_TAG = re.compile(r"O|[BIOESLUM]-.+")


def format_named(name: str) -> Format:
    """The format of that name."""
    if name not in FORMATS:
        raise ValueError(f"format: expected auto or one of {', '.join(FORMATS)}, got {name!r}")
    return FORMATS[name]


def detect_format(path: str, lines: Iterable[str]) -> Format:
    """The format of a file, from its suffix where that says it, else from its first lines.

    `.conllu`, `.jsonl` and `.ndjson` are taken at their word. Otherwise an object in braces is
    JSONL; ten numbered columns are CoNLL-U and five are UNER; tabs, `-DOCSTART-`, and lines that
    all end in a mention tag (`O`, `B-...`) are columns; and all else is raw text, unless the suffix
    is one that column files have. No more lines are taken than it needs.
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
        elif "\t" in line or not line.startswith("#"):  # else it may be a comment
            name = _format_of_line(line, columns)
            if name is not None:
                return FORMATS[name]
            rows += 1
    return FORMATS["columns" if rows or columns else "text"]


def _format_of_line(line: str, columns: bool) -> str | None:
    """The format of which this may be a line; None if it may be columns or raw text."""
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
