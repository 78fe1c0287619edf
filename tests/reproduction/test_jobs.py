"""Log rows that belong to one job, and the lock on the folder of a job."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from bcrf.tagger.files import JsonlLog
from reproduction import JobMessage
from reproduction.jobs import find_row
from tests.reproduction.test_run import CRF
from tests.reproduction_cases import experiment_set, run


def test_rows_of_one_key_are_merged(tmp_path):
    log = JsonlLog(tmp_path / "a.jsonl")
    log.append({"corpus": "x", "seed": 0, "test": {"viterbi": 1}, "date": "then"})
    log.append({"corpus": "x", "seed": 1, "test": {"viterbi": 9}})
    log.append({"corpus": "x", "seed": 0, "test": {"bregman": 2}, "date": "now"})
    assert find_row(log, {"corpus": "x", "seed": 0}) == {
        "corpus": "x",
        "seed": 0,
        "test": {"viterbi": 1, "bregman": 2},
        "date": "now",
    }
    assert find_row(log, {"corpus": "x", "seed": 2}) is None


HOLD = """
import sys
from pathlib import Path
from bcrf.tagger.files import hold_lock
with hold_lock(Path(sys.argv[1]), wait=False):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_job_belongs_to_one_process_until_it_ends(tmp_path: Path):
    folder = tmp_path / "runs" / "pos" / "english-0" / "crf-0"
    folder.mkdir(parents=True)
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder / ".lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    (message,) = run(tmp_path, experiment_set(tmp_path), "pos", CRF)
    assert isinstance(message, JobMessage)
    assert message.kind == "skipped"
    assert message.text.endswith("another process works on this run")
    process.kill()  # so that it has no chance to clean up
    process.communicate()
    first, *_, last = run(tmp_path, experiment_set(tmp_path), "pos", CRF)
    assert isinstance(first, JobMessage)
    assert isinstance(last, JobMessage)
    assert (first.kind, last.kind) == ("begun", "done")
