"""`TagBatch` tags the batches of Ray Data and of Hugging Face datasets."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pytest

from bcrf.tagger import ModelError, TagBatch, Tagger
from tests.cli_cases import SENTENCES, bcrf, conllu, small_model

SENTENCE = ["the", "cat", "sees", "a", "dog"]
TAGS = ["DET", "NOUN", "VERB", "DET", "NOUN"]


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return small_model(tmp_path_factory.mktemp("pos"), conllu(*SENTENCES))


@pytest.fixture(scope="module")
def segmenter(tmp_path_factory) -> Path:
    text = conllu(*["猫/NOUN 喜欢/VERB 树/NOUN", "狗/NOUN 看见/VERB 猫/NOUN"] * 8)
    return small_model(tmp_path_factory.mktemp("segmentation"), text, data={"task": "segmentation"})


def objects(values: list) -> np.ndarray:
    """Return an array of objects that cannot be written to, as Ray Data passes it."""
    array = np.empty(len(values), dtype=object)
    for row, value in enumerate(values):
        array[row] = value
    array.flags.writeable = False
    return array


def test_lists_give_lists(model):
    batch = {"id": [1, 2, 3], "words": [SENTENCE, [], SENTENCE[:2]]}
    before = json.dumps(batch)
    found = TagBatch(model, device="cpu")(batch)
    assert found == {**batch, "tags": [TAGS, [], TAGS[:2]]}
    assert json.dumps(batch) == before


@pytest.mark.parametrize("lengths", [(5, 2, 0), (3, 3, 3), (1, 1, 1), ()])
def test_read_only_arrays_give_arrays_of_lists(model, lengths):
    sentences = [SENTENCE[:n] for n in lengths]
    inner = [np.array(words, dtype=object) for words in sentences]
    for array in inner:
        array.flags.writeable = False
    found = TagBatch(model, device="cpu")({"words": objects(inner), "id": np.arange(len(lengths))})
    assert found["tags"].shape == (len(lengths),)
    assert found["tags"].tolist() == [TAGS[:n] for n in lengths]
    assert found["words"].tolist() == sentences
    if len(set(lengths)) == 1:  # numpy makes a matrix of lists of equal length
        matrix = {"words": np.array(sentences)}
        matrix["words"].flags.writeable = False
        assert TagBatch(model, device="cpu")(matrix)["tags"].tolist() == found["tags"].tolist()


def test_texts_and_probabilities_are_those_of_the_command(model, tmp_path):
    texts = ["the cat", "", "a dog sees"]
    file = tmp_path / "a.jsonl"
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    lines = bcrf("tag", model, file, "--probabilities").stdout.splitlines()
    found = TagBatch(model, probabilities=True, device="cpu")({"text": np.array(texts)})
    for row, line in enumerate(map(json.loads, lines)):
        assert found["words"][row] == line["words"]
        assert found["tags"][row] == line["tags"]
        np.testing.assert_allclose(found["probabilities"][row], line["probabilities"], atol=1e-4)


def test_segmentation_gives_its_own_words(segmenter):
    found = TagBatch(segmenter, device="cpu")({"text": ["猫喜欢树"]})
    assert len(found["words"][0]) == len(found["tags"][0])
    assert "".join(found["words"][0]) == "猫喜欢树"


def test_a_threshold_leaves_out_tags(model):
    found = TagBatch(model, threshold=1.0, device="cpu")({"words": [["unknown"]]})
    assert found["tags"] == [["_"]]
    assert len(found["probabilities"][0]) == 1


def test_bad_rows(model):
    batch = {"words": [SENTENCE, None, [""], ["dog", 3], SENTENCE[:1]]}
    with pytest.raises(ValueError, match=r'batch:2: "words": expected a list of non-empty strings'):
        TagBatch(model, device="cpu")(batch)
    found = TagBatch(model, device="cpu", error_column="error")(batch)
    assert found["tags"] == [TAGS, [], [], [], TAGS[:1]]
    assert [error is None for error in found["error"]] == [True, False, False, False, True]
    assert "found ['dog', 3]" in found["error"][3]


def test_wrong_arguments(model, tmp_path):
    with pytest.raises(ValueError, match=r"no column words .* or text .*; its columns are a, b"):
        TagBatch(model, device="cpu")({"a": [], "b": []})
    with pytest.raises(TypeError, match='batch_format="numpy"'):
        TagBatch(model, device="cpu")([["a"]])
    with pytest.raises(ModelError, match="there is no such folder"):
        TagBatch(tmp_path / "nothing")
    with pytest.raises(ValueError, match="decoder"):
        TagBatch(model, decoder="nothing")
    with pytest.raises(ValueError, match="threads"):
        TagBatch(model, threads=0)


def test_a_pickle_has_no_weights_and_refuses_another_model(model, tmp_path):
    folder = tmp_path / "model"
    Tagger.load(model, device="cpu").save(folder)
    tag = TagBatch(folder, device="cpu")
    small = pickle.dumps(tag)
    tag({"words": [SENTENCE]})
    assert pickle.dumps(tag) == small
    copy = pickle.loads(small)
    assert copy({"words": [SENTENCE]})["tags"] == [TAGS]
    other = Tagger.load(model, device="cpu")
    next(other.model.parameters()).data.mul_(2)
    other.save(folder)
    with pytest.raises(ModelError, match="has been replaced since the work was planned"):
        pickle.loads(small)({"words": [SENTENCE]})
