"""Every entry of docs/api.md has an example in its docstring, and the examples run."""

from __future__ import annotations

import doctest
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import bcrf
from bcrf.compat.caching import cached_result
from bcrf.tagger.training import Config, Finished, train
from tests.tokenizer_cases import load_tokenizer

ROOT = Path(__file__).parents[2]
SOURCE = Path(bcrf.__file__).parent
# Modules with examples, by their dotted names.
MODULES = [
    ".".join(("bcrf", *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(".__init__")
    for path in sorted(SOURCE.rglob("*.py"))
    if ">>>" in path.read_text(encoding="utf-8")
]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """The names of the examples of `Tagger` and `Tokenizer`, for the examples of their methods."""
    folder = tmp_path_factory.mktemp("trained")
    file = folder / "train.conllu"
    file.write_text("1\tdogs\t_\tNOUN" + "\t_" * 6 + "\n\n")
    tables = {
        "output": str(folder / "run"),
        "data": {"train": str(file)},
        "model": {"width": 8, "score_width": 8},
        "training": {"epochs": 1, "device": "cpu"},
    }
    finished = list(train(Config.from_dict(tables)))[-1]
    assert isinstance(finished, Finished)
    tagger = bcrf.Tagger.load(finished.model, device="cpu")
    return {"tagger": tagger, "file": file, "tokenizer": load_tokenizer(folder)}


@pytest.mark.parametrize("module", MODULES)
def test_examples_run(
    module: str,
    trained: dict[str, object],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)  # an example may write files
    options = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    runner = doctest.DocTestRunner(optionflags=options)
    printed: list[str] = []
    tests = doctest.DocTestFinder().find(importlib.import_module(module), extraglobs=trained)
    assert any(test.examples for test in tests)
    for test in tests:
        runner.run(test, out=printed.append)
    assert not runner.failures, "".join(printed)


def documented_objects(page: str) -> Iterator[tuple[str, object]]:
    """Yield the names and objects of an API page that need an example.

    These are all classes, functions and exceptions, and the methods and results that `:members:`
    selects. Without a list of names, it selects all public methods of the class itself. Properties
    need no example.
    """
    module = "bcrf"
    owner: object = None
    for line in page.splitlines():
        if found := re.match(r"\.\. currentmodule:: ([\w.]+)", line):
            module = found[1]
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


DOCUMENTED = dict(documented_objects((ROOT / "docs" / "api.md").read_text(encoding="utf-8")))


@pytest.mark.parametrize("name", DOCUMENTED)
def test_documented_names_have_an_example(name: str) -> None:
    docstring = DOCUMENTED[name].__doc__  # not inherited from a parent class
    assert docstring, f"{name} has no docstring of its own"
    assert ">>>" in docstring, f"{name} has no example (>>>) in its docstring"


@pytest.mark.parametrize(
    "package",
    [
        "bcrf",
        "bcrf.layers",
        "bcrf.tagger",
        "bcrf.tagger.export",
        "bcrf.tagger.report",
        "bcrf.tagger.training",
        "bcrf.tagger.fetching",
    ],
)
def test_public_names_are_documented(package: str) -> None:
    module = importlib.import_module(package)
    found = {name: getattr(module, name) for name in module.__all__}
    documented = {id(value) for value in DOCUMENTED.values()}
    assert not [
        name
        for name, value in found.items()
        if (inspect.isclass(value) or inspect.isfunction(value)) and id(value) not in documented
    ]


def test_methods_and_results_are_found() -> None:
    assert {
        "bcrf.ChainLayer.sample",
        "bcrf.Solution.value",
        "bcrf.Bregman.paper",
        "bcrf.tagger.Tagged.render",
        "bcrf.tagger.ModelError",
    } <= DOCUMENTED.keys()
