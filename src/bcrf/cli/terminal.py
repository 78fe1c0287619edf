"""Tables and progress bars: drawn on terminals; files and pipes get plain tables and no bars."""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec

__all__ = ["WIDTH", "Update", "percent", "plain_table", "progress_bar", "show_table"]

WIDTH = 80
"""Tables are at most this wide, if their columns allow it."""

Update = Callable[[str, int, "int | None"], None]
"""Takes the text beside the bar, how much is done, and the total (None if it is unknown)."""


@contextmanager
def progress_bar(wanted: bool = True) -> Iterator[Update]:
    """Show a progress bar within the block if standard error is a terminal."""
    if not (wanted and sys.stderr.isatty() and find_spec("rich") is not None):
        yield lambda text, done, total: None
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        TextColumn("{task.fields[count]}"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[remaining]}"),
        console=Console(stderr=True),
        transient=True,
        # Lines that are printed to the terminal meanwhile appear above the bar. If standard output
        # is a file or a pipe, it is not redirected.
        redirect_stdout=sys.stdout.isatty(),
    )
    with bar:
        task_id = bar.add_task("starting", total=None, count="", remaining="")

        def update(text: str, done: int, total: int | None) -> None:
            # Changed words are drawn at once, so that no phase is too short to be seen. Changed
            # numbers wait for rich, which draws ten times a second.
            words_changed = _words(text) != _words(bar.tasks[0].description)
            if done < bar.tasks[0].completed:
                bar.reset(task_id)  # restarts the count and the estimate of the speed
            count = f"{done:,}" if total is None else f"{done:,}/{total:,}"
            is_underway = total is not None and done < total
            remaining = _duration(bar.tasks[0].time_remaining) if is_underway else ""
            bar.update(
                task_id,
                description=escape(text),
                completed=done,
                total=total,
                count=count if done else "",
                remaining=remaining,
                refresh=words_changed,
            )

        yield update


def _words(text: str) -> str:
    """Return a text without its digits.

    Example:
        >>> _words("epoch 1/3  loss 10.25")
        'epoch /  loss .'
    """
    return "".join(character for character in text if not character.isdigit())


def _duration(seconds: float | None) -> str:
    """Return the remaining time as "3:05 left", or "" if it is unknown."""
    if seconds is None:
        return ""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return (f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}") + " left"


def show_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table. The first column is aligned to the left, the others to the right."""
    if sys.stdout.isatty() and find_spec("rich") is not None:
        _draw(title, columns, rows)
    else:
        print(plain_table(title, columns, rows), end="")


def percent(share: float) -> str:
    """Return a share as a percentage with two decimals.

    Example:
        >>> percent(0.9143)
        '91.43 %'
    """
    return f"{100 * share:.2f} %"


def _draw(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console()
    console.print(escape(title))  # rich wraps the title of a table at the table's width
    table = Table(box=box.SIMPLE_HEAD)
    for index, column in enumerate(columns):
        table.add_column(escape(column), justify="right" if index else "left")
    for row in rows:
        table.add_row(*map(escape, row))
    console.print(table)


def plain_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return the table as lines of text, with two spaces between the columns."""
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
    """Return the width of a text in terminal columns; a Chinese or Japanese character takes two."""
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1
        for c in text
    )
