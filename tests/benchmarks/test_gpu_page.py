"""The counts of launches, the time model, and the page that shows them."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import gpu
from benchmarks.gpu_model import Estimate, estimate_fused
from benchmarks.launches import LENGTHS, OURS, launches
from benchmarks.log import BenchmarkLog, Row

KERNELS = [
    {
        "kernel": "viterbi",
        "transitions": "shared",
        "tags": 17,
        "dtype": dtype,
        "target": target,
        "registers": 92,
        "spilled_bytes": spilled,
        "shared_bytes": 1024,
    }
    for dtype in ("fp32", "fp64")
    for target, spilled in (("sm_80", 0), ("sm_100", 8))
]


def test_counts_of_all_systems() -> None:
    rows = list(launches([8], batch=2, tags=17, only=[*OURS, "eager loop: loss + gradient"]))
    assert {row["system"] for row in rows} == {*OURS, "eager loop: loss + gradient"}
    assert not [row for row in rows if "error" in row]
    assert all(row["launches"] > 0 and row["bytes"] > 0 for row in rows)
    assert not any(row["synchronisations"] for row in rows)
    # 7 log-sums of 9 kernels forward, and the rest of the loop.
    (loop,) = (row["launches"] for row in rows if not row["ours"])
    assert 7 * 9 < loop < 200


def test_a_run_is_logged_and_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "LENGTHS", (6, 12))
    monkeypatch.setattr(gpu, "SHAPES", ((2, 6),))
    monkeypatch.setattr(gpu, "_compiled_kernels", lambda: iter(KERNELS))
    log, page = tmp_path / "gpu.jsonl", tmp_path / "gpu.md"
    gpu.main(["--log", str(log), "--page", str(page)])
    text = page.read_text()
    rows = BenchmarkLog(log).rows()
    assert {row["row"] for row in rows} == {"launches", "model", "kernel", "end"}
    assert all(row["commit"] and "benchmarks.gpu" in row["command"] for row in rows)
    assert "{{" not in text
    assert "| | n = 6 | n = 12 |" in text.replace("|  |", "| |")
    assert "| viterbi | shared | 17 | 92, 1,024 B | 92, 1,024 B, spills 8 B |" in text
    assert "| 2 x 6 |" in text
    monkeypatch.setattr(gpu, "_compiled_kernels", lambda: pytest.fail("compiles again"))
    gpu.main(["--counts", "--log", str(log), "--page", str(page)])
    assert page.read_text().count("| viterbi |") == 1
    again = [row for row in BenchmarkLog(log).rows() if row["row"] == "kernel"]
    assert len(again) == 2 * len(KERNELS)
    text = page.read_text()
    page.unlink()
    gpu.main(["--report", "--log", str(log), "--page", str(page)])
    assert page.read_text() == text


def test_a_page_needs_a_finished_run(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="has no finished run"):
        gpu.main(["--report", "--log", str(tmp_path / "no.jsonl")])


def test_estimates() -> None:
    assert Estimate(launches=2, waits=1).seconds == pytest.approx(30e-6)
    short, long = (estimate_fused("crf", 8, n, 17).seconds for n in (64, 4096))
    assert long > 10 * short  # one step after another
    short, long = (estimate_fused("bregman", 8, n, 17).seconds for n in (64, 4096))
    assert long < 10 * short  # tiles run at the same time


def published() -> list[Row]:
    log = BenchmarkLog(gpu.LOG)
    return log.rows(log.last_run(finished=True))


def test_the_page_shows_the_log() -> None:
    """Write it again with `python -m benchmarks.gpu --report`."""
    assert gpu.PAGE.read_text() == gpu.page(published())


def test_the_published_counts_are_those_of_the_code() -> None:
    """Count again with `make gpu-page ARGS=--counts`."""
    logged = {
        (row["system"], row["length"]): row["launches"]
        for row in published()
        if row["row"] == "launches" and row["ours"]
    }
    found = {
        (row["system"], row["length"]): row["launches"] for row in launches(LENGTHS, only=OURS)
    }
    assert found == logged
