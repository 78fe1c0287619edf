"""`bcrf evaluate --report` and `--against`, `bcrf tag --threshold`, `bcrf train --init-from`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from bcrf.cli import main
from bcrf.tagger import Tagger
from tests.cli_cases import SENTENCES, bcrf, conllu, small_model

TEXT = conllu(*SENTENCES)
WRONG = TEXT.replace("NOUN", "VERB", 19)
NER = "Ada B-PER\nLovelace I-PER\nsaw O\nTurin B-LOC\n\nshe O\nsaw O\nAda B-PER\n\n" * 8


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return small_model(tmp_path_factory.mktemp("pos"), TEXT)


@pytest.fixture(scope="module")
def weak(tmp_path_factory) -> Path:
    training = {"epochs": 1, "seed": 3}
    optimizer = {"learning_rate": 1e-4}
    return small_model(
        tmp_path_factory.mktemp("weak"), TEXT, training=training, optimizer=optimizer
    )


@pytest.fixture(scope="module")
def ner_model(tmp_path_factory) -> Path:
    data = {"task": "ner"}
    return small_model(tmp_path_factory.mktemp("ner"), NER, ".conll", data=data)


@pytest.fixture(scope="module")
def file(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("data") / "gold.conllu"
    path.write_text(WRONG)
    return str(path)


def test_a_report_as_a_process(model, file, tmp_path):
    folder = tmp_path / "reports" / "new"
    found = bcrf("evaluate", model, file, "--report", folder)
    assert found.stdout.splitlines()[-1] == f"report: {folder}/report.html"
    assert found.stderr == ""
    report = json.loads((folder / "report.json").read_text())
    assert report["scores"][0]["value"] == 0.9
    assert (folder / "report.html").read_text(encoding="utf-8").startswith("<!doctype html>")


def test_a_comparison_with_another_model(model, weak, file, tmp_path, capsys):
    folder = tmp_path / "report"
    arguments = [str(model), file, "--against", str(weak), "--report", str(folder)]
    assert main(["evaluate", *arguments]) == 0
    shown = capsys.readouterr().out
    assert f"Against {weak}, decoder viterbi (p: approximate randomisation)" in shown
    columns = ["", "first", "second", "difference", "95 % interval", "p"]
    table = [re.split(" {2,}", line) for line in shown.splitlines()]
    assert columns in table
    row = next(row for row in table[table.index(columns) :] if row[0] == "accuracy")
    assert row[1] == "90.00 %"
    assert float(row[-1]) < 0.01
    values = json.loads((folder / "report.json").read_text())["comparison"]
    assert values["system"]["name"] == str(weak)
    assert values["sentences"]["first_better"] > 0


def test_a_comparison_of_decoders_without_a_report(model, file, capsys):
    options = ["--decoder", "viterbi", "--against-decoder", "bregman-10", "--json"]
    assert main(["evaluate", str(model), file, *options]) == 0
    evaluation, comparison = map(json.loads, capsys.readouterr().out.splitlines())
    assert evaluation["decoder"] == "viterbi"
    found = comparison["comparison"]
    assert found["system"]["decoder"] == "bregman-10"
    assert "shown" not in found["sentences"]
    assert found["scores"][0]["p"] == 1


def test_another_model_with_another_decoder(model, weak, file, capsys):
    options = ["--against", str(weak), "--against-decoder", "unstructured"]
    assert main(["evaluate", str(model), file, *options]) == 0
    assert f"Against {weak}, decoder unstructured" in capsys.readouterr().out


@pytest.mark.parametrize("task", ["pos", "ner"])
def test_tables_fit_80_columns(model, ner_model, file, tmp_path, capsys, monkeypatch, task):
    text, own = (WRONG, model) if task == "pos" else (NER.replace("Turin", "Ada"), ner_model)
    path = tmp_path / ("gold.conllu" if task == "pos" else "gold.conll")
    path.write_text(text)
    monkeypatch.chdir(tmp_path)
    Tagger.load(own).save("one")
    options = ["--against-decoder", "mean_field-10", "--report", "r"]
    assert main(["evaluate", "one", path.name, *options]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (
            ["--report", "R", "--decoder", "viterbi", "--decoder", "certified"],
            2,
            "one --decoder at",
        ),
        (["--against-decoder", "nothing"], 2, "--against-decoder: must be one of"),
        (["--against", "nowhere"], 1, "nowhere: there is no such folder"),
        (["--against", "NER"], 1, "compare models for the same task"),
        (["--report", "FILE"], 1, "expected a folder for the report"),
    ],
)
def test_errors(model, ner_model, file, tmp_path, capsys, monkeypatch, arguments, code, message):
    monkeypatch.chdir(tmp_path)
    places = {"NER": str(ner_model), "FILE": file}
    if arguments == ["--against", "NER"]:  # a file that both tasks can read
        rows = [line.split("\t") for line in WRONG.splitlines()]
        lines = ["\t".join([*row[:9], "NER=B-PER"]) if row[1:] else "" for row in rows]
        file = str(tmp_path / "both.conllu")
        Path(file).write_text("\n".join(lines) + "\n")
    try:
        options = [places.get(argument, argument) for argument in arguments]
        found = main(["evaluate", str(model), file, *options])
    except SystemExit as exit:
        found = exit.code
    assert found == code
    assert message in capsys.readouterr().err


# ---------------------------------------------------------------------------------------- threshold


def test_tagging_with_a_threshold(model, tmp_path, capfd):
    blank = re.sub("DET|NOUN|VERB", "_", TEXT)
    path = tmp_path / "in.conllu"
    path.write_text(blank)
    assert main(["tag", str(model), str(path), "--threshold", "1"]) == 0
    rows = [line.split("\t") for line in capfd.readouterr().out.splitlines() if line]
    assert {row[3] for row in rows} == {"_"}
    assert all(row[9].startswith("Prob=") for row in rows)
    assert main(["tag", str(model), str(path), "--threshold", "0"]) == 0
    rows = [line.split("\t") for line in capfd.readouterr().out.splitlines() if line]
    assert {row[3] for row in rows} == {"DET", "NOUN", "VERB"}


def test_mentions_below_the_threshold_become_outside(ner_model, capfd):
    import io
    import sys

    stdin, sys.stdin = sys.stdin, io.TextIOWrapper(io.BytesIO(b"Ada Lovelace saw Turin\n"))
    try:
        options = ["--threshold", "1", "--format", "jsonl"]
        assert main(["tag", str(ner_model), *options]) == 0
    finally:
        sys.stdin = stdin
    record = json.loads(capfd.readouterr().out)
    assert record["tags"] == ["O"] * 4
    assert len(record["probabilities"]) == 4


@pytest.mark.parametrize("value", ["1.5", "-0.1", "much", "nan"])
def test_a_threshold_is_a_probability(model, capsys, value):
    with pytest.raises(SystemExit):
        main(["tag", str(model), f"--threshold={value}"])
    assert "--threshold: expected a number from 0 to 1" in capsys.readouterr().err


# -------------------------------------------------------------------------------------- fine-tuning


def test_fine_tuning_with_new_tags_ends_with_the_next_commands(model, tmp_path, capsys):
    path = tmp_path / "new.conllu"
    path.write_text(TEXT.replace("the\t_\tDET", "the\t_\tARTICLE"))
    output = tmp_path / "tuned"
    options = ["--init-from", str(model), "--output", str(output), "--data.train", str(path)]
    options += ["--data.dev", str(path), "--training.epochs", "1", "--training.device", "cpu"]
    assert main(["train", *options]) == 0
    shown = capsys.readouterr().out.splitlines()
    commands = (
        f"bcrf evaluate {output} {path} --report {output}/report",
        f"bcrf tag {output} FILE",
    )
    assert shown[-1] == f"next: {commands[0]}, or {commands[1]}"
    assert Tagger.load(output).labels == ("DET", "NOUN", "VERB", "ARTICLE")


def test_a_missing_model_to_start_from(tmp_path, capsys):
    options = ["--init-from", "nowhere", "--output", str(tmp_path / "run"), "--data.train", "x"]
    with pytest.raises(SystemExit) as exit:
        main(["train", *options])
    assert exit.value.code == 2
    assert "--training.init_from: nowhere: there is no such folder" in capsys.readouterr().err
