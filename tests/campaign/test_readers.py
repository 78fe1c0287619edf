"""The part of the campaign that mutates inputs detects errors of readers."""

from __future__ import annotations

import random

import pytest

from campaign import readers
from campaign.mutations import mutate
from campaign.outcome import PartOutcome
from campaign.reader_seeds import SEEDS
from campaign.readers import READERS, failure_of, repeat


@pytest.mark.parametrize("name", READERS)
def test_valid_files_and_some_mutations_pass(name):
    for data in SEEDS[name]:
        assert failure_of(name, data) is None
    assert [repeat(name, seed) for seed in range(20)] == [None] * 20


def test_a_seed_makes_the_same_input_each_time():
    first, second = (mutate(SEEDS["conllu"], random.Random("x 3")) for _ in range(2))
    assert first == second
    assert first not in SEEDS["conllu"]


def test_unexpected_errors_and_slow_readers_are_failures(monkeypatch):
    def fail(data: bytes) -> None:
        raise IndexError("out of range")

    monkeypatch.setitem(READERS, "text", fail)
    assert failure_of("text", b"abc") == "IndexError: out of range; input b'abc'"
    outcome = readers.run(sample=True)
    assert outcome.counts["mutated inputs"] == len(READERS) * readers.SAMPLE_MUTATIONS
    assert len(outcome.failures) == readers.SHOWN_FAILURES + 1
    monkeypatch.setitem(READERS, "text", lambda data: None)
    monkeypatch.setattr(readers, "SECONDS", -1.0)
    assert "took 0.0 s; input b'abc'" in str(failure_of("text", b"abc"))


def test_lost_words_are_a_failure(monkeypatch):
    """Simulate a writer of JSON lines that drops the last word."""
    from bcrf.tagger.data.jsonl import JsonlFormat

    monkeypatch.setattr(JsonlFormat, "compose", lambda *arguments: '{"words": ["a"]}\n')
    assert "composing as jsonl changed the words" in str(failure_of("text", b"a b\n"))


def test_blocks_that_are_not_the_file_are_a_failure(monkeypatch):
    monkeypatch.setattr(
        readers.io, "BytesIO", lambda data, wrapped=readers.io.BytesIO: wrapped(data[1:])
    )
    assert "the joined blocks differ from the file" in str(failure_of("text", b"ab\n"))


@pytest.mark.slow
def test_inputs_are_chosen_by_coverage(monkeypatch):
    pytest.importorskip("atheris")
    monkeypatch.setattr(readers, "GUIDED_RUNS", 200)
    outcome = PartOutcome()
    readers._run_guided("text", outcome)
    assert (outcome.counts["inputs chosen by coverage"], outcome.failures) == (200, [])
