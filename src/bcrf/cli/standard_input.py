"""Standard input, which only the reader of the text to be tagged may read.

A library that asks a question on standard input would take a line of that text for the answer.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO, TextIO

from .errors import UserError

__all__ = ["is_terminal", "reserved_standard_input", "standard_input"]

_reserved: TextIO | None = None


@contextmanager
def reserved_standard_input() -> Iterator[None]:
    """Within the block `sys.stdin` is empty; only `standard_input` gives the real one."""
    global _reserved
    with open(os.devnull) as empty:
        _reserved, sys.stdin = sys.stdin, empty
        try:
            yield
        finally:
            sys.stdin, _reserved = _reserved, None


def standard_input() -> BinaryIO:
    """The bytes of standard input."""
    if _reserved is None:
        raise UserError("standard input is closed; give a FILE, or text through a pipe")
    return _reserved.buffer


def is_terminal() -> bool:
    """Whether a person types into standard input."""
    return _reserved is not None and _reserved.isatty()
