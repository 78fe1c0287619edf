"""Logs that survive whatever happens to a process, and folders that only one process works in."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bcrf.reproduction import Log, LogError
from bcrf.reproduction.locking import hold


def test_rows_come_back(tmp_path):
    log = Log(tmp_path / "results" / "a.jsonl")
    assert log.rows() == []
    rows = [{"a": 1, "b": "é"}, {"a": 2, "c": [1.5, None]}]
    for row in rows:
        log.append(row)
    assert log.rows() == rows == Log(log.path).rows()
    assert len(log.path.read_bytes().splitlines()) == 2


def test_rows_of_one_key_are_merged(tmp_path):
    log = Log(tmp_path / "a.jsonl")
    log.append({"corpus": "x", "seed": 0, "test": {"viterbi": 1}, "date": "then"})
    log.append({"corpus": "x", "seed": 1, "test": {"viterbi": 9}})
    log.append({"corpus": "x", "seed": 0, "test": {"bregman": 2}, "date": "now"})
    assert log.find({"corpus": "x", "seed": 0}) == {
        "corpus": "x",
        "seed": 0,
        "test": {"viterbi": 1, "bregman": 2},
        "date": "now",
    }
    assert log.find({"corpus": "x", "seed": 2}) is None


@pytest.mark.parametrize("torn", [b'{"a": 2', b"\xff" * (1 << 17), b'{"a": 2}'])
def test_a_line_without_an_end_counts_as_nothing(tmp_path, torn):
    log = Log(tmp_path / "a.jsonl")
    log.append({"a": 1})
    with log.path.open("ab") as file:
        file.write(torn)
    assert Log(log.path).rows() == [{"a": 1}]
    log.append({"a": 3})
    assert log.rows() == [{"a": 1}, {"a": 3}]


def test_a_log_may_consist_of_a_torn_line(tmp_path):
    log = Log(tmp_path / "a.jsonl")
    log.path.write_bytes(b'{"a"')
    log.append({"a": 1})
    assert log.rows() == [{"a": 1}]


@pytest.mark.parametrize(
    ("line", "message"), [("{", r"a\.jsonl:2: is no JSON"), ("[1]", r"a\.jsonl:2: expected a JSON")]
)
def test_a_damaged_line_is_named(tmp_path, line, message):
    log = Log(tmp_path / "a.jsonl")
    log.append({"a": 1})
    with log.path.open("a") as file:
        file.write(line + "\n")
    with pytest.raises(LogError, match=message):
        log.rows()


def test_what_is_no_number_is_refused_and_leaves_no_trace(tmp_path):
    log = Log(tmp_path / "a.jsonl")
    with pytest.raises(ValueError, match="not JSON compliant"):
        log.append({"a": float("nan")})
    assert log.rows() == []


APPEND = """
import sys
from pathlib import Path
from bcrf.reproduction.log import Log
for number in range(60):
    Log(Path(sys.argv[1])).append({"who": sys.argv[2], "number": number, "text": "x" * 3000})
"""


def test_processes_share_a_log(tmp_path):
    path = tmp_path / "a.jsonl"
    command = [sys.executable, "-c", APPEND, str(path)]
    processes = [subprocess.Popen([*command, who]) for who in "ab"]
    assert [process.wait(120) for process in processes] == [0, 0]
    rows = Log(path).rows()
    assert len(rows) == 120
    for who in "ab":
        assert [row["number"] for row in rows if row["who"] == who] == list(range(60))


HOLD = """
import sys
from pathlib import Path
from bcrf.reproduction.locking import hold
with hold(Path(sys.argv[1])) as mine:
    print(mine, flush=True)
    sys.stdin.read()
"""


@pytest.mark.skipif(os.name != "posix", reason="locks of POSIX")
def test_a_folder_belongs_to_one_process_until_it_ends(tmp_path: Path):
    folder = tmp_path / "run"
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "True\n"
    with hold(folder) as mine:
        assert not mine
    process.kill()  # so that it has no chance to clean up
    process.communicate()
    for _ in range(2):
        with hold(folder) as mine:
            assert mine
    assert json.dumps([p.name for p in folder.iterdir()]) == '[".lock"]'
