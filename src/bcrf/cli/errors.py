"""Which errors are the user's to mend, and how to say them."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

__all__ = ["UserError", "explain", "optional"]


class UserError(Exception):
    """Something that the user can mend; the message says what and where."""


class MissingExtra(UserError):
    """A package that the command needs is not installed."""


def explain(error: Exception) -> str | None:
    """What to tell the user; None if it is not for the user to mend."""
    if isinstance(error, UserError | FloatingPointError):
        return str(error)
    if isinstance(error, OSError):
        if error.filename is None or error.strerror is None:
            return str(error)
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, ImportError) and "pip install" in str(error):
        return str(error)
    # torch has no error of its own for this.
    if isinstance(error, MemoryError) or "can't allocate memory" in str(error):
        return "the memory is exhausted; choose a smaller network or smaller batches"

    # Imported here, because most errors are none of these.
    from ..data import DataError
    from ..fetching import FetchError
    from ..tagging import ModelError

    if isinstance(error, DataError | FetchError | ModelError):
        return str(error)
    return None


def optional(module: str, extra: str, purpose: str) -> ModuleType:
    """The module, or an error that says how to install it.

    Args:
        module: dotted name.
        extra: of this project, that brings it.
        purpose: what needs it.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        if error.name != package:
            raise
        raise MissingExtra(
            f"{purpose} needs the package {package}: pip install 'bcrf[{extra}]'"
        ) from error
