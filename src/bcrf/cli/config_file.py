"""Configuration files: TOML, YAML or JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .errors import UserError, optional

__all__ = ["overlaid", "read_config"]


def read_config(path: str) -> dict[str, Any]:
    """The settings in a file, whose suffix tells its format."""
    readers = {".toml": _toml, ".yaml": _yaml, ".yml": _yaml, ".json": _json}
    suffix = Path(path).suffix.lower()
    if suffix not in readers:
        raise UserError(f"{path}: expected a file that ends in {', '.join(readers)}")
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: expected UTF-8: {error}") from error
    try:
        values = readers[suffix](text)
    except ValueError as error:
        raise UserError(f"{path}: is no valid {suffix[1:].upper()}: {error}") from error
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


def _toml(text: str) -> Any:
    module = "tomllib" if sys.version_info >= (3, 11) else "tomli"
    return optional(module, "cli", "reading TOML").loads(text)  # its error is a ValueError


def _yaml(text: str) -> Any:
    yaml = optional("yaml", "cli", "reading YAML")
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from error


def _json(text: str) -> Any:
    return json.loads(text)
