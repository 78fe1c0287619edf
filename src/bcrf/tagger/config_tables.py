"""Settings as nested tables of plain values, as TOML, YAML and JSON files hold them.

A configuration is a frozen dataclass. Its annotations are its schema: `check_fields`, called in
`__post_init__`, compares every value with the annotation of its field, and `from_table` builds
nested dataclasses from a table. Values are never converted: the text "false" is not a bool.
"""

from __future__ import annotations

import dataclasses
import json
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from ..suggestions import did_you_mean

__all__ = [
    "COUNT",
    "POSITIVE",
    "SHARE",
    "SIZE",
    "Limit",
    "check_fields",
    "check_names",
    "deep_merge",
    "from_table",
]

_Config = TypeVar("_Config")

# How many characters of a wrong value a message quotes.
_QUOTED = 60


@dataclass(frozen=True)
class Limit:
    """A limit on the values that a field accepts: `Annotated[int, Limit(...)]`.

    Args:
        accepts: returns whether a value of the right type is accepted. Define the Limit outside of
            the annotation: annotations are strings, evaluated without the names of the module.
        text: what is expected, for messages, such as "an integer of at least 1".
    """

    accepts: Callable[[Any], bool]
    text: str


COUNT = Limit(lambda value: value >= 0, "an integer of at least 0")
SIZE = Limit(lambda value: value >= 1, "an integer of at least 1")
POSITIVE = Limit(lambda value: 0 < value < float("inf"), "a positive, finite number")
SHARE = Limit(lambda value: 0 <= value < 1, "a number of at least 0 and less than 1")


def deep_merge(lower: Mapping[str, Any], upper: Mapping[str, Any]) -> dict[str, Any]:
    """Return the union of two nested tables; where both have a value, `upper` overrides.

    Example:
        >>> deep_merge({"model": {"layers": 2, "width": 64}}, {"model": {"layers": 3}})
        {'model': {'layers': 3, 'width': 64}}
    """
    result = dict(lower)
    for key, value in upper.items():
        below = result.get(key)
        if isinstance(value, Mapping) and isinstance(below, Mapping):
            value = deep_merge(below, value)
        result[key] = value
    return result


def from_table(kind: type[_Config], values: Mapping[str, Any]) -> _Config:
    """Build a dataclass, and the dataclasses that it holds, from a nested table of plain values.

    Errors begin with the dotted name of the setting.

    Raises:
        TypeError: a value has another type than its field.
        ValueError: a value is not accepted, a required setting is missing, or a name is unknown.

    Example:
        >>> @dataclass(frozen=True)
        ... class Example:
        ...     lazy: bool = True
        ...     def __post_init__(self):
        ...         check_fields(self)
        >>> from_table(Example, {"lazy": "false"})
        Traceback (most recent call last):
        TypeError: lazy: expected true or false, got "false"
        >>> from_table(Example, {"lasy": False})
        Traceback (most recent call last):
        ValueError: unknown setting 'lasy'; did you mean 'lazy'?
    """
    _check_tables(kind, values, "")
    return _build(kind, values, "")


def check_fields(config: Any) -> None:
    """Raise unless every field of a dataclass has a value that its annotation permits."""
    for name, annotation in _annotations(type(config)).items():
        _check_value(name, getattr(config, name), annotation)


def check_names(names: Iterable[object], known: Iterable[str], prefix: str = "") -> None:
    """Raise if a name is unknown; the message suggests the known name that is most similar.

    Args:
        names: the names to check.
        known: the names that are accepted.
        prefix: what the message puts before each name, such as "model.".
    """
    known = list(known)
    for name in names:
        if name not in known:
            suggestion = did_you_mean(str(name), known, quote=f"'{prefix}{{}}'")
            hint = suggestion or f"; expected {', '.join(known)}"
            raise ValueError(f"unknown setting '{prefix}{name!s:.60}'{hint}")


def _check_tables(kind: type[Any], values: object, prefix: str) -> None:
    """Raise if a value should be a table but is not, or if a name is unknown.

    Called before the dataclass is built: otherwise a misspelt required setting would be reported as
    missing.
    """
    if not isinstance(values, Mapping):
        raise TypeError(f"{prefix[:-1]}: expected a table of settings, got {_quoted(values)}")
    annotations = _annotations(kind)
    check_names(values, annotations, prefix)
    for name, value in values.items():
        if dataclasses.is_dataclass(annotations[name]):
            _check_tables(annotations[name], value, f"{prefix}{name}.")


def _build(kind: type[_Config], values: Mapping[str, Any], prefix: str) -> _Config:
    arguments = {}
    annotations = _annotations(kind)
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        annotation = annotations[field.name]
        if dataclasses.is_dataclass(annotation):
            inner = values.get(field.name, {})
            arguments[field.name] = _build(annotation, inner, f"{prefix}{field.name}.")  # type: ignore[arg-type]
        elif field.name in values:
            arguments[field.name] = values[field.name]
        elif field.default is dataclasses.MISSING:
            expected = _expected(annotation)
            raise ValueError(f"{prefix}{field.name} is missing; expected {expected}")
    try:
        return kind(**arguments)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{prefix}{error}") from error


def _annotations(kind: type[Any]) -> dict[str, Any]:
    """Return the annotations of a dataclass's fields, evaluated."""
    evaluated = get_type_hints(kind, include_extras=True)
    return {field.name: evaluated[field.name] for field in dataclasses.fields(kind)}


def _check_value(name: str, value: object, annotation: Any) -> None:
    annotation, optional = _without_none(annotation)
    if optional and value is None:
        return
    kind, limits = _without_limits(annotation)
    if get_origin(kind) is Literal:
        right_type, accepted = True, any(value == choice for choice in get_args(kind))
    else:
        right_type = _has_type(value, kind)
        accepted = right_type and all(limit.accepts(value) for limit in limits)
    if not accepted:
        error = ValueError if right_type else TypeError
        raise error(f"{name}: expected {_expected(annotation)}, got {_quoted(value)}")


def _has_type(value: object, kind: type[Any]) -> bool:
    if isinstance(value, bool):  # bool is a subclass of int
        return kind is bool
    return isinstance(value, Real if kind is float else kind)


def _expected(annotation: Any) -> str:
    """Return a description of the values that a field accepts."""
    kind, limits = _without_limits(_without_none(annotation)[0])
    if limits:
        return limits[0].text
    if get_origin(kind) is Literal:
        return f"one of {', '.join(get_args(kind))}"
    words = {bool: "true or false", int: "an integer", float: "a number", str: "a text"}
    return words.get(kind, f"a value of the type {getattr(kind, '__name__', kind)}")


def _without_limits(annotation: Any) -> tuple[Any, list[Limit]]:
    if get_origin(annotation) is not Annotated:
        return annotation, []
    kind, *extras = get_args(annotation)
    return kind, [extra for extra in extras if isinstance(extra, Limit)]


def _without_none(annotation: Any) -> tuple[Any, bool]:
    """Return (kind, True) for the annotation `kind | None`, (annotation, False) for any other."""
    if get_origin(annotation) not in (Union, types.UnionType):
        return annotation, False
    (kind,) = [choice for choice in get_args(annotation) if choice is not type(None)]
    return kind, True


def _quoted(value: object) -> str:
    """Return a value as JSON and TOML write it, shortened."""
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        text = repr(value)
    return text if len(text) <= _QUOTED else f"{text[:_QUOTED]}..."
