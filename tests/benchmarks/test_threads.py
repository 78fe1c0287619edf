"""The times of `bcrf demo` with one and two threads: the log, and the table of docs/cli.md."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import threads
from benchmarks.log import BenchmarkLog

ROOT = Path(__file__).parents[2]


def test_a_run_is_logged_and_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "run_demo", lambda *_: None)
    log = BenchmarkLog(tmp_path / "threads.jsonl", "benchmarks.threads")
    rows = log.rows(threads.measure(log, busy=0, rounds=2, limit=5.0))
    assert [row["row"] for row in rows] == ["start", "threads", "threads", "threads", "end"]
    assert {"commit", "command", "machine", "software", "busy", "load", "limit"} <= rows[0].keys()
    assert [row["variant"] for row in rows[1:4]] == list(threads.VARIANTS)
    assert all(len(row["samples"]) == 2 for row in rows[1:4])
    assert "| two that spin while they wait | 0 to 0 s |" in threads.rendered(rows)


def test_stopped_runs_are_counted() -> None:
    rows = [
        {"row": "start", "limit": 100.0},
        {"row": "threads", "variant": "one", "samples": [31.2, 100.3]},
    ]
    assert threads.rendered(rows).endswith("| one | 31 to 100 s; 1 of 2 runs stopped |\n")


def test_the_page_has_the_table_of_the_last_run() -> None:
    log = BenchmarkLog(threads.LOG)
    run = log.last_run(finished=True)
    assert run is not None
    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    assert threads.rendered(log.rows(run)) in page
    assert log.rows(run)[0]["command"] in page
