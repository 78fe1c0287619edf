"""Nested dataclasses as options of the command line: `--model.layers 2`."""

from __future__ import annotations

import argparse
import dataclasses
from typing import Any, get_type_hints

from .errors import optional

__all__ = ["add_settings", "given_settings", "settings_parser"]


def settings_parser(name: str, description: str, epilog: str) -> Any:
    """A parser of jsonargparse, which reads values by the types of the dataclasses."""
    jsonargparse = optional("jsonargparse", "cli", f"bcrf {name}")
    return jsonargparse.ArgumentParser(
        prog=f"bcrf {name}",
        usage=f"bcrf {name} CONFIG [--SETTING VALUE ...]",
        description=description,
        epilog=epilog,
        formatter_class=type(
            "HelpFormatter",
            (argparse.RawDescriptionHelpFormatter, jsonargparse.DefaultHelpFormatter),
            {},
        ),
        allow_abbrev=False,
    )


def add_settings(parser: Any, kind: type[Any], prefix: str = "") -> None:
    """One option per field of a dataclass; its nested dataclasses have groups of their own.

    Their defaults are for the help only (see `given_settings`).
    """
    types, texts = get_type_hints(kind), _descriptions(kind)
    group = parser.add_argument_group((kind.__doc__ or "").partition("\n")[0].rstrip("."))
    nested = []
    for field in dataclasses.fields(kind):
        if dataclasses.is_dataclass(types[field.name]):
            nested.append(field.name)
        else:
            default = None if field.default is dataclasses.MISSING else field.default
            group.add_argument(
                f"--{prefix}{field.name}",
                type=types[field.name],
                default=default,
                help=texts.get(field.name),
            )
    for name in nested:
        add_settings(parser, types[name], f"{prefix}{name}.")


def given_settings(parser: Any, arguments: list[str]) -> dict[str, Any]:
    """What the command line says, and only that, as nested settings."""
    given: dict[str, Any] = parser.parse_args(arguments, defaults=False).as_dict()
    return given


def _descriptions(kind: type[Any]) -> dict[str, str]:
    """What the docstring's `Args` say of each field; `a, b: ...` speaks of both."""
    docstring_parser = optional("docstring_parser", "cli", "help for settings")
    parsed = docstring_parser.parse(kind.__doc__ or "", docstring_parser.DocstringStyle.GOOGLE)
    return {
        name.strip(): " ".join((parameter.description or "").split())
        for parameter in parsed.params
        for name in parameter.arg_name.split(",")
    }
