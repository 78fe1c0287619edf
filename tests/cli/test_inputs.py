"""Inputs that are nested too deeply, too long, closed, or not text: errors and output."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from bcrf.cli import main
from bcrf.cli.config_file import MAX_CONFIG_BYTES, read_config
from bcrf.cli.errors import UserError
from bcrf.cli.tag import _render
from bcrf.tagger.data import DataError
from reproduction.__main__ import main as reproduction_main
from tests.cli_cases import COMMAND, SENTENCES, bcrf, conllu, environment, reproduction, small_model

posix = pytest.mark.skipif(os.name != "posix", reason="streams and names of POSIX")


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return small_model(tmp_path_factory.mktemp("pos"), conllu(*SENTENCES))


def tag(capfd, *arguments: object) -> str:
    assert main(["tag", *map(str, arguments)]) == 0
    return capfd.readouterr().out


# ----------------------------------------------------------------------------- configuration files

LEAST = 'output = "run"\n[data]\ntrain = "train.conllu"\n'
BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
MERGES = "a: &a {x: 1}\n" + "".join(
    f"{name}: &{name} {{<<: [{', '.join([f'*{before}'] * 9)}]}}\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "a.json",
            '{"a":' * 5000 + "1" + "}" * 5000,
            "values are nested too deeply; expected tables",
        ),
        (
            "a.toml",
            "a = " + "[" * 5000 + "]" * 5000,
            "values are nested too deeply; expected tables",
        ),
        ("a.toml", "a" + ".a" * 20_000 + " = 1", "line 1 has more than 50 dots; shorten it"),
        ("a.yaml", "[" * 10_000, "line 1 is nested too deeply; expected tables"),
        ("a.yaml", "- " * 10_000, "line 1 is nested too deeply; expected tables"),
        ("a.yaml", BOMB + "output: x\ndata: {train: *i}\n", "line 2 has an alias (*); write out"),
        ("a.yaml", MERGES, "line 2 has an alias (*); write out the value instead"),
        ("a.json", " " * MAX_CONFIG_BYTES + "{}", "expected at most 65,536 bytes, found more"),
        ("a.json", r'{"output": "a\u0000b"}', "contains a NUL or a lone surrogate"),
        ("a.yaml", 'output: "a\\0b"', "contains a NUL or a lone surrogate"),
        ("a.json", r'{"output": "x", "data": {"train": "\ud800"}}', "contains a NUL or a lone"),
        ("a.json", r'{"\ud800": 1}', "contains a NUL or a lone surrogate"),
        (
            "a.toml",
            LEAST + '[optimizer]\nlazy = "false"',
            'optimizer.lazy: expected true or false, got "false"',
        ),
        (
            "a.toml",
            LEAST + f"[optimizer]\nlearning_rate = {10**400}",
            "more than 64 bits; expected",
        ),
        ("a.yaml", "output: " + "1:" * 3000 + "1", "more than 64 bits; expected a smaller number"),
        (
            "a.toml",
            LEAST + "[optimizer]\nlazy = 0",
            "optimizer.lazy: expected true or false, got 0",
        ),
    ],
)
def test_invalid_configuration_files(tmp_path, capsys, name, text, message):
    (tmp_path / name).write_text(text)
    assert main(["train", str(tmp_path / name)]) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"bcrf: error: {tmp_path}/{name}: ")
    assert message in said
    assert said.count("\n") == 1


def test_comments_may_have_dots(tmp_path):
    (tmp_path / "a.toml").write_text(f"# {'.' * 80}\nx = 'a.b'\n")
    assert read_config(str(tmp_path / "a.toml")) == {"x": "a.b"}


@posix
def test_configuration_files_must_be_regular_files(tmp_path, capsys):
    os.mkfifo(tmp_path / "pipe.toml")
    (tmp_path / "folder.toml").mkdir()
    for name in ("pipe.toml", "folder.toml"):
        assert main(["train", str(tmp_path / name)]) == 1
        assert f"{name}: expected a regular file" in capsys.readouterr().err
    assert reproduction_main(["pos", "--experiments", str(tmp_path)]) == 1
    assert "expected a regular file" in capsys.readouterr().err


def test_tables_of_experiments_have_the_same_limits(tmp_path):
    (tmp_path / "pos.toml").write_text("a = " + "[" * 5000)
    with pytest.raises(UserError, match="its values are nested too deeply"):
        read_config(str(tmp_path / "pos.toml"))
    assert "nested too deeply" in reproduction("pos", "--experiments", tmp_path, code=1).stderr


# ------------------------------------------------------------------------------- streams and names


def shell(command: str, *values: str) -> subprocess.CompletedProcess[bytes]:
    """Run `bcrf` as `$0 $1 $2` of a shell command, with `values` as "$3", "$4", ..."""
    return subprocess.run(
        ["sh", "-c", command, *COMMAND, *values],
        capture_output=True,
        env=environment(),
        timeout=120,
        stdin=subprocess.DEVNULL,
    )


@posix
def test_closed_standard_input_is_an_error(model):
    done = shell('"$0" "$1" "$2" tag "$3" <&-', str(model))
    assert done.returncode == 1
    assert done.stderr == (
        b"bcrf: error: standard input is closed; name a FILE, or pipe the text into the command\n"
    )


@posix
def test_closed_standard_error_does_not_change_the_output(model, tmp_path):
    file = tmp_path / "in.txt"
    file.write_text("the cat\n")
    done = shell('"$0" "$1" "$2" tag "$3" "$4" --format columns 2>&-', str(model), str(file))
    assert (done.returncode, done.stdout) == (0, b"the\tDET\ncat\tNOUN\n\n")
    done = shell('"$0" "$1" "$2" tag "$3" nowhere 2>&-', str(model))
    assert (done.returncode, done.stdout) == (
        1,
        b"",
    )  # the error message is not written to standard output


@posix
def test_file_names_that_are_not_utf8_are_printed_unchanged(tmp_path):
    name = os.fsdecode(bytes(tmp_path) + b"/a\xff.conllu")
    Path(name).write_text(conllu("the/DET"))
    done = subprocess.run(
        [*COMMAND, "check", name],
        capture_output=True,
        env=environment(PYTHONIOENCODING="utf-8:strict"),
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(os.fsencode(name) + b": conllu; sentences: 1")


def test_characters_outside_the_output_encoding_are_escaped(tmp_path):
    file = tmp_path / "a.tsv"
    file.write_text("x\t名\n", encoding="utf-8")
    shown = bcrf("check", file, "--task", "pos", PYTHONIOENCODING="ascii").stdout
    assert r"tags: \u540d 1" in shown


# ----------------------------------------------------------------------------------- what comes out

DU = (
    "# text = du pain\n"
    + "1-2\tdu"
    + "\t_" * 8
    + "\n"
    + "".join(f"{i}\t{word}" + "\t_" * 8 + "\n" for i, word in enumerate(["de", "le", "pain"], 1))
    + "\n"
)


def test_multiword_tokens_that_differ_from_their_words(model, tmp_path, capfd):
    file = tmp_path / "du.conllu"
    file.write_text(DU)
    record = json.loads(tag(capfd, model, file, "--format", "jsonl"))
    assert list(record) == ["text", "words", "tags"]
    assert (record["text"], record["words"]) == ("du pain", ["de", "le", "pain"])
    rows = tag(capfd, model, file, "--format", "columns").splitlines()
    assert [row.split("\t")[0] for row in rows] == ["de", "le", "pain", ""]
    lines = tmp_path / "du.jsonl"
    lines.write_text(json.dumps({"text": "du pain", "words": ["de", "le", "pain"]}) + "\n")
    first, *rows = tag(capfd, model, lines, "--format", "conllu").splitlines()
    assert first == "# text = du pain"
    assert [row.split("\t")[9] for row in rows if row] == ["_"] * 3


def test_document_starts_and_byte_order_marks_in_columns(model, tmp_path, capfd):
    file = tmp_path / "a.conll"
    file.write_text("-DOCSTART- -X- -X- O\n\nthe DT B-NP O\n\n-DOCSTART- -X- -X- O\n\ncat NN O O\n")
    assert tag(capfd, model, file, "--format", "columns") == (
        "-DOCSTART-\t-X-\n\nthe\tDET\n\n-DOCSTART-\t-X-\n\ncat\tNOUN\n\n"
    )
    text = tmp_path / "a.txt"
    text.write_text("cat\n \ufeff the -DOCSTART- cat\n", encoding="utf-8")
    columns = tmp_path / "a.tsv"
    columns.write_text(tag(capfd, model, text, text, "--format", "columns"), encoding="utf-8")
    again = tag(capfd, model, columns, "--format", "jsonl").splitlines()
    assert [json.loads(line)["words"] for line in again] == [
        ["cat"],
        ["\ufeff", "the", "-DOCSTART-", "cat"],
    ] * 2


def test_a_byte_order_mark_in_a_second_file_may_be_a_word(model, tmp_path, capfd):
    first, second = tmp_path / "1.txt", tmp_path / "2.txt"
    first.write_text("cat\n")
    second.write_text(" \ufeff\n", encoding="utf-8")
    rows = tag(capfd, model, first, second, "--format", "columns").splitlines()
    assert rows[2].startswith("\ufeff\t")


def test_files_are_separated_after_unusual_line_ends(model, tmp_path, capfd):
    """Only a line feed ends a line: a field may end in U+2028."""
    first, second = tmp_path / "1.conllu", tmp_path / "2.conllu"
    first.write_text("1\tcat" + "\t_" * 7 + "\tA=\u2028\n", encoding="utf-8")
    second.write_text(conllu("the/DET"))
    assert tag(capfd, model, first, second).count("\n\n") == 2


def test_errors_name_file_and_line_once():
    class UnwritableSentence:
        def render_lines(self, format: str | None) -> Iterator[str]:
            raise DataError("in.conllu", 3, "so")

    with pytest.raises(DataError, match=r"^in.conllu:3: so$"):
        list(_render(UnwritableSentence(), None))  # type: ignore[arg-type]
