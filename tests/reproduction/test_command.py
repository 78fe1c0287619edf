"""`python -m reproduction` as a process: killed and started again, listed, reported."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from reproduction.__main__ import main
from tests.cli_cases import REPRODUCTION as COMMAND
from tests.cli_cases import environment
from tests.cli_cases import reproduction as bcrf
from tests.reproduction_cases import SAMPLES, SMALL, write_folder

ROOT = Path(__file__).resolve().parents[2]

EPOCHS = 12
LONG = {"training": SMALL["training"] | {"epochs": EPOCHS}}
CHOICE = ["--languages", "english", "--seeds", "0", "--objectives", "crf"]


def command(folder: Path, *arguments: str) -> list[str]:
    places = ["--data", str(SAMPLES), "--output", str(folder / "runs"), "--device", "cpu"]
    return [*arguments, "--experiments", str(folder / "experiments"), *places]


def rows(folder: Path, table: str = "pos") -> list[dict]:
    path = folder / "experiments" / "results" / f"{table}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_help_does_not_import_torch():
    """torch takes a second to import; without it, help takes less than 0.1 s."""
    probe = """
import sys
from reproduction.__main__ import main
try:
    main(["--help"])
except SystemExit as exit:
    assert exit.code == 0
print("torch" in sys.modules)
import reproduction.report
from reproduction import Results, report
print(callable(report), "torch" in sys.modules)
"""
    command = [sys.executable, "-c", probe]
    output = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    assert output.splitlines()[0].startswith("usage: python -m reproduction ")
    assert output.splitlines()[-2:] == ["False", "True True"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, -9), (signal.SIGINT, 130)])
def test_a_killed_command_continues_its_run(tmp_path, capsys, number, code):
    write_folder(tmp_path, pos=LONG)
    arguments = command(tmp_path, "pos", *CHOICE)
    process = subprocess.Popen(
        [*COMMAND, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    assert process.stdout is not None
    while not process.stdout.readline().startswith(f"epoch 2/{EPOCHS}"):
        assert process.poll() is None
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == code
    if number == signal.SIGINT:
        assert errors.splitlines() == [
            "bcrf: stopped; run the same command again to continue",
            "bcrf: interrupted",
        ]
    assert rows(tmp_path) == []
    assert main([*arguments, "--list"]) == 0
    assert capsys.readouterr().out.startswith("begun   pos english 0 crf seed 0 (")

    assert main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "begun: pos english 0 crf seed 0"
    assert "continuing with epoch " in lines[1]
    first = int(lines[1].rpartition(" ")[2])
    assert first >= 3
    assert lines[2].startswith(f"epoch {first}/{EPOCHS}  loss ")
    (row,) = rows(tmp_path)
    score = f"{100 * row['evaluations']['test']['decoders']['viterbi']['score']:.2f} (paper 91.3)"
    assert lines[-1] == f"done: pos english 0 crf seed 0: {score}"
    assert len(row["training"]["dev"]) == EPOCHS

    assert main(arguments) == 0
    assert capsys.readouterr().out == f"{lines[-1]}\n"  # it is not run again
    assert rows(tmp_path) == [row]
    assert main([*arguments, "--list"]) == 0
    assert capsys.readouterr().out == f"done    pos english 0 crf seed 0: {score}\n"


def test_missing_data_are_listed_and_skipped(tmp_path, capsys):
    write_folder(tmp_path)
    result = bcrf(*command(tmp_path, "pos", "--list"))
    listed = result.stdout.splitlines()
    assert len(listed) == 16
    assert listed[0] == "to do   pos english 0 unstructured seed 0"
    looked_for = f"there is no tlh-train.conllu, no tlh-dev.conllu, no tlh or tlh2 under {SAMPLES}"
    assert listed[4] == f"missing pos klingon 0 unstructured seed 0 ({looked_for})"
    assert result.stderr == "8 to do, 8 missing\n"
    assert main(command(tmp_path, "pos", "--languages", "klingon")) == 0
    assert capsys.readouterr().out == f"skipped: pos klingon 0 unstructured seed 0: {looked_for}\n"


def test_the_report_is_written_to_the_given_page(tmp_path, capsys):
    write_folder(tmp_path)
    page = tmp_path / "docs" / "page.md"
    assert main(command(tmp_path, "report", "--page", str(page), "--no-plots")) == 0
    appendix = page.with_name("page-appendix.md")
    assert capsys.readouterr().out == f"{page}\n{appendix}\n"
    assert page.read_text().startswith("# Results\n")
    assert appendix.read_text().startswith("# Appendix\n")


def test_a_failed_run_sets_the_exit_code(tmp_path, capsys):
    write_folder(tmp_path, pos={"optimizer": {"learning_rate": 1e30}})
    assert main(command(tmp_path, "pos", *CHOICE)) == 1
    assert "failed: pos english 0 crf seed 0: epoch 1, step " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["poss"], 1, "there is no table 'poss' in "),
        (["pos", "--languages", "elvish"], 1, "unknown name 'elvish'; expected english, klingon"),
        (["pos", "--layers", "3"], 1, "layers: unknown name '3'; expected 0, 1"),
        (["pos", "--objectives", "magic"], 1, "objectives: objective must be one of"),
        (["pos", "--seeds", "one"], 2, "expected a number such as 0, got 'one'"),
        (["pos", "--seeds", "-1"], 2, "expected a number such as 0, got '-1'"),
        (["pos", "--pretrained", "base"], 2, "expected NAME=FOLDER, got 'base'"),
        (["pos", "--pretrained", "bert=x"], 1, "pretrained: unknown network 'bert'; expected 0, 1"),
        (["pos", "--experiments", "nowhere"], 1, "nowhere: has no tables; expected a folder"),
        (["pos", "--data", "nowhere"], 1, "--data nowhere: there is no such folder; expected the"),
        (["pos", "--device", "abacus"], 1, "device must be auto, cpu, cuda or cuda:N"),
        ([], 2, "error: expected TABLE"),
    ],
)
def test_wrong_command_lines(tmp_path, capsys, arguments, code, message):
    write_folder(tmp_path)
    first, *rest = command(tmp_path)
    try:
        found = main([first, *rest, *arguments])
    except SystemExit as exit:
        found = exit.code
    assert found == code
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("pos.toml", "kind = ", "pos.toml: invalid TOML"),
        ("pos.toml", "kind = 'accuracy'", "pos: corpora is missing; expected a table of tables"),
        ("results/pos.jsonl", "{\n", "pos.jsonl:1: expected JSON: "),
        (
            "template.md",
            "{{ tabel pos }}\n",
            "template.md: unknown mark {{ tabel pos }}; expected one of source, ",
        ),
        ("template.md", "{{ paper poss }}\n", "{{ paper poss }}: unknown 'poss'; expected "),
        ("appendix.md", "{{ rows poss }}\n", "{{ rows poss }}: unknown 'poss'; expected "),
    ],
)
def test_wrong_files_are_named(tmp_path, capsys, name, text, message):
    folder = write_folder(tmp_path)
    (folder / "results").mkdir()
    (folder / name).write_text(text)
    page = str(tmp_path / "page.md")
    assert main(command(tmp_path, "report", "--no-plots", "--page", page)) == 1
    assert message in capsys.readouterr().err
    assert not Path(page).exists()


def test_torchrun_is_refused(tmp_path, capsys, monkeypatch):
    write_folder(tmp_path)
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main(command(tmp_path, "pos")) == 1
    assert "torchrun is not supported" in capsys.readouterr().err
