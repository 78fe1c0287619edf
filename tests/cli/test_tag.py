"""`bcrf tag` and `bcrf evaluate`: the output for each kind of input."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bcrf.cli import main
from bcrf.tagger import Tagger
from tests.cli_cases import COMMAND, SENTENCES, at_terminal, bcrf, conllu, environment, small_model

TEXT = conllu(*SENTENCES)
BLANK = TEXT.replace("DET", "_").replace("NOUN", "_").replace("VERB", "_")


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return small_model(tmp_path_factory.mktemp("pos"), TEXT)


@pytest.fixture(scope="module")
def segmenter(tmp_path_factory) -> Path:
    text = conllu(
        *["猫/NOUN 喜欢/VERB 树/NOUN", "狗/NOUN 看见/VERB 猫/NOUN", "树/NOUN 喜欢/VERB 狗/NOUN"] * 8
    )
    return small_model(tmp_path_factory.mktemp("segmentation"), text, data={"task": "segmentation"})


def write(folder: Path, name: str, text: str) -> str:
    (folder / name).write_text(text, encoding="utf-8", newline="")
    return str(folder / name)


# ------------------------------------------------------------------------------------ as a process


def test_tagging_a_file_changes_only_its_tags(model, tmp_path):
    file = write(tmp_path, "in.conllu", "# comment\n" + BLANK)
    assert bcrf("tag", model, file).stdout == "# comment\n" + TEXT
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "best").symlink_to(model)
    same = bcrf("tag", tmp_path / "run", "-", "--input-format", "conllu", stdin=BLANK)
    assert same.stdout == TEXT  # by the folder of a run, from standard input
    assert same.stderr == ""


def test_raw_text_through_a_pipe(model):
    output = bcrf("tag", model, "--format", "jsonl", stdin="the cat sees a dog\n\nevery tree\n")
    records = [json.loads(line) for line in output.stdout.splitlines()]
    assert [record["tags"] for record in records] == [
        ["DET", "NOUN", "VERB", "DET", "NOUN"],
        [],
        ["DET", "NOUN"],
    ]


def test_a_closed_output_pipe_is_not_an_error(model, tmp_path):
    """`bcrf tag ... | head -1`: the output is larger than a pipe buffer, so that writing fails."""
    file = write(tmp_path, "in.conllu", BLANK * 60)
    process = subprocess.Popen(
        [*COMMAND, "tag", str(model), file],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    )
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline() == TEXT.partition("\n")[0].encode() + b"\n"
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(60) == 141


def test_window_1_writes_each_sentence_at_once(model):
    process = subprocess.Popen(
        [*COMMAND, "tag", str(model), "--window", "1", "--format", "jsonl"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    )
    assert process.stdin is not None
    assert process.stdout is not None
    for word, tag in (("cat", "NOUN"), ("sees", "VERB")):
        process.stdin.write(f"{word}\n".encode())
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["tags"] == [tag]  # while the input is open
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (130, b"bcrf: interrupted\n")


def test_errors_have_exit_code_1(model, tmp_path):
    file = write(tmp_path, "in.conllu", BLANK + "1\tbroken\n")
    output = tmp_path / "out.conllu"
    failed = bcrf("tag", model, file, "--output", output, code=1)
    line = BLANK.count("\n") + 1
    assert failed.stderr.startswith(f"bcrf: error: {file}:{line}: found 2 tab-separated columns")
    assert not output.exists()


def test_evaluation_as_a_table_and_as_json(model, tmp_path):
    file = write(tmp_path, "in.conllu", TEXT.replace("NOUN", "VERB", 19))
    table = bcrf("evaluate", model, file, "--decoder", "viterbi", "--decoder", "bregman-5").stdout
    _, columns, *rows = (re.split(" {2,}", line) for line in table.splitlines())
    assert columns == ["", "viterbi", "bregman-5"]
    assert ["accuracy", "90.00 %", "90.00 %"] in rows
    assert ["sentences repaired", "0 of 46", "0 of 46"] in rows
    record = json.loads(bcrf("evaluate", model, file, "--json").stdout)
    assert (record["accuracy"], record["tokens"], record["decoder"]) == (0.9, 190, "viterbi")


NER = "Ada B-PER\nLovelace I-PER\nsaw O\nTurin B-LOC\n\nshe O\nsaw O\nAda B-PER\n\n" * 8


@pytest.fixture(scope="module")
def ner_model(tmp_path_factory) -> Path:
    parts = {"data": {"task": "ner"}, "training": {"epochs": 20}}
    return small_model(tmp_path_factory.mktemp("ner"), NER, ".conll", **parts)


def test_mentions_are_shown_by_type_within_80_columns(ner_model, tmp_path, capfd):
    wrong = NER.replace("Turin B-LOC", "Turin O", 4)
    file = write(tmp_path, "in.conll", wrong)
    decoders = ("viterbi", "bregman-10-relaxed", "unstructured", "certified", "mean_field-10")
    options = [option for decoder in decoders for option in ("--decoder", decoder)]
    assert main(["evaluate", str(ner_model), file, *options]) == 0
    output = capfd.readouterr().out
    title, *lines = output.splitlines()
    assert title == f"{ner_model} on {file}"
    assert max(len(line) for line in lines if line != title) <= 80
    rows = [re.split(" {2,}", line) for line in lines]
    start = rows.index(["By type, decoder viterbi"])
    assert rows[start + 1 : start + 4] == [
        ["type", "precision", "recall", "F1", "mentions"],
        ["LOC", "50.00 %", "100.00 %", "66.67 %", "4"],
        ["PER", "100.00 %", "100.00 %", "100.00 %", "16"],
    ]
    assert ["mentions", "20", "20"] in [row[:3] for row in rows]
    for decoder in decoders:
        assert f"By type, decoder {decoder}" in lines
    assert main(["evaluate", str(ner_model), file, "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["mentions/LOC"] == 4


def test_evaluation_of_tags_that_the_model_does_not_know(model, ner_model, tmp_path, capfd):
    file = write(tmp_path, "pos.conllu", TEXT.replace("VERB", "AUX", 3))
    assert main(["evaluate", str(model), file]) == 0
    assert capfd.readouterr().err == (
        f"bcrf: warning: {file}: the model does not know the tag AUX (3); words with "
        "this tag count as errors\n"
    )
    others = write(tmp_path, "ner.tsv", "Ada\tB-MISC\nsaw\tO\n\n")
    assert main(["evaluate", str(model), others]) == 1
    assert capfd.readouterr().err == (
        f"bcrf: error: {others}: the model does not know the tags B-MISC (1), O (1); it knows "
        "DET, NOUN, VERB; check that the file is for this task\n"
    )
    assert main(["evaluate", str(ner_model), others]) == 1
    assert "the model does not know the tag B-MISC (1); it knows O, " in capfd.readouterr().err
    for name, text in (("a.conllu", ""), ("b.conllu", "\n\n"), ("c.txt", "")):
        empty = write(tmp_path, name, text)
        assert main(["evaluate", str(model), empty]) == 1
        assert f"{empty}: has no words; expected annotated sentences" in capfd.readouterr().err


def test_evaluation_of_files_without_mentions(ner_model, tmp_path, capfd):
    o_only = write(tmp_path, "o.conll", "Ada O\nsaw O\n\n")
    for file, count in ((write(tmp_path, "pos.conllu", TEXT), 190), (o_only, 2)):
        assert main(["evaluate", str(ner_model), file]) == 0
        shown = capfd.readouterr()
        assert shown.err == (
            f"bcrf: warning: {file}: has no mentions, so precision, recall and F1 are 0; the only "
            f"tag is O ({count}); expected tags such as B-PER (in CoNLL-U: NER=B-PER in the column "
            "MISC)\n"
        )
        assert "f1" in shown.out


def test_the_accuracy_of_unknown_words_needs_unknown_words(model, tmp_path, capfd):
    known = write(tmp_path, "known.conllu", TEXT)
    unknown = write(tmp_path, "unknown.conllu", conllu("the/DET zebra/NOUN"))
    for file, is_shown in ((known, False), (unknown, True)):
        assert main(["evaluate", str(model), file]) == 0
        assert ("unknown_accuracy" in capfd.readouterr().out) == is_shown
        assert main(["evaluate", str(model), file, "--json"]) == 0
        scores = json.loads(capfd.readouterr().out)
        assert ("unknown_accuracy" in scores) == is_shown
        assert scores["unknown_tokens"] == is_shown


@pytest.mark.parametrize("decoder", ["viterbi", "bregman-5-relaxed", "mean_field"])
def test_tagging_does_not_import_the_compiler_of_torch(model, ner_model, tmp_path, decoder):
    """Importing it takes a second and 100 MB."""
    file = write(tmp_path, "in.txt", "the cat sees a dog\n")
    probe = """
import sys
from bcrf.cli import main
assert main(sys.argv[1:]) == 0
print([name for name in ("torch._dynamo", "triton", "sympy") if name in sys.modules])
"""
    for folder in (model, ner_model):
        command = [sys.executable, "-c", probe, "tag", str(folder), file, "--decoder", decoder]
        output = subprocess.run(command, capture_output=True, text=True, env=environment())
        assert output.returncode == 0, output.stderr
        assert output.stdout.splitlines()[-1] == "[]"


# -------------------------------------------------------------------------------- in this process


def tag(capfd, *arguments: object) -> str:
    assert main(["tag", *map(str, arguments)]) == 0
    return capfd.readouterr().out


def test_formats(model, tmp_path, capfd):
    columns = write(tmp_path, "in.tsv", "the\t?\ncat\t?\n\n\nsees\t?\n")
    expected = "the\tDET\ncat\tNOUN\n\n\nsees\tVERB\n"
    assert tag(capfd, model, columns) == expected
    assert tag(capfd, model, columns, "--format", "columns") == expected
    lines = write(tmp_path, "in.jsonl", '{"words": ["cat"], "id": 7}\n\n')
    assert tag(capfd, model, lines) == '{"words": ["cat"], "id": 7, "tags": ["NOUN"]}\n\n'
    text = write(tmp_path, "in.txt", "cat sees\n")
    composed = tag(capfd, model, text)
    assert [row.split("\t")[1:4] for row in composed.splitlines() if "\t" in row] == [
        ["cat", "_", "NOUN"],
        ["sees", "_", "VERB"],
    ]
    assert tag(capfd, model, text, "--format", "columns") == "cat\tNOUN\nsees\tVERB\n\n"
    crlf = write(tmp_path, "crlf.conllu", "\ufeff" + BLANK.replace("\n", "\r\n").rstrip())
    filled = "\ufeff" + TEXT.replace("\n", "\r\n").rstrip()
    assert tag(capfd, model, crlf).encode() == filled.encode()
    assert tag(capfd, model, write(tmp_path, "empty.conllu", "")) == ""


def test_probabilities_decoder_and_repair_equal_those_of_the_tagger(model, tmp_path, capfd):
    file = write(tmp_path, "in.jsonl", '{"words": ["cat", "unheard", "of"]}\n')
    tagger = Tagger.load(model)
    for decoder in (None, "mean_field-2", "bregman-3-relaxed", "certified"):
        choice = ["--decoder", decoder, "--repair", "mbr"] if decoder else []
        record = json.loads(tag(capfd, model, file, "--probabilities", *choice))
        (one,) = tagger.tag([["cat", "unheard", "of"]], probabilities=True, decoder=decoder)
        assert record["tags"] == list(one.tags)
        assert record["probabilities"] == pytest.approx(one.probabilities, abs=1e-4)


def test_several_files_follow_each_other(model, tmp_path, capfd):
    one = conllu("the/DET cat/NOUN").rstrip("\n")
    first = write(tmp_path, "a.conllu", one.replace("DET", "_"))
    second = write(tmp_path, "b.conllu", "\ufeff" + one.replace("NOUN", "_"))
    assert tag(capfd, model, first, second, first) == f"{one}\n\n{one}\n\n{one}"
    lines = write(tmp_path, "c.jsonl", '{"words": ["cat"]}')
    assert tag(capfd, model, lines, lines).count("\n") == 1
    assert main(["tag", str(model), first, lines]) == 1
    assert f"{lines} is jsonl, but {first} is conllu: choose the format" in capfd.readouterr().err
    mixed = tag(capfd, model, first, lines, "--format", "jsonl")
    assert [json.loads(line)["tags"] for line in mixed.splitlines()] == [["DET", "NOUN"], ["NOUN"]]


def test_the_output_may_be_the_input(model, tmp_path, capfd):
    file = write(tmp_path, "in.conllu", BLANK)
    assert tag(capfd, model, file, "--output", file) == ""
    assert Path(file).read_text() == TEXT


def test_raw_text_is_segmented_into_words(segmenter, tmp_path, capfd):
    file = write(tmp_path, "in.txt", "猫喜欢树\n\n狗 看见猫\n")
    output = tag(capfd, segmenter, file, "--format", "jsonl", "--probabilities")
    records = [json.loads(line) for line in output.splitlines()]
    assert [record["words"] for record in records] == [
        ["猫", "喜欢", "树"],
        [],
        ["狗", "看见", "猫"],
    ]
    assert len(records[0]["probabilities"]) == 3
    assert (
        main(["evaluate", str(segmenter), write(tmp_path, "gold.conllu", conllu("猫/NOUN"))]) == 0
    )
    assert capfd.readouterr().out.splitlines()[2].split()[0] == "f1"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["tag", "MODEL", "nowhere.conllu"], 1, "nowhere.conllu: there is no such file"),
        (["tag", "MODEL", "FOLDER"], 1, "is a folder; expected a file"),
        (["tag", "nowhere"], 1, "nowhere: there is no such folder"),
        (["tag", "no-model", "no-file"], 1, "no-model: there is no such folder"),
        (["tag", "FOLDER"], 1, "holds no model; expected model.json in it"),
        (["tag", "MODEL", "RAW", "--output", "nowhere/x"], 1, "nowhere/x: there is no folder"),
        (["tag", "MODEL", "--decoder", "magic"], 2, "--decoder: must be one of viterbi"),
        (["tag", "MODEL", "--decoder", "viterby"], 2, "got 'viterby'; did you mean viterbi?"),
        (["tag", "MODEL", "--device", "abacus"], 2, "--device: must be auto, cpu, cuda or cuda"),
        (["tag", "MODEL", "--window", "0"], 2, "--window: expected at least 1, got 0"),
        (["tag", "MODEL", "--format", "text"], 2, "expected conllu, columns or jsonl, got 'text'"),
        (
            ["tag", "MODEL", "TAB", "--format", "conllu"],
            1,
            r"tab.jsonl:2: 'a\tb' cannot be written",
        ),
        (["evaluate", "MODEL"], 2, "expected FILE\n"),
        (["evaluate", "MODEL", "nowhere"], 1, "nowhere: cannot be read: No such file"),
        (["evaluate", "MODEL", "LATIN"], 1, "latin.txt:1: expected UTF-8, found byte 0xE9"),
        (["evaluate", "MODEL", "RAW"], 1, "raw.txt: is raw text and has no upos tags"),
    ],
)
def test_error_messages(model, tmp_path, capfd, monkeypatch, arguments, code, message):
    (tmp_path / "folder").mkdir()
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9\n")
    places = {
        "MODEL": str(model),
        "FOLDER": str(tmp_path / "folder"),
        "LATIN": str(tmp_path / "latin.txt"),
        "TAB": write(tmp_path, "tab.jsonl", '\n{"words": ["a\\tb"]}\n'),
        "RAW": write(tmp_path, "raw.txt", "just text\n"),
    }
    monkeypatch.chdir(tmp_path)
    try:
        found = main([places.get(argument, argument) for argument in arguments])
    except SystemExit as exit:
        found = exit.code
    assert found == code
    assert message in capfd.readouterr().err


# ----------------------------------------------------------------------------------- on a terminal


@pytest.mark.skipif(os.name != "posix", reason="there are no such terminals")
def test_a_terminal_shows_a_drawn_table_and_a_progress_bar(model, tmp_path):
    file = write(tmp_path, "in.conllu", TEXT)
    shown, _ = at_terminal("evaluate", str(model), file, stdout_too=True)
    assert "─" in shown
    assert "100.00 %" in shown
    shown, output = at_terminal("tag", str(model), file, stdout_too=False)
    assert output == TEXT
    assert "tagged sentences" in shown
