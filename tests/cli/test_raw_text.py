"""`bcrf tag` on raw text, with a tokenizer."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from bcrf.cli import main
from bcrf.tagger import Tagger, Tokenizer
from tests.cli_cases import COMMAND, SENTENCES, bcrf, conllu, environment, small_model
from tests.tokenizer_cases import TEXT, WORDS, train_tokenizer, treebank


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory) -> Path:
    return train_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """A tagger without a tokenizer."""
    return small_model(tmp_path_factory.mktemp("pos"), conllu(*SENTENCES))


@pytest.fixture(scope="module")
def bundle(tmp_path_factory, model, tokenizer) -> Path:
    """A tagger with a tokenizer."""
    tagger = Tagger.load(model, "cpu")
    tagger.tokenizer = Tokenizer.load(tokenizer, "cpu")
    tagger.save(tmp_path_factory.mktemp("bundle") / "model")
    return tmp_path_factory.getbasetemp() / "bundle0" / "model"


def words_of(conllu_text: str) -> list[tuple[str, ...]]:
    rows = [line.split("\t") for line in conllu_text.splitlines() if not line.startswith("#")]
    sentences: list[list[str]] = [[]]
    for row in rows:
        if len(row) == 1:
            sentences.append([])
        else:
            sentences[-1].append(row[1])
    return [tuple(words) for words in sentences if words]


def test_the_tokenizer_of_a_tagger_reads_standard_input(bundle):
    output = bcrf("tag", bundle, "--device", "cpu", stdin=TEXT + "\n").stdout
    assert words_of(output) == WORDS
    assert output.startswith("# text = Ada visited Turin again.\n1\tAda\t_\t")
    assert "4\tagain\t_\tNOUN" in output or "SpaceAfter=No" in output
    assert output.count("SpaceAfter=No") == 3


def records(capfd, *arguments: str | Path) -> list[dict]:
    assert main([*map(str, arguments)]) == 0
    return [json.loads(line) for line in capfd.readouterr().out.splitlines()]


def test_offsets_in_json_lines(bundle, tmp_path, capfd):
    file = tmp_path / "in.txt"
    text = f"\r\n{TEXT}\r\n\r\n  Why not?"
    file.write_bytes(b"\xef\xbb\xbf" + text.encode())
    found = records(capfd, "tag", bundle, file, "--format", "jsonl", "--probabilities")
    assert [record["words"] for record in found] == [*map(list, WORDS), ["Why", "not", "?"]]
    for record in found:
        begin = record["offset"]
        assert text[begin : begin + len(record["text"])] == record["text"]
        for word, start in zip(record["words"], record["starts"], strict=True):
            assert record["text"][start : start + len(word)] == word
        assert len(record["tags"]) == len(record["probabilities"]) == len(record["words"])


def test_the_tokenizer_can_be_chosen(bundle, model, tokenizer, tmp_path, capfd):
    file = tmp_path / "in.txt"
    file.write_text(TEXT)
    options = [file, "--format", "jsonl"]
    split = [*map(list, WORDS)]
    spaces = [TEXT.split()]

    def words(*arguments: str | Path) -> list[list[str]]:
        return [record["words"] for record in records(capfd, "tag", *arguments)]

    assert words(bundle, *options, "--tokenizer", "whitespace") == spaces
    assert words(model, *options) == spaces
    assert words(model, *options, "--tokenizer", tokenizer) == split
    assert words(bundle, *options, "--tokenizer", tokenizer) == split
    assert main(["tag", str(bundle), str(file), "--tokenizer", str(model)]) == 1
    assert "expected a model of the task tokenization, got one of pos" in capfd.readouterr().err
    assert main(["tag", str(bundle), str(file), "--tokenizer", "nowhere"]) == 1
    assert "nowhere: there is no such folder" in capfd.readouterr().err


def test_unsplit_words_are_reported_once(bundle, model, tokenizer, tmp_path, capfd):
    file = tmp_path / "in.txt"
    file.write_text("J. sings .\nAda sings.\nShe stays.\n")
    assert main(["tag", str(model), str(file)]) == 0
    error = capfd.readouterr().err
    assert f"{file}:2: 'sings.' is tagged as one word" in error
    assert "--tokenizer" in error
    assert error.count("warning") == 1
    for options in (
        [model, file, "--tokenizer", "whitespace"],
        [model, file, "--tokenizer", tokenizer],
        [bundle, file],
    ):
        assert main(["tag", *map(str, options)]) == 0
        assert capfd.readouterr().err == ""


def test_lines_can_be_split(bundle, tokenizer, tmp_path, capfd):
    file = tmp_path / "in.txt"
    file.write_text("Ada visited\nTurin\r\nagain. Why not?\n")
    expected = [["Ada", "visited"], ["Turin"], ["again", "."], ["Why", "not", "?"]]
    for model in (bundle, tokenizer):
        found = records(capfd, "tag", model, file, "--format", "jsonl", "--split-lines")
        assert [record["words"] for record in found] == expected
        assert [record["offset"] for record in found] == [0, 12, 19, 26]


def test_words_of_other_formats_stay(bundle, tmp_path, capfd):
    file = tmp_path / "in.jsonl"
    file.write_text('{"words": ["again.", "didn\'t"]}\n')
    assert records(capfd, "tag", bundle, file)[0]["words"] == ["again.", "didn't"]


def test_a_tokenizer_is_a_model(tokenizer, tmp_path, capfd):
    file = tmp_path / "in.txt"
    file.write_text(TEXT)
    (first, second) = records(capfd, "tag", tokenizer, file, "--format", "jsonl")
    assert first == {
        "text": "Ada visited Turin again.",
        "offset": 0,
        "words": list(WORDS[0]),
        "starts": [0, 4, 12, 18, 23],
    }
    assert second["offset"] == 25
    assert main(["tag", str(tokenizer), str(file)]) == 0
    output = capfd.readouterr().out
    assert words_of(output) == WORDS
    assert "\n4\tagain\t_\t_\t_\t_\t_\t_\t_\tSpaceAfter=No\n" in output
    assert main(["tag", str(tokenizer), str(file), "--format", "columns"]) == 0
    assert capfd.readouterr().out.startswith("Ada\nvisited\nTurin\nagain\n.\n\nShe\n")
    for options, message in [
        (["--probabilities"], "is a tokenizer, which gives no tags with probabilities"),
        (["--tokenizer", "whitespace"], "is itself a tokenizer; leave out --tokenizer"),
        (["--input-format", "conllu"], "is a tokenizer, which reads raw text; leave out --input"),
    ]:
        assert main(["tag", str(tokenizer), str(file), *options]) == 1
        assert message in capfd.readouterr().err


def test_a_window_of_one_answers_each_line(bundle):
    command = [*COMMAND, "tag", str(bundle), "--window", "1", "--format", "jsonl"]
    with subprocess.Popen(
        [*command, "--device", "cpu"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment(),
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for offset in (0, len(TEXT) + 1):
            process.stdin.write(f"{TEXT}\n".encode())
            process.stdin.flush()
            answers = [json.loads(process.stdout.readline()) for _ in range(2)]
            assert [record["offset"] for record in answers] == [offset, offset + 25]
        process.stdin.close()
    assert process.returncode == 0


def test_evaluation_of_a_tokenizer(tokenizer, tmp_path, capfd):
    file = tmp_path / "gold.conllu"
    file.write_text(treebank())
    assert main(["evaluate", str(tokenizer), str(file)]) == 0
    output = capfd.readouterr().out
    for name in ("f1/words", "f1/sentences", "sentences "):
        assert name in output
    raw = tmp_path / "raw.conllu"
    raw.write_text("1\ta" + "\t_" * 8 + "\n\n")
    assert main(["evaluate", str(tokenizer), str(raw)]) == 1
    assert f"{raw}:1: the white space between the words" in capfd.readouterr().err


@pytest.mark.skipif(os.name != "posix", reason="reads a pipe")
def test_long_lines_through_a_pipe(tokenizer):
    text = "Rome is old. " * 5000
    output = bcrf("tag", tokenizer, "--format", "jsonl", "--device", "cpu", stdin=text).stdout
    assert output.count("\n") == 5000
    assert json.loads(output.splitlines()[-1])["offset"] == 13 * 4999


def test_checking_data_of_a_tokenizer(tmp_path, capfd):
    file = tmp_path / "gold.conllu"
    file.write_text(treebank())
    assert main(["check", "--task", "tokenization", str(file)]) == 0
    assert "1200" in capfd.readouterr().out
    file.write_text("1\ta" + "\t_" * 8 + "\n\n" + treebank())
    assert main(["check", "--task", "tokenization", str(file)]) == 1
    assert f"{file}:1: the white space between the words" in capfd.readouterr().out
