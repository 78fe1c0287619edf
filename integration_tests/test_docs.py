"""The documentation of integrations: its code and the examples in docstrings run."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.project.documentation import (
    INTEGRATIONS,
    ROOT,
    check_example,
    documented_objects,
    modules_with_examples,
    pages,
    python_blocks,
    run_examples,
)

DOCUMENTED = documented_objects(integration=True)


@pytest.fixture
def workplace(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder of an example, in which `runs/` has the models."""
    shutil.copytree(models / "runs", tmp_path / "runs")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("page", pages(integration=True), ids=lambda p: str(p.relative_to(ROOT)))
def test_python_blocks_run(page: Path, workplace: Path) -> None:
    names: dict[str, object] = {}
    blocks = python_blocks(page)
    assert blocks, f"{page} has no Python block; remove its first line"
    for number, block in enumerate(blocks):
        exec(compile(block, f"{page.name}, block {number}", "exec"), names)


@pytest.mark.parametrize("module", modules_with_examples(integration=True))
def test_examples_run(module: str, workplace: Path) -> None:
    run_examples(module, {})


@pytest.mark.parametrize("name", DOCUMENTED)
def test_documented_names_have_an_example(name: str) -> None:
    check_example(name, DOCUMENTED[name])


@pytest.mark.parametrize("package", INTEGRATIONS)
def test_every_integration_has_examples(package: str) -> None:
    assert any(name.startswith(package) for name in modules_with_examples(integration=True))
    assert any(name.startswith(f"{package}.") for name in DOCUMENTED)
