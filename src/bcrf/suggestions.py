"""Suggest the known name that a misspelt name was probably meant to be.

This module does not import torch, because the command line reports misspelt options at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

__all__ = ["did_you_mean"]


def did_you_mean(word: str, known: Iterable[str], *, count: int = 1, quote: str = "{}") -> str:
    """Return "; did you mean X?" with the known names that are most similar to `word`, or "".

    A word without a dot is compared with the last parts of the names: `--epohcs` resembles
    `--training.epochs`.

    Args:
        word: the unknown name.
        known: the names that are accepted.
        count: how many similar names to suggest at most.
        quote: how a suggestion is written; `{}` stands for the name.

    Example:
        >>> did_you_mean("tga", ["tag", "train"])
        '; did you mean tag?'
        >>> did_you_mean("--epohcs", ["--training.epochs", "--model.layers", "--help"])
        '; did you mean --training.epochs?'
        >>> did_you_mean("laeyrs", ["layers", "width"], quote="'model.{}'")
        "; did you mean 'model.layers'?"
        >>> did_you_mean("xyz", ["tag", "train"])
        ''
    """
    names = list(known)
    matches = [name for name in names if _last_part(name) == _last_part(word)]
    if not matches:
        compared = str if "." in word else _last_part
        closest = get_close_matches(compared(word), map(compared, names), n=count)
        similar = [name for name in names if compared(name) in closest]
        matches = sorted(similar, key=lambda name: closest.index(compared(name)))[:count]
    suggestions = " or ".join(quote.format(name) for name in matches)
    return f"; did you mean {suggestions}?" if matches else ""


def _last_part(name: str) -> str:
    """Return a name without its dashes and all parts before the last dot."""
    return name.lstrip("-").rpartition(".")[2]
