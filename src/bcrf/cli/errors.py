"""Errors and warnings for the user, and how they are reported."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType

__all__ = ["UsageError", "UserError", "explain", "import_extra", "one_line_warnings"]


class UserError(Exception):
    """A mistake that the user can correct; the message says what is wrong and where."""


class UsageError(UserError):
    """An option of the command line is wrong or missing; the message begins with its name."""


class MissingExtra(UserError):
    """A package that a command needs is not installed."""


def explain(error: Exception) -> str | None:
    """Return the message for an error that the user can correct, None for a bug."""
    if isinstance(error, UserError | FloatingPointError):
        return str(error)
    if isinstance(error, OSError):
        if error.filename is None or error.strerror is None:
            return str(error)
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, ImportError) and "pip install" in str(error):
        return str(error)
    # torch reports exhausted memory as a RuntimeError with this text.
    if isinstance(error, MemoryError) or "can't allocate memory" in str(error):
        return (
            "out of memory; train with smaller batches (--training.batch) or a smaller network "
            "(--model.width)"
        )

    # We import these modules only now, because they import torch, which takes seconds.
    from ..tagger import ModelError
    from ..tagger.data import DataError
    from ..tagger.fetching import FetchError

    if isinstance(error, DataError | FetchError | ModelError):
        return str(error)
    return None


@contextmanager
def one_line_warnings() -> Iterator[None]:
    """Print warnings within the block as one line, without the source line that raised them."""

    def show(message: Warning | str, *_: object, **__: object) -> None:
        print(f"bcrf: warning: {message}", file=sys.stderr)

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield


def import_extra(module: str, extra: str, purpose: str) -> ModuleType:
    """Import a module of an optional dependency; if it is missing, say how to install it.

    Args:
        module: dotted name.
        extra: the extra of this project that installs the module.
        purpose: the feature that needs the module, for the error message.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        if error.name != package:
            raise
        raise MissingExtra(
            f"{purpose} needs the package {package}: pip install '.[{extra}]'"
        ) from error
