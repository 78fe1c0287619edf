"""Every public name has an example in its docstring, and the examples run."""

from __future__ import annotations

import doctest
import importlib
import inspect
from pathlib import Path

import pytest

import bcrf

NAMES = [name for name in bcrf.__all__ if not name.startswith("_")]


# Modules with examples, by their dotted names.
SOURCE = Path(bcrf.__file__).parent
MODULES = [
    ".".join(("bcrf", *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(".__init__")
    for path in sorted(SOURCE.rglob("*.py"))
    if ">>>" in path.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("module", MODULES)
def test_examples_run(module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # an example may write files
    options = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    runner = doctest.DocTestRunner(optionflags=options)
    printed: list[str] = []
    tests = doctest.DocTestFinder().find(importlib.import_module(module))
    assert any(test.examples for test in tests)
    for test in tests:
        runner.run(test, out=printed.append)
    assert not runner.failures, "".join(printed)


@pytest.mark.parametrize("name", NAMES)
def test_public_names_have_an_example(name: str) -> None:
    docstring = inspect.getdoc(getattr(bcrf, name)) or ""
    own = getattr(bcrf, name).__doc__ is not None  # not inherited from a parent class
    assert own, f"bcrf.{name} has no docstring of its own"
    assert ">>>" in docstring, f"bcrf.{name} has no example (>>>) in its docstring"
