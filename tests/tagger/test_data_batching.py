"""Batches and vocabularies."""

import itertools
import json
import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bcrf.tagger.data import LengthBatches, Vocabulary

LENGTHS = st.lists(st.integers(0, 60), max_size=80)


# ------------------------------------------------------------------------------------------ batches


@given(LENGTHS, st.integers(1, 9), st.integers(0, 3), st.integers(0, 3))
def test_every_sentence_occurs_once_per_epoch(lengths, size, seed, epoch):
    for batches in (
        LengthBatches(lengths, sentences=size, seed=seed).epoch(epoch),
        LengthBatches(lengths, tokens=size * 10, seed=seed).epoch(epoch),
        LengthBatches(lengths, sentences=size).in_order(),
    ):
        assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
        assert all(batches)


@given(LENGTHS, st.integers(1, 9))
def test_batches_of_sentences_are_full_and_of_similar_length(lengths, size):
    batches = LengthBatches(lengths, sentences=size).epoch(0)
    sizes = sorted(map(len, batches))
    assert sizes[1:] == [size] * (len(sizes) - 1)
    # Batches do not overlap in length, which gives the least padding.
    spans = sorted((min(lengths[i] for i in b), max(lengths[i] for i in b)) for b in batches)
    assert all(left[1] <= right[0] for left, right in itertools.pairwise(spans))


@given(LENGTHS, st.integers(1, 200))
def test_token_budget_counts_padding(lengths, budget):
    batches = LengthBatches(lengths, tokens=budget).in_order()
    padded = [max(lengths[i] for i in batch) * len(batch) for batch in batches]
    assert all(
        tokens <= budget or len(batch) == 1 for tokens, batch in zip(padded, batches, strict=True)
    )
    # The next sentence would not have fit.
    for batch, following in itertools.pairwise(batches):
        assert max(1, lengths[following[0]]) * (len(batch) + 1) > budget


def test_the_order_is_a_function_of_seed_and_epoch():
    lengths = [i % 7 for i in range(200)]
    plan = LengthBatches(lengths, sentences=8, seed=3)
    assert plan.epoch(5) == LengthBatches(lengths, sentences=8, seed=3).epoch(5)
    orders = [plan.epoch(0), plan.epoch(1), LengthBatches(lengths, sentences=8).epoch(0)]
    assert orders[0] != orders[1] != orders[2] != orders[0]
    # The order of batches changes, and so does the grouping of sentences.
    assert sorted(map(sorted, orders[0])) != sorted(map(sorted, orders[1]))


def test_the_order_does_not_depend_on_the_process():
    code = (
        "from bcrf.tagger.data import LengthBatches; "
        "print(LengthBatches([3, 1, 2, 2, 5, 1], sentences=2, seed=1).epoch(4))"
    )
    runs = {
        subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert runs == {f"{LengthBatches([3, 1, 2, 2, 5, 1], sentences=2, seed=1).epoch(4)}\n"}


@given(LENGTHS, st.integers(1, 9), st.integers(1, 4))
def test_processes_share_each_batch(lengths, size, world):
    plan = LengthBatches(lengths, sentences=size)
    whole = plan.epoch(2)
    shares = [plan.epoch(2, rank, world) for rank in range(world)]
    assert {len(share) for share in shares} == {len(whole)}
    for step, batch in enumerate(whole):
        parts = [share[step] for share in shares]
        assert sorted(index for part in parts for index in part) == sorted(batch)
        sizes = [len(part) for part in parts]
        assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "either sentences or tokens"),
        ({"sentences": 2, "tokens": 3}, "either sentences or tokens"),
        ({"sentences": 0}, "sentences must be at least 1, got 0"),
        ({"tokens": -1}, "tokens must be at least 1"),
    ],
)
def test_bad_batch_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        LengthBatches([1], **settings)
    with pytest.raises(ValueError, match=r"rank must be in 0\.\.1, got 2"):
        LengthBatches([1], sentences=1).epoch(0, rank=2, world=2)


# --------------------------------------------------------------------------------------- vocabulary


def test_vocabulary_is_sorted_by_frequency():
    vocabulary = Vocabulary.build(["b", "a", "c", "a", "b", "a", "<pad>", "<unk>", "D"])
    assert vocabulary.tokens == ("<pad>", "<unk>", "a", "b", "D", "c")
    assert vocabulary.ids(["a", "c", "nope", "<pad>", "<unk>", "d"]) == [2, 5, 1, 1, 1, 1]
    assert len(vocabulary) == 6
    assert "a" in vocabulary
    assert "nope" not in vocabulary
    assert "<unk>" not in vocabulary
    assert Vocabulary.build(["a", "b", "a"], min_count=2).tokens[2:] == ("a",)


def test_vocabulary_in_lower_case():
    vocabulary = Vocabulary.build(["The", "the", "Cat"], lowercase=True)
    assert vocabulary.tokens[2:] == ("the", "cat")
    assert vocabulary.ids(["THE", "cat"]) == [2, 3]
    assert "CAT" in vocabulary


@given(st.lists(st.text()), st.booleans())
def test_vocabulary_round_trip_through_json(tokens, lowercase):
    vocabulary = Vocabulary.build(tokens, lowercase=lowercase)
    again = Vocabulary.from_dict(json.loads(json.dumps(vocabulary.to_dict())))
    assert again == vocabulary
    assert again.ids(tokens) == vocabulary.ids(tokens)
    for token in tokens:
        known = token.lower() if lowercase else token
        assert (token in again) != (known in ("<pad>", "<unk>"))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"tokens": []}, "has the fields tokens and lowercase; got tokens"),
        ({"tokens": "ab", "lowercase": False}, "list of strings"),
        ({"tokens": ["<pad>", "<unk>"], "lowercase": 1}, "true or false, got 1"),
        ({"tokens": ["a"], "lowercase": False}, "must start with <pad>, <unk>"),
        ({"tokens": ["<pad>", "<unk>", "a", "a"], "lowercase": False}, "'a' occurs twice"),
    ],
)
def test_bad_vocabularies_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        Vocabulary.from_dict(values)
