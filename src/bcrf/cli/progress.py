"""A bar on standard error while something takes its time."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec

__all__ = ["Update", "progress_bar"]

Update = Callable[[str, int, "int | None"], None]
"""Told what is going on, how much of it is done, and of how much (None: nobody knows)."""


@contextmanager
def progress_bar(wanted: bool = True) -> Iterator[Update]:
    """A bar that is gone in the end; none at all unless standard error is a terminal."""
    if not (wanted and sys.stderr.isatty() and find_spec("rich") is not None):
        yield lambda text, done, total: None
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
        # Lines that are printed meanwhile go above the bar; but what goes to a file or a pipe is
        # left alone.
        redirect_stdout=sys.stdout.isatty(),
    )
    with bar:
        task = bar.add_task("", total=None)
        yield lambda text, done, total: bar.update(
            task, description=escape(text), completed=done, total=total
        )
