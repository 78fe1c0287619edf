"""Why something could not be fetched."""

from __future__ import annotations

__all__ = ["FetchError", "NotThere"]


class FetchError(Exception):
    """Data could not be fetched, or are not what they should be."""


class NotThere(FetchError):
    """The place was reached, but does not have the file."""
