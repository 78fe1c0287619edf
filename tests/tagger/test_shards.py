"""Shards are tagged row by row, atomically, and once."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bcrf.tagger import ModelError, Tagger
from bcrf.tagger.data import BadRow, read_rows
from bcrf.tagger.data.lines import MAX_SENTENCE_BYTES
from bcrf.tagger.files import LockHeldError, remove_temporary_files
from bcrf.tagger.model_folder.location import model_identity
from bcrf.tagger.prediction.options import TaggingOptions
from bcrf.tagger.prediction.tolerant_tagging import tag_rows
from bcrf.tagger.shards import (
    Shard,
    ShardError,
    ShardOptions,
    find_shards,
    lock_results,
    plan_shards,
    read_record,
    tag_shard,
)
from tests.cli_cases import SENTENCES, bcrf, conllu, small_model

ROOT = Path(__file__).resolve().parents[2]
WORDS = ["the", "cat", "sees", "a", "dog"]


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return small_model(tmp_path_factory.mktemp("pos"), conllu(*SENTENCES))


@pytest.fixture(scope="module")
def tagger(model) -> Tagger:
    return Tagger.load(model, device="cpu")


def row(number: int) -> str:
    return json.dumps({"id": number, "words": WORDS[: 1 + number % len(WORDS)]}) + "\n"


def write_corpus(folder: Path, *counts: int) -> Path:
    corpus = folder / "corpus"
    corpus.mkdir()
    numbers = iter(range(sum(counts)))
    for shard, count in enumerate(counts):
        text = "".join(row(next(numbers)) for _ in range(count))
        (corpus / f"{shard}.jsonl").write_text(text, encoding="utf-8")
    return corpus


def one_shard(folder: Path, content: bytes) -> Shard:
    (folder / "rows.jsonl").write_bytes(content)
    (shard,) = find_shards([str(folder / "rows.jsonl")], folder / "out")
    return shard


def lines_of(path: str | Path) -> list[dict]:
    return [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]


# --------------------------------------------------------------------------------------- one shard


def test_the_output_is_that_of_the_command(model, tagger, tmp_path):
    text = "\ufeff" + row(4) + "\n" + '{"text": "a tree", "tags": null}\r\n{"words": []}\n' + row(3)
    shard = one_shard(tmp_path, text.rstrip("\n").encode())
    record = tag_shard(tagger, shard, ShardOptions(probabilities=True), "identity")
    expected = bcrf("tag", model, shard.source, "--probabilities").stdout
    assert Path(shard.output).read_bytes() == expected.encode()
    assert (record.rows, record.bad_rows, record.tokens) == (5, 0, 5 + 2 + 4)
    assert not Path(shard.errors).exists()
    assert read_record(shard) == record


@pytest.mark.parametrize("window", [1, 2, 1024])
def test_a_bad_row_goes_to_the_error_file_with_its_place(tagger, tmp_path, window):
    bad = {
        1: b"nonsense",
        3: b'{"words": [""]}',
        4: b'{"words": ["caf\xe9"]}',
        6: b'{"words": ["\\ud800"]}',
        7: b'{"tags": []}',
    }
    content = [bad.get(line, row(line).rstrip().encode()) for line in range(1, 8)]
    shard = one_shard(tmp_path, b"\n".join(content) + b"\n")
    record = tag_shard(tagger, shard, ShardOptions(window=window), "identity")
    assert (record.rows, record.bad_rows) == (7, 5)
    assert [line["id"] for line in lines_of(shard.output)] == [2, 5]
    errors = lines_of(shard.errors)
    assert [(error["file"], error["line"]) for error in errors] == [
        (shard.source, line) for line in sorted(bad)
    ]
    assert errors[0]["row"] == "nonsense"
    assert errors[2]["row"] is None
    assert "expected UTF-8, found byte 0xE9 at offset" in errors[2]["error"]


def test_a_line_that_is_too_long_is_one_bad_row(tmp_path):
    path = tmp_path / "rows.jsonl"
    with path.open("wb") as file:
        file.write(row(0).encode())
        for _ in range(3):
            file.write(b" " * (MAX_SENTENCE_BYTES // 2))
        file.write(b"\n" + row(1).encode() + b"\xff\n")
    kinds = [type(found).__name__ for found in read_rows(path, "rows")]
    assert kinds == ["Sentence", "BadRow", "Sentence", "BadRow"]
    *_, last = read_rows(path, "rows")
    assert isinstance(last, BadRow)
    offset = path.stat().st_size - 2
    assert str(last.error).startswith(f"rows:4: expected UTF-8, found byte 0xFF at offset {offset}")


def test_a_row_that_the_model_cannot_tag_is_the_only_one_that_is_lost(tagger, monkeypatch):
    read = type(tagger.reader).__call__

    def refuse_dogs(self, tokens):
        if "dog" in tokens:
            raise ValueError("no dogs")
        return read(self, tokens)

    monkeypatch.setattr(type(tagger.reader), "__call__", refuse_dogs)
    content = "".join(map(row, range(12))).encode()
    path_rows = list(read_rows(io.BytesIO(content + b"bad\n"), "rows"))
    for window in (1, 5, 100):
        options = TaggingOptions(tagger.decoder, tagger.repair)
        found = list(tag_rows(tagger, path_rows, options, window))
        places = [x.error.line for x in found if isinstance(x, BadRow)]
        assert places == [5, 10, 13]
        assert [x.words for x in found if not isinstance(x, BadRow)] == [
            tuple(WORDS[: 1 + n % 5]) for n in range(12) if n % 5 != 4
        ]
        assert str(found[4].error) == "rows:5: the model cannot tag this row: no dogs"


def test_an_error_while_reading_is_no_bad_row(tagger, tmp_path):
    shard = one_shard(tmp_path, row(0).encode())
    Path(shard.source).unlink()
    with pytest.raises(FileNotFoundError):
        tag_shard(tagger, shard, ShardOptions(), "identity")
    os.mkfifo(shard.source)
    with pytest.raises(OSError, match="expected a regular file"):
        tag_shard(tagger, shard, ShardOptions(), "identity")
    assert not Path(shard.output).exists()


KILLED = """
import os, signal, sys
from bcrf.tagger import Tagger
from bcrf.tagger.shards import Shard, ShardOptions, tag_shard
from bcrf.tagger.prediction.results import Tagged

render, count = Tagged.render_lines, 0
def dying(self, format=None):
    global count
    count += 1
    if count == 30:
        os.kill(os.getpid(), signal.SIGKILL)
    return render(self, format)
Tagged.render_lines = dying
tag_shard(Tagger.load(sys.argv[1]), Shard(*sys.argv[2:]), ShardOptions(), "identity")
"""


def test_a_killed_process_leaves_no_output_and_its_files_are_removed(model, tagger, tmp_path):
    shard = one_shard(tmp_path, b"bad\n" + "".join(map(row, range(50))).encode())
    files = (shard.source, shard.output, shard.errors, shard.record)
    command = [sys.executable, "-c", KILLED, str(model), *files]
    assert subprocess.run(command, cwd=ROOT).returncode == -signal.SIGKILL
    out = tmp_path / "out"
    assert not Path(shard.output).exists()
    assert list(out.glob(".rows.jsonl.*"))
    assert list((out / "errors").glob(".rows.jsonl.*"))
    tag_shard(tagger, shard, ShardOptions(), "identity")
    left = sorted(path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file())
    assert left == ["errors/rows.jsonl", "records/rows.jsonl", "rows.jsonl"]
    assert [line["id"] for line in lines_of(shard.output)] == list(range(50))


def test_an_error_file_of_an_earlier_attempt_is_removed(tagger, tmp_path):
    shard = one_shard(tmp_path, b"bad\n" + row(0).encode())
    tag_shard(tagger, shard, ShardOptions(), "identity")
    assert len(lines_of(shard.errors)) == 1
    Path(shard.source).write_text(row(0))
    tag_shard(tagger, shard, ShardOptions(), "identity")
    assert not Path(shard.errors).exists()


def test_only_temporary_files_of_that_name_are_removed(tmp_path):
    names = [".a.jsonl.abcd_123", ".ab.jsonl.abcd_123", ".a.jsonl.lock", "a.jsonl", ".a.jsonl.x"]
    for name in names:
        (tmp_path / name).touch()
    remove_temporary_files(tmp_path / "a.jsonl")
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(names[1:])


# -------------------------------------------------------------------------- which shards to tag


def settings(**changes):
    return ShardOptions(**changes).settings("identity")


def test_finished_shards_are_skipped(tagger, tmp_path):
    corpus = write_corpus(tmp_path, 3, 20, 5)
    shards = find_shards([f"{corpus}/*.jsonl"], tmp_path / "out")
    plan = plan_shards(shards, settings())
    assert [Path(s.source).name for s in plan.waiting] == ["1.jsonl", "2.jsonl", "0.jsonl"]
    tag_shard(tagger, shards[1], ShardOptions(), "identity")
    plan = plan_shards(shards, settings())
    assert [Path(s.source).name for s in plan.waiting] == ["2.jsonl", "0.jsonl"]
    assert [record.rows for record in plan.finished] == [20]

    # A changed source, a lost output and an incomplete output are tagged again.
    with open(shards[1].source, "a") as file:
        file.write(row(0))
    assert len(plan_shards(shards, settings()).waiting) == 3
    tag_shard(tagger, shards[1], ShardOptions(), "identity")
    assert len(plan_shards(shards, settings()).waiting) == 2
    with open(shards[1].output, "r+") as file:
        file.truncate(10)
    assert len(plan_shards(shards, settings()).waiting) == 3
    Path(shards[1].output).unlink()
    assert len(plan_shards(shards, settings()).waiting) == 3


def test_outputs_of_other_settings_or_of_others_are_not_replaced(tagger, tmp_path):
    shards = find_shards([f"{write_corpus(tmp_path, 2)}/*.jsonl"], tmp_path / "out")
    tag_shard(tagger, shards[0], ShardOptions(), "identity")
    with pytest.raises(ShardError, match=r"0\.jsonl: was tagged with another model; choose"):
        plan_shards(shards, ShardOptions().settings("other"))
    with pytest.raises(ShardError, match=r"tagged with threshold = None, which is now 0\.5"):
        plan_shards(shards, settings(threshold=0.5))
    assert plan_shards(shards, settings(window=7)).waiting == ()  # does not change the tags
    for record in ("{}", "[]", '{"settings": 1}', "\0", ""):
        Path(shards[0].record).write_text(record)
        with pytest.raises(ShardError, match="there is no record that this command wrote it"):
            plan_shards(shards, settings())


def test_bad_names_are_refused(tmp_path):
    corpus, out = write_corpus(tmp_path, 1, 1), tmp_path / "out"
    with pytest.raises(ShardError, match=r"nothing-\*: there is no such file"):
        find_shards([f"{corpus}/nothing-*"], out)
    with pytest.raises(ShardError, match=r"corpus: is a folder; name its files"):
        find_shards([str(corpus)], out)
    (tmp_path / "0.jsonl").write_text(row(0))
    with pytest.raises(ShardError, match="have the same name, but their outputs go to one folder"):
        find_shards([f"{corpus}/0.jsonl", str(tmp_path / "0.jsonl")], out)
    with pytest.raises(ShardError, match="the output would replace the shard"):
        find_shards([f"{corpus}/*.jsonl"], corpus)
    (corpus / "records").write_text(row(0))
    with pytest.raises(ShardError, match="the results cannot have the name records"):
        find_shards([f"{corpus}/records"], out)
    (corpus / "train.conllu").write_text("1\tdogs" + "\t_" * 8 + "\n\n")
    with pytest.raises(ShardError, match=r"expected JSON lines.*looks like conllu"):
        find_shards([f"{corpus}/train.conllu"], out)
    same = find_shards([f"{corpus}/*.jsonl", f"{corpus}/0.jsonl"], out)
    assert [Path(shard.source).name for shard in same] == ["0.jsonl", "1.jsonl"]
    (corpus / "[0].jsonl").write_text("")  # a file whose name is a pattern
    (shard,) = find_shards([f"{corpus}/[0].jsonl"], out)
    assert shard.source.endswith("[0].jsonl")


def test_one_command_at_a_time(tmp_path):
    with (
        lock_results(tmp_path / "out"),
        pytest.raises(
            ShardError, match=rf"another command writes .*process {os.getpid()}"
        ) as found,
        lock_results(tmp_path / "out"),
    ):
        pass
    assert isinstance(found.value.__cause__, LockHeldError)
    (tmp_path / "file").touch()
    with pytest.raises(ShardError, match="is a file"), lock_results(tmp_path / "file"):
        pass


def test_the_identity_of_a_model_is_that_of_its_values(model, tagger, tmp_path):
    identity = model_identity(model)
    tagger.save(tmp_path / "copy")
    assert model_identity(tmp_path / "copy") == identity
    assert model_identity(model.parent) == identity  # the folder of the run
    other = Tagger.load(model, device="cpu")
    next(other.model.parameters()).data.mul_(2)
    other.save(tmp_path / "copy")
    assert model_identity(tmp_path / "copy") != identity
    with pytest.raises(ModelError, match="there is no such folder"):
        model_identity(tmp_path / "nothing")
