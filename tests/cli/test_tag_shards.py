"""`bcrf tag --engine ray`: what is refused before Ray is needed.

integration_tests/test_ray.py runs the command on a Ray cluster.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from bcrf.cli import main
from tests.cli_cases import SENTENCES, conllu, small_model
from tests.tokenizer_cases import load_tokenizer


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return small_model(tmp_path_factory.mktemp("pos"), conllu(*SENTENCES))


RAY = ["--engine", "ray"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["a.jsonl", *RAY], "--engine ray needs --output DIR"),
        ([*RAY, "--output", "out"], "--engine ray reads files of JSON lines, not standard input"),
        (
            ["-", *RAY, "--output", "out"],
            "--engine ray reads files of JSON lines, not standard input",
        ),
        (["a", *RAY, "--output", "out", "--format", "conllu"], "--format conllu: --engine ray"),
        (["a", *RAY, "--output", "out", "--input-format", "text"], "--input-format text: --engine"),
        (["a", *RAY, "--output", "out", "--tokenizer", "t"], "--tokenizer and --split-lines are"),
        (["a", *RAY, "--output", "out", "--split-lines"], "--tokenizer and --split-lines are"),
        (["a", "--workers", "2"], "--workers needs --engine ray"),
        (["a", "--ray-address", "auto"], "--ray-address needs --engine ray"),
    ],
)
def test_options_that_do_not_fit(arguments, message, model, capsys):
    assert main(["tag", str(model), *arguments]) == 1
    assert f"bcrf: error: {message}" in capsys.readouterr().err


def test_unknown_engines_are_refused(model, capsys):
    with pytest.raises(SystemExit):
        main(["tag", str(model), "a", "--engine", "rya"])
    assert "expected local or ray, got 'rya'; did you mean ray?" in capsys.readouterr().err


@pytest.fixture
def pretended_ray(monkeypatch):
    """Let the command believe that Ray is installed: it fails before it needs Ray."""
    monkeypatch.setitem(sys.modules, "bcrf.ray", type(sys)("bcrf.ray"))
    monkeypatch.setattr("bcrf.ray", sys.modules["bcrf.ray"], raising=False)


def test_wrong_files_are_refused_before_ray_starts(
    model, tmp_path, monkeypatch, capsys, pretended_ray
):
    monkeypatch.chdir(tmp_path)
    options = [*RAY, "--output", "out"]
    Path("a.conllu").write_text("1\tdogs" + "\t_" * 8 + "\n\n")
    for arguments, message in (
        ([str(model), "none*.jsonl"], "none*.jsonl: there is no such file"),
        (["nowhere", "a.conllu"], "nowhere: there is no such folder"),
        ([str(model), "a.conllu"], "a.conllu: expected JSON lines"),
    ):
        assert main(["tag", *arguments, *options]) == 1
        assert f"bcrf: error: {message}" in capsys.readouterr().err
    assert not Path("out").exists()


def test_a_tokenizer_is_refused(tmp_path, capsys, pretended_ray):
    load_tokenizer(tmp_path).tagger.save(tmp_path / "tokenizer")
    arguments = ["tag", str(tmp_path / "tokenizer"), "a.jsonl", *RAY, "--output", "out"]
    assert main(arguments) == 1
    assert "is a tokenizer, which reads raw text" in capsys.readouterr().err


def test_a_missing_ray_is_reported_with_the_command_that_installs_it(
    model, tmp_path, monkeypatch, capsys
):
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "bcrf.ray", raising=False)
    with pytest.raises(ImportError, match=r"needs the package ray: pip install '\.\[ray\]'"):
        importlib.import_module("bcrf.ray")
    assert main(["tag", str(model), "a.jsonl", *RAY, "--output", str(tmp_path / "out")]) == 1
    assert "needs the package ray: pip install '.[ray]'" in capsys.readouterr().err
