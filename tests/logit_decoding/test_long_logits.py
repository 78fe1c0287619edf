"""Decoding of long inputs: time, memory, and the example."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import bcrf
from benchmarks.long_logits import PREFIXES, make_labels, make_logits

ROOT = Path(__file__).resolve().parents[2]


def run(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def measured(scheme: str, positions: int) -> dict[str, Any]:
    options = ["--scheme", scheme, "--positions", str(positions)]
    return json.loads(run("-m", "benchmarks.long_logits", *options))


@pytest.mark.slow
@pytest.mark.parametrize("scheme", PREFIXES)
def test_long_inputs_take_little_time_and_memory(scheme):
    """CPU time, because other programs may run. The bounds are generous; see the guide."""
    row = measured(scheme, 128_000)
    assert (row["positions"], row["labels"], row["spans"]) == (128_000, 33, 3200)
    assert row["median_cpu_seconds"] < 3
    assert row["peak_added_mb"] < 600


@pytest.mark.slow
def test_memory_is_linear():
    short, long = (measured("BIOES", n)["peak_added_mb"] for n in (64_000, 256_000))
    assert long < 6 * short


@pytest.mark.parametrize("scheme", PREFIXES)
def test_benchmark_logits_contain_the_spans_that_are_put_in(scheme):
    labels = make_labels(scheme)
    found = bcrf.decode_logits(make_logits(810, labels), labels)
    assert len(labels) == 33
    assert [span.end - span.start for span in found.spans[0]] == [1, 2, 3, 4] * 5
    assert [span.start for span in found.spans[0]] == list(range(5, 805, 40))
    assert found.scheme == scheme


def test_long_inputs_agree_with_windows_of_them():
    """A position that is surely O makes both sides independent: windows give the same spans."""
    labels = make_labels("BIOES")
    logits = make_logits(4000, labels, noise=2.0)
    logits[::100, 0] += 60.0
    whole = bcrf.decode_logits(logits, labels)
    expected = []
    for start in range(0, 4000, 100):
        for span in bcrf.decode_logits(logits[start : start + 101], labels).spans[0]:
            place = (start + span.start, start + span.end, span.label)
            expected.append((*place, pytest.approx(span.probability, rel=1e-6)))
    assert len(expected) > 500
    assert [tuple(span) for span in whole.spans[0]] == expected


def test_the_example_runs():
    printed = run("examples/decode_logits.py")
    assert "argmax per token:  O I-NAME" in printed
    assert "legal labels:      O B-NAME I-NAME E-NAME O B-EMAIL" in printed
    assert printed.count("555 01 99") == 3
    assert "finds 0 spans" in printed


def test_decoding_ignores_the_default_dtype_and_autocast():
    labels = make_labels("BIOES")
    logits = make_logits(400, labels, noise=2.0)
    expected = bcrf.decode_logits(logits, labels)
    torch.set_default_dtype(torch.float64)
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = bcrf.decode_logits(logits, labels)
    finally:
        torch.set_default_dtype(torch.float32)
    assert found.spans == expected.spans
    with torch.inference_mode():
        assert bcrf.decode_logits(logits, labels).spans == expected.spans
