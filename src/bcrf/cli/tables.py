"""Tables on standard output: drawn on a terminal, plain elsewhere."""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Sequence
from importlib.util import find_spec

__all__ = ["percent", "show_table"]


def show_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table; the first column is aligned to the left, the others to the right."""
    if sys.stdout.isatty() and find_spec("rich") is not None:
        _draw(title, columns, rows)
    else:
        print(plain_table(title, columns, rows), end="")


def percent(share: float) -> str:
    return f"{100 * share:.2f} %"


def _draw(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=escape(title), title_justify="left", box=box.SIMPLE_HEAD)
    for index, column in enumerate(columns):
        table.add_column(escape(column), justify="right" if index else "left")
    for row in rows:
        table.add_row(*map(escape, row))
    Console().print(table)


def plain_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The table as lines of text, its columns separated by two spaces."""
    widths = [max(map(_width, column)) for column in zip(columns, *rows, strict=True)]
    lines = [title]
    for row in (columns, *rows):
        cells = [
            " " * (width - _width(cell)) + cell if index else cell + " " * (width - _width(cell))
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "".join(f"{line}\n" for line in lines)


def _width(text: str) -> int:
    """How many columns a text takes: Chinese and Japanese characters take two."""
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1
        for c in text
    )
