"""The settings of a training run as options of the command line: `--model.layers 2`.

The settings are the fields of the dataclass `Config` in `bcrf.tagger.training`. Importing that
module imports torch, which takes seconds. So the fields are read from its source files with `ast`.
A test compares them with the dataclasses.

We do not use jsonargparse here: it needs the imported dataclasses, and its messages speak of Python
types instead of settings.
"""

from __future__ import annotations

import argparse
import ast
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from types import NoneType
from typing import Any, Literal, get_args, get_origin

from .arguments import one_of, whole_number
from .errors import import_extra

__all__ = [
    "MISSING",
    "Setting",
    "SettingsGroup",
    "add_settings",
    "nested",
    "read_settings",
    "read_task_defaults",
]

MISSING = object()
"""The default of a setting that must be given."""

# The files of the dataclasses, `Config` in the first one; then the defaults of the network that
# reads features: those of all tasks, and those of each task.
_SOURCES = ("training/config.py", "nn/config.py")
_RECIPES = ("training/recipes.py", "_FEATURES", "_FEATURES_OF_TASK")


@dataclass(frozen=True)
class Setting:
    """A field of a dataclass.

    Args:
        name: dotted name, such as "model.layers".
        type: the type of the field: bool, int, float, str or a Literal, perhaps with None.
        default: the value of the field, or `MISSING`.
        help: the description in the docstring of the dataclass.
    """

    name: str
    type: Any
    default: object
    help: str

    def parse(self, text: str) -> Any:
        """Convert the text of the command line to a value of the setting's type."""
        if get_origin(self.type) is Literal:
            return one_of(*get_args(self.type))(text)
        if self._optional and text == "null":
            return None
        parsers: dict[type, Callable[[str], Any]] = {
            bool: _boolean,
            int: whole_number(),
            float: _number,
            str: str,
        }
        return parsers[self._value_type](text)

    @property
    def metavar(self) -> str:
        """The placeholder of the value in the help."""
        if get_origin(self.type) is Literal:
            return "{" + ",".join(get_args(self.type)) + "}"
        return {bool: "{true,false}", int: "N", float: "X"}.get(self._value_type, "TEXT")

    @property
    def _optional(self) -> bool:
        """Whether the type is `X | None`."""
        return NoneType in get_args(self.type)

    @property
    def _value_type(self) -> type:
        """X, if the type is X or `X | None`."""
        value_type: type = get_args(self.type)[0] if self._optional else self.type
        return value_type


@dataclass(frozen=True)
class SettingsGroup:
    """The settings of one dataclass; `title` is the first line of its docstring."""

    title: str
    settings: tuple[Setting, ...]


def read_settings() -> list[SettingsGroup]:
    """Return all settings of a training run, `output` first."""
    classes: dict[str, ast.ClassDef] = {}
    for source in _SOURCES:
        tree = ast.parse(_read_source(source))
        classes |= {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    return list(_groups("Config", "", classes))


def read_task_defaults() -> Mapping[str, Mapping[str, Mapping[str, object]]]:
    """Return the defaults of each task, without a configuration: task -> part -> setting -> value.

    The settings are those of the network that reads features.
    """
    from ..tagger.config_tables import deep_merge

    source, *constants = _RECIPES
    found = {
        ast.unparse(node.target): ast.literal_eval(node.value)
        for node in ast.parse(_read_source(source)).body
        if isinstance(node, ast.AnnAssign) and node.value is not None
        if ast.unparse(node.target) in constants
    }
    shared, of_tasks = (found[constant] for constant in constants)
    return {task: deep_merge(shared, of_task) for task, of_task in of_tasks.items()}


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Add an option for each setting.

    The result of `parse_args` has only the settings that the user gave. All other settings come
    from the configuration file and the defaults of the task.
    """
    for group in read_settings():
        options = parser.add_argument_group(group.title)
        for setting in group.settings:
            required = setting.default is MISSING
            default = "required" if required else f"default: {_shown(setting.default)}"
            options.add_argument(
                f"--{setting.name}",
                metavar=setting.metavar,
                type=setting.parse,
                default=argparse.SUPPRESS,
                help=f"{setting.help} ({default})".replace("%", "%%"),
            )


def nested(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with dotted names as nested dicts.

    Example:
        >>> nested({"output": "run", "model.layers": 2, "model.width": 64})
        {'output': 'run', 'model': {'layers': 2, 'width': 64}}
    """
    result: dict[str, Any] = {}
    for name, value in options.items():
        *parts, last = name.split(".")
        table = result
        for part in parts:
            table = table.setdefault(part, {})
        table[last] = value
    return result


def _groups(
    class_name: str, prefix: str, classes: Mapping[str, ast.ClassDef]
) -> Iterator[SettingsGroup]:
    node = classes[class_name]
    docstring = ast.get_docstring(node) or ""
    help_texts = _field_descriptions(docstring)
    settings, parts = [], []
    for field in node.body:
        if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
            continue
        name, annotation = field.target.id, ast.unparse(field.annotation)
        if annotation in classes:
            parts.append((annotation, f"{prefix}{name}."))
        elif not annotation.startswith("ClassVar"):
            default = MISSING if field.value is None else ast.literal_eval(field.value)
            type_ = eval(
                ast.unparse(_WithoutLimits().visit(field.annotation)), {"Literal": Literal}
            )
            help_text = help_texts.get(name, "").rstrip(".")
            settings.append(Setting(prefix + name, type_, default, help_text))
    yield SettingsGroup(docstring.partition("\n")[0].rstrip("."), tuple(settings))
    for part, part_prefix in parts:
        yield from _groups(part, part_prefix, classes)


class _WithoutLimits(ast.NodeTransformer):
    """Replaces `Annotated[X, limit]` by X. `Config` checks the limits."""

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        if ast.unparse(node.value) == "Annotated" and isinstance(node.slice, ast.Tuple):
            return node.slice.elts[0]
        return node


def _field_descriptions(docstring: str) -> dict[str, str]:
    """Return field -> text of the section `Args`; `a, b: text` describes both fields."""
    parser = import_extra("docstring_parser", "cli", "bcrf train")
    parsed = parser.parse(docstring, parser.DocstringStyle.GOOGLE)
    return {
        name.strip(): " ".join((parameter.description or "").split())
        for parameter in parsed.params
        for name in parameter.arg_name.split(",")
    }


def _read_source(name: str) -> str:
    return (resources.files("bcrf") / "tagger" / name).read_text(encoding="utf-8")


def _shown(value: object) -> str:
    """Return a value as the user would write it on the command line."""
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"expected true or false, got {text!r}")
    return text.lower() == "true"


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a number, got {text!r}") from None
