"""Every entry of docs/api.md has an example in its docstring, and the examples run."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path

import pytest

import bcrf
from bcrf.tagger.training import Config, Finished, train
from tests.project.documentation import (
    check_example,
    documented_objects,
    modules_with_examples,
    run_examples,
)
from tests.tokenizer_cases import load_tokenizer


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


@pytest.mark.parametrize("module", modules_with_examples(integration=False))
def test_examples_run(
    module: str,
    trained: dict[str, object],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)  # an example may write files
    run_examples(module, trained)


DOCUMENTED = documented_objects(integration=False)


@pytest.mark.parametrize("name", DOCUMENTED)
def test_documented_names_have_an_example(name: str) -> None:
    check_example(name, DOCUMENTED[name])


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
        "bcrf.huggingface",
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
