"""The comparison of two source trees."""

from __future__ import annotations

import sys

import pytest

from benchmarks.compare import SYSTEMS, Ratio, main
from benchmarks.systems import SYSTEMS as KNOWN


def test_a_call_is_slower_only_beyond_the_spread():
    steady = Ratio("a", [1.0, 1.0, 1.0], [1.1, 1.1, 1.1])
    assert steady.median == pytest.approx(1 / 1.1)
    assert steady.is_slower(0.05)
    assert "SLOWER" in steady.line(0.05)
    assert not steady.is_slower(0.1)
    noisy = Ratio("a", [1.0, 1.0, 1.0], [1.1, 1.2, 0.9])
    assert not noisy.is_slower(0.05)


def test_two_interpreters_are_compared_call_by_call(capsys):
    choice = ["--cases", "1x30x17", "--systems", "viterbi", "crf", "--minutes", "0"]
    main([sys.executable, sys.executable, *choice, "--tolerance", "0.99"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("before: ")
    assert lines[1].startswith("after: ")
    assert [line.partition("  ")[0] for line in lines[3:7]] == [
        "crf, loss, 1x30x17, shared",
        "viterbi, decode, 1x30x17, shared",
        "crf, loss, 1x30x17, per-pair",
        "viterbi, decode, 1x30x17, per-pair",
    ]
    assert lines[-1].startswith("0 of 4 calls are slower by more than 99% beyond the spread")


def test_the_compared_systems_exist():
    assert set(SYSTEMS) <= set(KNOWN)
