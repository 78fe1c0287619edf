"""What is wrong with a file, and where."""

from __future__ import annotations

__all__ = ["DataError", "shorten"]

# Characters of a value that a message quotes: a line may have millions.
_QUOTED = 60


def shorten(value: object) -> str:
    """Return the repr of a value for a message; a long one ends in dots.

    >>> shorten("a" * 1000)
    "'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa'..."
    """
    if isinstance(value, str):
        return repr(value[:_QUOTED]) + ("..." if len(value) > _QUOTED else "")
    text = repr(value)
    return text if len(text) <= _QUOTED else f"{text[:_QUOTED]}..."


class DataError(ValueError):
    """Malformed data. The message reads `path:line: what was found and what was expected`.

    Args:
        path: the file, or the name of a stream such as `<stdin>`.
        line: its line, counted from 1; None where the whole file is meant.
        message: what was found and what was expected.
    """

    def __init__(self, path: str, line: int | None, message: str) -> None:
        super().__init__(path, line, message)  # so that it pickles
        self.path = path
        self.line = line
        self.message = message

    def __str__(self) -> str:
        place = self.path if self.line is None else f"{self.path}:{self.line}"
        return f"{place}: {self.message}"
