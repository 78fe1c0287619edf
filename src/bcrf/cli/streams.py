"""Standard input, output and error of the command.

Only `bcrf tag` may read standard input. If a library asked a question on standard input, it would
consume a line of the text to be tagged as the answer. So `sys.stdin` is empty while a command runs.
"""

from __future__ import annotations

import codecs
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO, TextIO

from .errors import UserError

__all__ = ["is_terminal", "prepare_output_streams", "reserved_standard_input", "standard_input"]

_reserved: TextIO | None = None


@contextmanager
def reserved_standard_input() -> Iterator[None]:
    """Make `sys.stdin` empty within the block; `standard_input` returns the real one."""
    global _reserved
    with open(os.devnull) as empty:
        _reserved, sys.stdin = sys.stdin, empty
        try:
            yield
        finally:
            sys.stdin, _reserved = _reserved, None


def standard_input() -> BinaryIO:
    """Return the binary stream of standard input."""
    if _reserved is None:
        raise UserError("standard input is closed; name a FILE, or pipe the text into the command")
    return _reserved.buffer


def is_terminal() -> bool:
    """Return whether standard input is a terminal."""
    return _reserved is not None and _reserved.isatty()


def prepare_output_streams() -> None:
    """Make standard output and error accept everything that commands print."""
    if sys.stdout is None:  # the caller has closed it (`>&-`)
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    # A file name may be invalid UTF-8, and the output encoding may lack characters of the tags.
    if isinstance(sys.stdout, io.TextIOWrapper):
        utf8 = codecs.lookup(sys.stdout.encoding).name == "utf-8"
        sys.stdout.reconfigure(errors="surrogateescape" if utf8 else "backslashreplace")
