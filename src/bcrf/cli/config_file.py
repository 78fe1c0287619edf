"""Configuration files: TOML, YAML or JSON.

Parsers are safe with files of a person's size only: a small file can make them recurse without end
(nesting), take gigabytes (dotted keys of TOML) or build gigabytes (aliases of YAML). So the size,
the nesting and the dots of a line are bounded, and aliases are refused.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..data import read_limited
from .errors import UserError, optional

__all__ = ["MAX_CONFIG_BYTES", "overlaid", "read_config"]

MAX_CONFIG_BYTES = 64 << 10
"""A configuration file may have so many bytes."""

# The parser of TOML takes time and memory by the square of the number of parts of a dotted key.
_MAX_DOTS = 50

_MAX_DEPTH = 50  # of YAML


def read_config(path: str) -> dict[str, Any]:
    """The settings in a file, whose suffix tells its format."""
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
        raise UserError(f"{path}: is no valid {suffix[1:].upper()}: {error}") from error
    except RecursionError as error:
        raise UserError(f"{path}: is nested too deeply; expected tables of settings") from error
    if not isinstance(values, dict):
        raise UserError(f"{path}: expected settings with names, found {values!r:.40}")
    return values


def overlaid(lower: Mapping[str, Any], upper: Mapping[str, Any]) -> dict[str, Any]:
    """Both nested settings; `upper` where both have a value."""
    result = dict(lower)
    for key, value in upper.items():
        below = result.get(key)
        both = isinstance(value, Mapping) and isinstance(below, Mapping)
        result[key] = overlaid(below, value) if both else value  # type: ignore[arg-type]
    return result


def _check_values(value: Any) -> None:
    """Raise ValueError for a text that can be no path, and for an integer of more than 64 bits.

    JSON and YAML can write a NUL character, and half of a character beyond U+FFFF.
    """
    if isinstance(value, str):
        if "\0" in value or any("\ud800" <= character <= "\udfff" for character in value):
            raise ValueError(f"{value!r:.60} holds a NUL or half a character; expected plain text")
    elif isinstance(value, int):
        if not -(2**63) <= value < 2**63:
            raise ValueError("an integer has more than 64 bits; expected a smaller one")
    elif isinstance(value, Mapping):
        for pair in value.items():
            _check_values(pair)
    elif isinstance(value, Iterable):
        for one in value:
            _check_values(one)


def _toml(text: str) -> Any:
    for number, line in enumerate(text.split("\n"), start=1):
        if line.count(".") > _MAX_DOTS and not line.lstrip().startswith("#"):
            raise ValueError(f"line {number} has more than {_MAX_DOTS} dots; shorten it")
    module = "tomllib" if sys.version_info >= (3, 11) else "tomli"
    return optional(module, "cli", "reading TOML").loads(text)  # its error is a ValueError


def _yaml(text: str) -> Any:
    yaml = optional("yaml", "cli", "reading YAML")
    try:
        depth = 0
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            line = event.start_mark.line + 1
            if isinstance(event, yaml.AliasEvent):  # can stand for more than the memory holds
                raise ValueError(f"line {line} has an alias (*); write its value instead")
            depth += isinstance(event, yaml.CollectionStartEvent)
            depth -= isinstance(event, yaml.CollectionEndEvent)
            if depth > _MAX_DEPTH:  # the time to read it grows by the square of its depth
                raise ValueError(f"line {line} is nested too deeply; expected tables of settings")
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from error


def _json(text: str) -> Any:
    return json.loads(text)
