"""The rules of the house that a script can check: names, sizes of files, explicit data."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "bcrf"
PROGRAMS = ("benchmarks", "campaign", "examples", "measurement", "reproduction")
TESTS = (ROOT / "tests", ROOT / "integration_tests")
MAX_LINES = 450


def python_files(*folders: Path) -> list[Path]:
    return sorted(path for folder in folders for path in folder.rglob("*.py"))


def sources() -> list[Path]:
    """Return every Python file of the package and of the programs beside it, without the tests."""
    return python_files(PACKAGE, *(ROOT / name for name in PROGRAMS))


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def classes(path: Path) -> Iterator[str]:
    """Yield the names of all classes, also of those inside functions and other classes."""
    yield from (node.name for node in ast.walk(parsed(path)) if isinstance(node, ast.ClassDef))


def test_no_two_classes_have_one_name():
    places = defaultdict(list)
    for path in [*sources(), *python_files(*TESTS)]:
        for name in classes(path):
            places[name].append(path.relative_to(ROOT).as_posix())
    repeated = {name: where for name, where in places.items() if len(where) > 1}
    assert not repeated


def test_files_are_short_enough_to_read():
    native = [path for path in (ROOT / "native").rglob("*") if path.suffix in (".h", ".cpp")]
    long = {
        path.relative_to(ROOT).as_posix(): lines
        for path in [*sources(), *python_files(*TESTS), *native]
        if (lines := len(path.read_text(encoding="utf-8").splitlines())) > MAX_LINES
    }
    assert not long


def assigned_outside_constructors(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Yield the function and line of every `object.__setattr__` that is in no constructor."""
    constructors = {"__init__", "__new__", "__post_init__"}
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if function.name in constructors or _makes_the_object(function):
            continue
        for node in ast.walk(function):
            if isinstance(node, ast.Attribute) and node.attr == "__setattr__":
                yield function.name, node.lineno


def _makes_the_object(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether a function calls `object.__new__`: a constructor by another name."""
    return any(
        isinstance(node, ast.Attribute) and node.attr == "__new__" for node in ast.walk(function)
    )


@pytest.mark.parametrize("path", python_files(PACKAGE), ids=lambda p: p.stem)
def test_attributes_are_set_in_constructors_only(path):
    assert not list(assigned_outside_constructors(parsed(path)))


def untyped_keywords(tree: ast.Module) -> Iterator[str]:
    """Yield the public functions with a `**options: Any`, whose arguments nobody can look up.

    Overloads stand for the implementation that follows them: type checkers read only the overloads.
    """
    for node in ast.walk(tree):
        owner = f"{node.name}." if isinstance(node, ast.ClassDef) else ""
        if owner.startswith("_") or not isinstance(node, ast.ClassDef | ast.Module):
            continue
        functions = [item for item in node.body if isinstance(item, ast.FunctionDef)]
        overloaded = {function.name for function in functions if is_overload(function)}
        for function in functions:
            if function.name in overloaded and not is_overload(function):
                continue
            if function.name.startswith("_") and function.name != "__init__":
                continue
            keywords = function.args.kwarg
            if keywords and ast.unparse(keywords.annotation or ast.Constant(None)) == "Any":
                yield owner + function.name


def is_overload(function: ast.FunctionDef) -> bool:
    return any(ast.unparse(decorator) == "overload" for decorator in function.decorator_list)


def test_public_signatures_name_their_arguments():
    found = {name for path in python_files(PACKAGE) for name in untyped_keywords(parsed(path))}
    assert not found


def attribute_hooks(tree: ast.Module) -> Iterator[str]:
    """Yield the classes whose attributes appear through `__getattr__`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            names = {item.name for item in node.body if isinstance(item, ast.FunctionDef)}
            if names & {"__getattr__", "__getattribute__"}:
                yield node.name


def test_no_attribute_appears_through_getattr():
    found = [name for path in python_files(PACKAGE) for name in attribute_hooks(parsed(path))]
    assert not found


# The checks see what they should.


def test_the_checks_see_offenders():
    hidden = ast.parse("def f(self):\n    object.__setattr__(self, 'a', 1)")
    assert list(assigned_outside_constructors(hidden)) == [("f", 2)]
    made = ast.parse("def f():\n    x = object.__new__(A)\n    object.__setattr__(x, 'a', 1)")
    assert not list(assigned_outside_constructors(made))
    options = ast.parse("class A:\n    def __init__(self, **options: Any): ...")
    assert list(untyped_keywords(options)) == ["A.__init__"]
    overloads = (
        "class A:\n    @overload\n    def f(self, {}): ...\n    def f(self, **options: Any): ..."
    )
    assert not list(untyped_keywords(ast.parse(overloads.format("x: int"))))
    assert list(untyped_keywords(ast.parse(overloads.format("**x: Any")))) == ["A.f"]
    hook = ast.parse("class A:\n    def __getattr__(self, name): ...")
    assert list(attribute_hooks(hook)) == ["A"]
