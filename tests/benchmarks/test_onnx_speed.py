"""The page on exported taggers says which decoder is slower, and where."""

from __future__ import annotations

from typing import Any

import pytest

from bcrf.tagger.files import JsonlLog
from benchmarks import onnx_speed


def row(n: int, *seconds: float) -> dict[str, Any]:
    times = {
        name: {"median": value} for name, value in zip(onnx_speed.DECODERS, seconds, strict=True)
    }
    about = {"cpu": "CPU", "onnxruntime": "1", "torch": "2", "date": "today"}
    return {"task": "pos", "tags": 17, "n": n, "seconds": times, **about}


def test_the_page_shows_ratios_and_losses(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "log.jsonl"
    monkeypatch.setattr(onnx_speed, "LOG", log)
    JsonlLog(log).append(row(32, 0.001, 0.002, 0.003), row(512, 0.010, 0.030, 0.015))
    page = onnx_speed.report()
    assert "| pos, 17 | 32 | 1.0 | 2.0 | 3.0 | 0.67 | 0.50 |" in page
    assert "| pos, 17 | 512 | 10.0 | 30.0 | 15.0 | 2.00 | 4.00 |" in page
    assert "slower than the one with Viterbi at: pos, n = 32." in page


def test_each_task_has_a_tagger_that_can_be_exported() -> None:
    from bcrf.tagger.export.tagger_graph import check_exportable

    for task in onnx_speed.TASKS:
        for decoder in onnx_speed.DECODERS:
            check_exportable(onnx_speed.random_tagger(task), decoder)
