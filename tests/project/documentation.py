"""The examples of the documentation: where they are, and which tests run them.

`make test` runs all examples except those that need the packages of `make test-integrations`.
"""

from __future__ import annotations

import doctest
import importlib
import inspect
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import bcrf
from bcrf.compat.caching import cached_result

ROOT = Path(__file__).resolve().parents[2]
SOURCE = Path(bcrf.__file__).parent

INTEGRATIONS = ("bcrf.spacy",)
"""Packages whose examples need packages that only `make test-integrations` installs."""

INTEGRATION_PAGE = "<!-- Python blocks run in integration_tests -->"
"""The first line of a page whose Python blocks `make test-integrations` runs, in their order."""


def pages(*, integration: bool) -> list[Path]:
    """Return the pages whose blocks run in the integration tests, or the other ones."""
    found = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
    return [
        page
        for page in found
        if page.read_text(encoding="utf-8").startswith(INTEGRATION_PAGE) == integration
    ]


def python_blocks(page: Path) -> list[str]:
    """Return the Python code of a page, block by block."""
    return re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


def modules_with_examples(*, integration: bool) -> list[str]:
    """Return the dotted names of the modules whose docstrings have examples."""
    found = [
        ".".join(("bcrf", *path.relative_to(SOURCE).with_suffix("").parts))
        for path in sorted(SOURCE.rglob("*.py"))
        if ">>>" in path.read_text(encoding="utf-8")
    ]
    names = [name.removesuffix(".__init__") for name in found]
    return [name for name in names if is_integration(name) == integration]


def is_integration(module: str) -> bool:
    return any(module == name or module.startswith(f"{name}.") for name in INTEGRATIONS)


def run_examples(module: str, names: Mapping[str, object]) -> None:
    """Run the examples in the docstrings of a module, in the current folder.

    Args:
        names: the names that the examples may use besides those of the module.
    """
    options = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    runner = doctest.DocTestRunner(optionflags=options)
    printed: list[str] = []
    tests = doctest.DocTestFinder().find(importlib.import_module(module), extraglobs=dict(names))
    assert any(test.examples for test in tests)
    for test in tests:
        runner.run(test, out=printed.append)
    assert not runner.failures, "".join(printed)


def documented_objects(*, integration: bool) -> dict[str, object]:
    """Return the objects of docs/api.md that need an example, by their names.

    These are all classes, functions and exceptions, and the methods and results that `:members:`
    selects. Without a list of names, it selects all public methods of the class itself. Properties
    need no example.
    """
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    return dict(_documented_objects(page, integration))


def _documented_objects(page: str, integration: bool) -> Iterator[tuple[str, object]]:
    module = "bcrf"
    owner: object = None
    for line in page.splitlines():
        if found := re.match(r"\.\. currentmodule:: ([\w.]+)", line):
            module = found[1]
        elif is_integration(module) != integration:
            continue
        elif found := re.match(r"\.\. auto(?:class|function|exception):: (\w+)", line):
            owner = getattr(importlib.import_module(module), found[1])
            name = f"{module}.{found[1]}"
            yield name, owner
        elif found := re.match(r" +:members:(.*)", line):
            members = re.findall(r"\w+", found[1]) or [x for x in vars(owner) if x[0] != "_"]
            for member in members:
                value = inspect.getattr_static(owner, member)
                if isinstance(value, classmethod | staticmethod):
                    value = value.__func__
                if inspect.isfunction(value) or isinstance(value, cached_result):
                    yield f"{name}.{member}", value


def check_example(name: str, value: object) -> None:
    """Fail unless an object has an example in a docstring of its own."""
    docstring = value.__doc__  # not inherited from a parent class
    assert docstring, f"{name} has no docstring of its own"
    assert ">>>" in docstring, f"{name} has no example (>>>) in its docstring"
