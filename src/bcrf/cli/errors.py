"""Errors that the user can correct, and how they are reported."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from importlib import import_module
from types import ModuleType

__all__ = ["UserError", "did_you_mean", "explain", "import_extra"]


class UserError(Exception):
    """A mistake that the user can correct; the message says what is wrong and where."""


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
        return "the memory is exhausted; choose a smaller network or smaller batches"

    # We import these modules only now, because they import torch, which takes seconds.
    from ..tagger import ModelError
    from ..tagger.data import DataError
    from ..tagger.fetching import FetchError

    if isinstance(error, DataError | FetchError | ModelError):
        return str(error)
    return None


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return "; did you mean X?" with the known word that is most similar to `word`, or "".

    A word also resembles a dotted name that ends in it: `--epochs` resembles `--training.epochs`.

    Example:
        >>> did_you_mean("tga", ["tag", "train"])
        '; did you mean tag?'
        >>> did_you_mean("--epochs", ["--training.epochs", "--model.layers"])
        '; did you mean --training.epochs?'
        >>> did_you_mean("xyz", ["tag", "train"])
        ''
    """
    names = list(known)
    last_part = word.lstrip("-").rpartition(".")[2]
    matches = [name for name in names if name.lstrip("-").rpartition(".")[2] == last_part]
    matches = matches or get_close_matches(word, names, n=1)
    return f"; did you mean {' or '.join(matches)}?" if matches else ""


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
