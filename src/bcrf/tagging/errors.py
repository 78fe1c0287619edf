"""Why a model cannot be read."""

from __future__ import annotations

__all__ = ["ModelError"]


class ModelError(ValueError):
    """A model that cannot be read; the message begins with the file."""
