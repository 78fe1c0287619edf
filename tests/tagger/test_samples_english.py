"""The bundled English corpus: well formed, varied, and the same in both of its formats.

The files are read here line by line, without the library's readers, so that neither can hide an
error of the other.
"""

from collections import defaultdict
from functools import cache
from importlib import resources
from itertools import groupby
from typing import NamedTuple

import pytest

SAMPLES = resources.files("bcrf") / "samples"
PARTS = ("train", "dev")

KINDS = ("PER", "ORG", "LOC", "MISC")
ENTITY_TAGS = {"O"} | {f"{prefix}-{kind}" for prefix in "BI" for kind in KINDS}
OPEN = {"ADJ", "ADV", "INTJ", "NOUN", "PROPN", "VERB"}
CLOSED = {"ADP", "AUX", "CCONJ", "DET", "NUM", "PART", "PRON", "SCONJ"}
UPOS = OPEN | CLOSED | {"PUNCT", "SYM", "X"}


class SampleWord(NamedTuple):
    form: str
    upos: str
    entity: str
    space_after: bool


class SampleSentence(NamedTuple):
    sent_id: str
    text: str
    words: tuple[SampleWord, ...]


def blocks(name: str) -> list[list[str]]:
    """The lines of each sentence; one blank line, and no more, ends every sentence."""
    content = (SAMPLES / name).read_bytes().decode("utf-8")
    assert content.endswith("\n\n")
    assert "\n\n\n" not in content
    assert "\r" not in content
    assert not content.startswith(("\n", "\ufeff"))
    return [block.split("\n") for block in content.removesuffix("\n\n").split("\n\n")]


def parse_word(line: str, number: int) -> SampleWord:
    columns = line.split("\t")
    assert len(columns) == 10, line
    index, form, lemma, upos, *unused, misc = columns
    assert index == str(number), line
    assert [lemma, *unused] == ["_"] * 6, line
    assert form, line
    assert form == "".join(form.split()), line
    assert upos in UPOS, line
    pairs = [] if misc == "_" else [tuple(item.split("=")) for item in misc.split("|")]
    fields = dict(pairs)
    assert len(fields) == len(pairs), line
    assert fields.keys() <= {"NER", "SpaceAfter"}, line
    assert fields.get("NER") != "O", line
    assert fields.get("SpaceAfter", "No") == "No", line
    return SampleWord(form, upos, fields.get("NER", "O"), "SpaceAfter" not in fields)


@cache
def corpus(part: str, language: str = "english") -> tuple[SampleSentence, ...]:
    sentences = []
    for first, second, *lines in blocks(f"{language}-{part}.conllu"):
        assert first.startswith("# sent_id = "), first
        assert second.startswith("# text = "), second
        words = tuple(parse_word(line, number) for number, line in enumerate(lines, 1))
        sent_id = first.removeprefix("# sent_id = ")
        sentences.append(SampleSentence(sent_id, second.removeprefix("# text = "), words))
    return tuple(sentences)


def everything() -> list[SampleSentence]:
    return [sentence for part in PARTS for sentence in corpus(part)]


# -------------------------------------------------------------------------------------- well formed


@pytest.mark.parametrize("part", PARTS)
def test_sentences_are_numbered(part: str):
    count = len(corpus(part))
    expected = [f"en-{part}-{number:04d}" for number in range(1, count + 1)]
    assert [sentence.sent_id for sentence in corpus(part)] == expected


@pytest.mark.parametrize("part", PARTS)
def test_text_is_made_of_the_forms(part: str):
    for sentence in corpus(part):
        joined = "".join(word.form + " " * word.space_after for word in sentence.words)
        assert joined == sentence.text + " ", sentence.sent_id  # the last word is followed by space


@pytest.mark.parametrize("part", PARTS)
def test_entities_are_legal_iob2(part: str):
    for sentence in corpus(part):
        tags = [word.entity for word in sentence.words]
        assert set(tags) <= ENTITY_TAGS, sentence.sent_id
        for previous, tag in zip(["O", *tags], tags, strict=False):
            if tag.startswith("I-"):
                assert previous in {f"B-{tag[2:]}", tag}, sentence.sent_id


@pytest.mark.parametrize("part", PARTS)
def test_two_columns_hold_the_same_sentences(part: str):
    columns = [
        [tuple(line.split("\t")) for line in lines] for lines in blocks(f"english-ner-{part}.conll")
    ]
    expected = [[(word.form, word.entity) for word in s.words] for s in corpus(part)]
    assert columns == expected


# ---------------------------------------------------------------------------- varied, not templates


def test_size():
    assert len(corpus("train")) >= 300
    assert len(corpus("dev")) >= 55
    for sentence in everything():
        words = [word for word in sentence.words if word.upos != "PUNCT"]
        assert len(words) >= 4, sentence.text
        assert len(sentence.words) <= 25, sentence.text


def test_vocabulary_is_varied():
    words = [word for sentence in corpus("train") for word in sentence.words]
    content = {word.form.lower() for word in words if word.upos in {"VERB", "NOUN"}}
    assert len(content) >= 600
    assert {word.upos for word in words} == UPOS


def test_many_words_are_ambiguous():
    tags = defaultdict(set)
    for sentence in corpus("train"):
        for word in sentence.words:
            tags[word.form.lower()].add(word.upos)
    assert sum(len(found) > 1 for found in tags.values()) >= 60
    assert len(tags["light"]) >= 3
    assert len(tags["back"]) >= 4
    assert tags["that"] == {"DET", "PRON", "SCONJ"}
    assert tags["can"] == {"AUX", "NOUN"}


@pytest.mark.parametrize("part", PARTS)
def test_entities_are_frequent(part: str):
    sentences = corpus(part)
    with_entity = [s for s in sentences if any(word.entity != "O" for word in s.words)]
    assert len(with_entity) >= 0.45 * len(sentences)
    used = {word.entity for sentence in sentences for word in sentence.words}
    assert {f"B-{kind}" for kind in KINDS} <= used


def test_no_two_sentences_differ_in_one_slot():
    forms = [tuple(word.form.lower() for word in sentence.words) for sentence in everything()]
    for _, group in groupby(sorted(forms, key=len), key=len):
        same_length = list(group)
        for index, left in enumerate(same_length):
            for right in same_length[:index]:
                differences = sum(a != b for a, b in zip(left, right, strict=True))
                assert differences > 1, (left, right)


def test_one_word_in_ten_of_dev_is_unknown():
    known = {word.form.lower() for sentence in corpus("train") for word in sentence.words}
    words = [word.form.lower() for sentence in corpus("dev") for word in sentence.words]
    unknown = [word for word in words if word not in known]
    assert 0.08 <= len(unknown) / len(words) <= 0.13


@pytest.mark.parametrize("part", PARTS)
def test_readme_gives_the_counts(part: str):
    words = [word for sentence in corpus(part) for word in sentence.words]
    entities = sum(word.entity.startswith("B-") for word in words)
    row = f"| {part} | {len(corpus(part))} | {len(words)} | {entities} |"
    readme = (SAMPLES / "README.md").read_text(encoding="utf-8")
    assert row in readme.partition("\n## English\n")[2].partition("\n## ")[0]
