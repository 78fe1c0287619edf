"""Entities: mentions with their places in the text and their probabilities."""

import io
import json

import pytest

from bcrf.tagger import Tagger
from bcrf.tagger.data import Entity, read
from bcrf.tagger.tasks import Ner, find_spans, fit
from tests.tagger_cases import pairs, trained
from tests.tokenizer_cases import load_tokenizer

LABELS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
TASK = Ner(LABELS)


@pytest.fixture(scope="module")
def tagger(tmp_path_factory) -> Tagger:
    return trained(tmp_path_factory.mktemp("ner"), "ner", training={"epochs": 25})


def found(text: str, format: str, labels: str, probabilities=None) -> list[Entity]:
    (sentence,) = read(io.BytesIO(text.encode()), format)
    return TASK.entities(TASK.example(sentence), labels.split(), probabilities)


def conllu(*rows: str, text: str | None = None) -> str:
    lines = [] if text is None else [f"# text = {text}"]
    for row in rows:
        number, form, misc = (*row.split(), "_")[:3]
        lines.append("\t".join([number, form, *"_" * 7, misc]))
    return "\n".join([*lines, "", ""])


def test_places_in_the_text_of_the_sentence():
    text = "  Zoë 🙂 saw\tNew  York !"
    entities = found(f"{text}\n", "text", "B-PER I-PER O B-LOC I-LOC O", [0.5, 0.25])
    assert entities == [
        Entity(2, 7, "PER", "Zoë 🙂", 0, 2, 0.5),
        Entity(12, 21, "LOC", "New  York", 3, 5, 0.25),
    ]
    assert [text[entity.start : entity.end] for entity in entities] == ["Zoë 🙂", "New  York"]
    record = json.dumps({"text": text})
    assert found(record + "\n", "jsonl", "B-PER I-PER O B-LOC I-LOC O", [0.5, 0.25]) == entities


def test_words_without_a_text_are_joined_by_spaces():
    words = ["Ada", "Lovelace", "Turin"]
    entities = [Entity(0, 12, "PER", "Ada Lovelace", 0, 2), Entity(13, 18, "LOC", "Turin", 2, 3)]
    labels = "B-PER I-PER B-LOC"
    assert found(json.dumps({"words": words}) + "\n", "jsonl", labels) == entities
    assert found("".join(f"{word}\n" for word in words), "columns", labels) == entities
    rows = [f"{i} {word} SpaceAfter=No" for i, word in enumerate(words, 1)]
    assert found(conllu(*rows), "conllu", labels) == entities  # no text is written to JSON lines


def test_touching_mentions_are_two_entities():
    entities = found("Ada Ada\n", "text", "B-PER B-PER")
    assert [(e.start, e.end, e.start_word, e.end_word) for e in entities] == [
        (0, 3, 0, 1),
        (4, 7, 1, 2),
    ]


def test_words_of_multiword_tokens_have_the_place_of_the_token():
    text = conllu("1-2 du", "1 de", "2 le", "3 Mans SpaceAfter=No", "4 .", text="du Mans.")
    assert found(text, "conllu", "O B-LOC I-LOC O") == [Entity(0, 7, "LOC", "du Mans", 1, 3)]
    text = conllu("1 En", "2-3 del SpaceAfter=No", "2 de", "3 el", "4 .", text="En del.")
    assert found(text, "conllu", "O O B-LOC O") == [Entity(3, 6, "LOC", "del", 2, 3)]
    text = conllu("1-2 Ada's", "1 Ada", "2 's", text="Ada's")  # the words are parts of the token
    assert found(text, "conllu", "B-PER O") == [Entity(0, 3, "PER", "Ada", 0, 1)]


def test_an_unknown_place_is_none():
    record = json.dumps({"text": "Ada sang", "words": ["ADA", "sang"]}) + "\n"
    (entity,) = found(record, "jsonl", "B-PER O", [1.0])
    assert entity == Entity(None, None, "PER", "ADA", 0, 1, 1.0)
    assert entity.to_dict()["start"] is None


def test_json_lines_have_entities(tagger):
    sentences = [[word for word, _ in sentence] for sentence in pairs("ner")]
    for tagged in tagger.tag([[], *sentences], probabilities=True):
        record = json.loads(tagged.render("jsonl"))
        joined = " ".join(record["words"])
        spans = find_spans(record["tags"])
        assert [(e["start_word"], e["end_word"], e["label"]) for e in record["entities"]] == spans
        for entity, p in zip(record["entities"], tagged.item_probabilities, strict=True):
            assert joined[entity["start"] : entity["end"]] == entity["text"]
            assert entity["probability"] == round(p, 4)
            # A mention is at most as probable as the first of its tags.
            first = tagged.probabilities[entity["start_word"]]
            assert 0 < p <= first + 1e-5
        assert [e.to_dict() for e in tagged.entities] == record["entities"]
        for format in ("columns", "conllu"):
            assert tagged.render(format).count("entities") == 0


def test_entities_without_probabilities(tagger):
    (tagged,) = tagger.tag([["Ada", "Lovelace"]])
    assert {entity.probability for entity in tagged.entities} == {None}
    assert "probability" not in tagged.render("jsonl")


def test_entities_of_a_file_replace_those_of_the_input(tagger):
    line = b'{"words": ["Ada"], "entities": "old", "id": 7}\n'
    (tagged,) = tagger.tag(read(io.BytesIO(line), "jsonl"))
    record = json.loads(tagged.render())
    assert record["id"] == 7
    assert [entity["text"] for entity in record["entities"]] == ["Ada"]


def test_a_threshold_leaves_out_entities(tagger):
    sentences = [[word for word, _ in sentence] for sentence in pairs("ner")]
    everything = tagger.tag(sentences, probabilities=True)
    values = sorted(e.probability for tagged in everything for e in tagged.entities)
    threshold = values[len(values) // 2]
    left_out = 0
    for full, part in zip(everything, tagger.tag(sentences, threshold=threshold), strict=True):
        expected = [e for e in full.entities if e.probability >= threshold]
        left_out += len(full.entities) - len(expected)
        assert [e.to_dict() for e in part.entities] == [e.to_dict() for e in expected]
        assert json.loads(part.render("jsonl"))["entities"] == [e.to_dict() for e in expected]
    assert left_out == sum(p < threshold for p in values) > 0


def test_other_tasks_have_no_entities(tmp_path):
    (tagged,) = trained(tmp_path, "pos").tag([["the", "cat"]], probabilities=True)
    assert tagged.entities == []
    assert "entities" not in json.loads(tagged.render("jsonl"))
    assert fit("ner", list(read(io.BytesIO(b"a B-X\n"), "columns"))).has_mentions


def test_entities_of_raw_text(tagger, tmp_path):
    tagger.tokenizer = load_tokenizer(tmp_path)
    text = "Why not?  Ada saw Turin. He said: yes!"
    places = []
    for tagged in tagger.tag_text(text, threshold=0.0):
        offset = tagged.sentence.offset
        for entity in tagged.entities:
            assert text[offset + entity.start : offset + entity.end] == entity.text
            places.append((offset + entity.start, entity.text))
    assert (10, "Ada") in places
    assert (18, "Turin") in places
