"""`bcrf export` as a process."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from tests.cli_cases import SENTENCES, bcrf, conllu, small_model

NETWORK = {"features": "word", "feature_width": 4, "context_width": 8, "context_layers": 1}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    return small_model(folder, conllu(*SENTENCES), model={**NETWORK, "transitions": "shared"})


def test_a_file_beside_the_folder(model: Path, tmp_path: Path) -> None:
    check = tmp_path / "check.conllu"
    check.write_text(conllu(*SENTENCES[:5]))
    arguments = ("export", model, "--decoder", "unstructured", "--quantize", "--check", check)
    printed = bcrf(*arguments).stdout.splitlines()
    file = Path(f"{model}.onnx")
    assert printed[0].startswith(f"{file}: ")
    assert printed[0].endswith("MB, decoder unstructured, no loop over the words")
    assert printed[1].endswith(f"of the tags agree with the model on {check} (25 of 25)")
    onnx.checker.check_model(onnx.load(file), full_check=True)
    before = file.read_bytes()
    refused = bcrf(*arguments, code=1).stderr
    assert f"{file} exists; choose another file, or replace it with --overwrite" in refused
    assert file.read_bytes() == before


def test_mistakes(model: Path, tmp_path: Path) -> None:
    other = small_model(tmp_path, conllu(*SENTENCES[-2:]))
    empty = tmp_path / "empty.conllu"
    empty.write_text("")
    output = ("--output", tmp_path / "x.onnx")
    for arguments, code, message in (
        ((model, "--format", "tflite"), 2, "--format: expected onnx, got 'tflite'"),
        ((model, "--decoder", "beam"), 2, "--decoder: must be one of"),
        ((tmp_path / "none",), 1, "none"),
        ((other, *output), 1, f"{other}: the tagger reads words, not features of words"),
        ((model, "--check", tmp_path / "no.conllu", *output), 1, "no.conllu"),
        ((model, "--check", empty, *output), 1, "empty.conllu"),
        ((model, "--decoder", "certified", *output), 1, "viterbi gives the same tags"),
    ):
        assert message in bcrf("export", *arguments, code=code).stderr
    assert not (tmp_path / "x.onnx").exists()
