"""Read and check the values of a TOML table; errors name the missing, wrong or unknown key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["TableReader"]

# The sections of a training config that an experiment may set.
_PARTS = ("data", "model", "optimizer", "training", "decoding")


class TableReader:
    """A reader of the values of a table; `finish` raises an error if a key was not read.

    Args:
        values: the table.
        error: type of the exception to raise.
        where: dotted name of the table, including a final dot.
    """

    def __init__(
        self, values: object, error: type[Exception] = ValueError, where: str = ""
    ) -> None:
        self.error, self.where = error, where
        if not isinstance(values, Mapping):
            raise error(f"{where.rstrip('.')} must be a table, got {values!r:.60}")
        self._values = dict(values)

    def text(self, key: str, default: str | None = None) -> str:
        return str(self._take(key, default, lambda v: isinstance(v, str), "a string"))

    def optional_text(self, key: str) -> str | None:
        """Return a string; None if the key is missing."""
        return self.text(key) if key in self._values else None

    def flag(self, key: str) -> bool:
        return bool(self._take(key, False, lambda v: isinstance(v, bool), "true or false"))

    def count(self, key: str, default: int | None = None) -> int:
        return int(self._take(key, default, _is_count, "an integer of at least 1"))

    def factor(self, key: str) -> float | None:
        """Return a number greater than 1; None if the key is missing."""
        if key not in self._values:
            return None
        return float(self._take(key, None, _is_factor, "a number greater than 1"))

    def texts(self, key: str, default: tuple[str, ...] | None = None) -> tuple[str, ...]:
        """Return a list of distinct strings."""
        return tuple(self._take(key, default, lambda v: _all_different(v, str), "a list of names"))

    def numbers(self, key: str, default: tuple[int, ...] | None = None) -> tuple[int, ...]:
        """Return a list of distinct integers, all of them at least 0."""

        def fits(value: object) -> bool:
            return _all_different(value, int) and all(n >= 0 for n in value)  # type: ignore[attr-defined]

        return tuple(self._take(key, default, fits, "a list of distinct integers"))

    def alternatives(self, key: str) -> tuple[str, ...]:
        """Return a list of strings. A single string is a list of one."""
        value = self._values.get(key)
        if isinstance(value, str):
            self._values[key] = [value]
        return self.texts(key)

    def text_table(self, key: str, default: Mapping[str, str]) -> dict[str, str]:
        """Return a table of strings."""

        def fits(value: object) -> bool:
            return isinstance(value, Mapping) and all(isinstance(v, str) for v in value.values())

        return dict(self._take(key, default, fits, "a table of strings"))

    def part(self, key: str) -> TableReader:
        """Return a reader of an inner table."""
        value = self._take(key, None, lambda v: isinstance(v, Mapping), "a table")
        return TableReader(value, self.error, f"{self.where}{key}.")

    def parts(self, key: str, default: Mapping[str, Any] | None = None) -> dict[str, TableReader]:
        """Return readers of inner tables, by name."""
        tables = self._take(key, default, lambda v: isinstance(v, Mapping), "a table of tables")
        return {
            name: TableReader(value, self.error, f"{self.where}{key}.{name}.")
            for name, value in tables.items()
        }

    def tables(self, key: str) -> list[TableReader]:
        """Return readers of a list of tables; an empty list if the key is missing."""
        found = self._take(key, [], lambda v: isinstance(v, list), "a list of tables")
        return [
            TableReader(value, self.error, f"{self.where}{key}[{i}].")
            for i, value in enumerate(found)
        ]

    def rows(self, key: str, width: int) -> list[list[Any]]:
        """Return a list of rows with `width` values each."""

        def fits(value: object) -> bool:
            return isinstance(value, list) and all(
                isinstance(row, list) and len(row) == width for row in value
            )

        return list(self._take(key, None, fits, f"a list of rows with {width} values each"))

    def settings(self, end: bool = False) -> dict[str, dict[str, Any]]:
        """Return the sections of a training config; with `end`, any other key is an error."""
        found = {}
        for part in _PARTS:
            if part in self._values:
                found[part] = dict(
                    self._take(part, None, lambda v: isinstance(v, Mapping), "a table of settings")
                )
        if end:
            self.finish()
        return found

    def finish(self) -> None:
        """Raise an error if a key was not read."""
        for key in self._values:
            raise self.error(f"unknown key '{self.where}{key}'; remove it")

    def _take(self, key: str, default: Any, fits: Any, expected: str) -> Any:
        if key not in self._values:
            if default is None:
                raise self.error(f"{self.where}{key} is missing; expected {expected}")
            return default
        value = self._values.pop(key)
        if not fits(value):
            raise self.error(f"{self.where}{key} must be {expected}, got {value!r:.60}")
        return value


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _is_factor(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 1 < value < 100


def _all_different(value: object, kind: type) -> bool:
    if not isinstance(value, Sequence) or isinstance(value, str):
        return False
    right = all(isinstance(v, kind) and not isinstance(v, bool) for v in value)
    return right and len(set(value)) == len(value)
