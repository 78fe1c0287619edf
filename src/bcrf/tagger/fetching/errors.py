"""Errors of fetching, and the import of the packages that it needs."""

from __future__ import annotations

from importlib import import_module
from typing import Any

__all__ = ["FetchError", "FileMissing", "import_optional"]


class FetchError(Exception):
    """Data could not be fetched, or are not what was expected.

    Example:
        >>> from bcrf.tagger.fetching import fetch_treebank
        >>> fetch_treebank("English")
        Traceback (most recent call last):
        bcrf.tagger.fetching.errors.FetchError: 'English' is not the name of a treebank; ...
    """


class FileMissing(FetchError):
    """The source was reached, but it does not have the file."""


def import_optional(name: str) -> Any:
    """Return the module pooch or requests; if it is missing, say how to install it."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise ImportError(
            f"fetching data needs the package {name}: pip install '.[cli]'"
        ) from error
