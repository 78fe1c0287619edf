"""Read configuration files in TOML, YAML or JSON.

A small malicious file can make a parser recurse without end (nesting), or use gigabytes of memory
(dotted keys in TOML, aliases in YAML). So the size of a file, the nesting and the dots in a line
are limited, and aliases are refused.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from .errors import UserError, import_extra

__all__ = ["MAX_CONFIG_BYTES", "read_config"]

MAX_CONFIG_BYTES = 64 << 10
"""The largest size of a configuration file."""

# The time and memory of the TOML parser grow with the square of the number of parts of a key.
_MAX_DOTS = 50

# The time of the YAML parser grows with the square of the nesting depth.
_MAX_DEPTH = 50


def read_config(path: str) -> dict[str, Any]:
    """Return the settings in a file; the suffix of its name determines the format."""
    from ..tagger.files import read_limited

    readers = {".toml": _toml, ".yaml": _yaml, ".yml": _yaml, ".json": _json}
    suffix = Path(path).suffix.lower()
    if suffix not in readers:
        raise UserError(f"{path}: expected a file that ends in {', '.join(readers)}")
    try:
        text = read_limited(path, MAX_CONFIG_BYTES).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: expected UTF-8: {error}") from error
    try:
        values = readers[suffix](text)
        _check_values(values)
    except ValueError as error:
        raise UserError(f"{path}: invalid {suffix[1:].upper()}: {error}") from error
    except RecursionError as error:
        raise UserError(
            f"{path}: its values are nested too deeply; expected tables of settings"
        ) from error
    if not isinstance(values, dict):
        raise UserError(
            f"{path}: expected a table of settings (name and value), found {values!r:.40}"
        )
    return values


def _check_values(value: Any) -> None:
    """Raise ValueError for strings that cannot be paths and for integers of more than 64 bits.

    Strings in JSON and YAML may contain NUL characters and lone surrogates (halves of a character
    above U+FFFF).
    """
    if isinstance(value, str):
        if "\0" in value or any("\ud800" <= character <= "\udfff" for character in value):
            raise ValueError(
                f"{value!r:.60} contains a NUL or a lone surrogate; expected plain text"
            )
    elif isinstance(value, int):
        if not -(2**63) <= value < 2**63:
            raise ValueError("an integer has more than 64 bits; expected a smaller number")
    elif isinstance(value, Mapping):
        for pair in value.items():
            _check_values(pair)
    elif isinstance(value, Iterable):
        for item in value:
            _check_values(item)


def _toml(text: str) -> Any:
    for number, line in enumerate(text.split("\n"), start=1):
        if line.count(".") > _MAX_DOTS and not line.lstrip().startswith("#"):
            raise ValueError(f"line {number} has more than {_MAX_DOTS} dots; shorten it")
    module = "tomllib" if sys.version_info >= (3, 11) else "tomli"
    return import_extra(module, "cli", "reading TOML").loads(text)  # its errors are ValueErrors


def _yaml(text: str) -> Any:
    yaml = import_extra("yaml", "cli", "reading YAML")
    try:
        depth = 0
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            line = event.start_mark.line + 1
            if isinstance(event, yaml.AliasEvent):  # nested aliases can expand to gigabytes
                raise ValueError(f"line {line} has an alias (*); write out the value instead")
            depth += isinstance(event, yaml.CollectionStartEvent)
            depth -= isinstance(event, yaml.CollectionEndEvent)
            if depth > _MAX_DEPTH:
                raise ValueError(f"line {line} is nested too deeply; expected tables of settings")
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from error


def _json(text: str) -> Any:
    return json.loads(text)
