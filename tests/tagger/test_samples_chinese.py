"""The bundled Chinese corpus: well formed, varied, and segmented and tagged in one way throughout.

Its lines are read as those of the English corpus are, without the library's readers.
"""

from collections import defaultdict
from itertools import groupby, pairwise

import pytest

from tests.tagger.test_samples_english import PARTS, UPOS, SampleSentence
from tests.tagger.test_samples_english import corpus as read_corpus

PUNCTUATION = set("，。？！：；、“”《》（）·…—")
FINAL_PARTICLES = set("吗呢吧啊")

# Words that a reader has one rule for, with every tag that they may have.
TAGS = {
    "的": {"PART"},
    "了": {"AUX", "PART"},
    "着": {"AUX", "VERB"},  # 睡不着
    "过": {"AUX", "VERB"},
    "得": {"AUX", "PART", "VERB"},
    "是": {"AUX"},
    "被": {"AUX"},
    "把": {"ADP", "NOUN"},
    "在": {"ADP", "ADV", "VERB"},
    "从": {"ADP"},
    "里": {"ADP"},
    "上": {"ADP", "VERB"},
    "们": {"PART"},
    "个": {"NOUN"},
    "不": {"ADV"},
    "也": {"ADV"},
    "都": {"ADV"},
    "很": {"ADV"},
    "什么": {"PRON"},
    "这": {"DET"},
    "可以": {"AUX"},
    "虽然": {"SCONJ"},
}

# Strings that are one word in some sentences and rightly two in others.
ONE_WORD_OR_TWO = {"一点", "下去", "个人", "只要", "很多", "的话", "还是"}


def corpus(part: str) -> tuple[SampleSentence, ...]:
    return read_corpus(part, "chinese")


def everything() -> list[SampleSentence]:
    return [sentence for part in PARTS for sentence in corpus(part)]


# -------------------------------------------------------------------------------------- well formed


@pytest.mark.parametrize("part", PARTS)
def test_sentences_are_numbered(part: str):
    count = len(corpus(part))
    expected = [f"zh-{part}-{number:04d}" for number in range(1, count + 1)]
    assert [sentence.sent_id for sentence in corpus(part)] == expected


@pytest.mark.parametrize("part", PARTS)
def test_text_is_made_of_the_forms(part: str):
    for sentence in corpus(part):
        joined = "".join(word.form + " " * word.space_after for word in sentence.words)
        assert joined == sentence.text, sentence.sent_id  # no space after the last word either


@pytest.mark.parametrize("part", PARTS)
def test_only_punctuation_is_tagged_as_such(part: str):
    for sentence in corpus(part):
        for word in sentence.words:
            assert word.entity == "O", sentence.sent_id
            assert (word.upos == "PUNCT") == (set(word.form) <= PUNCTUATION), word
            assert word.upos == "PUNCT" or not set(word.form) & PUNCTUATION, word


def test_characters_are_simplified():
    """GB 2312 has the simplified characters, and hardly any traditional form of one of them."""
    for sentence in everything():
        ideographs = [c for c in sentence.text if "\u4e00" <= c <= "\u9fff"]
        "".join(ideographs).encode("gb2312")  # raises UnicodeEncodeError, with the character


# ---------------------------------------------------------------------------- varied, not templates


def test_size():
    assert len(corpus("train")) >= 300
    assert len(corpus("dev")) >= 60
    for sentence in everything():
        assert 6 <= len(sentence.text) <= 40, sentence.text


def test_vocabulary_is_varied():
    words = [word for sentence in corpus("train") for word in sentence.words]
    assert len({word.form for word in words if word.upos in {"VERB", "NOUN"}}) >= 1000
    assert {word.upos for word in words} == UPOS


def test_sentences_are_of_many_kinds():
    texts = [sentence.text for sentence in everything()]
    assert sum("？" in text for text in texts) >= 30
    assert sum("“" in text for text in texts) >= 15
    assert sum(any(c.isascii() and c.isdigit() for c in text) for text in texts) >= 40
    assert sum(any(c.isascii() and c.isalpha() for c in text) for text in texts) >= 15
    assert any(" " in text for text in texts)


def test_no_two_sentences_differ_in_one_slot():
    forms = [tuple(word.form for word in sentence.words) for sentence in everything()]
    for _, group in groupby(sorted(forms, key=len), key=len):
        same_length = list(group)
        for index, left in enumerate(same_length):
            for right in same_length[:index]:
                differences = sum(a != b for a, b in zip(left, right, strict=True))
                assert differences > 1, (left, right)


def test_one_word_in_ten_of_dev_is_unknown():
    known = {word.form for sentence in corpus("train") for word in sentence.words}
    words = [word.form for sentence in corpus("dev") for word in sentence.words]
    unknown = [word for word in words if word not in known]
    assert 0.08 <= len(unknown) / len(words) <= 0.13


def character_labels(part: str) -> set[str]:
    """The BIES labels of the characters, B-NOUN and so on."""
    labels = set()
    for sentence in corpus(part):
        for word in sentence.words:
            inside = len(word.form) - 2
            letters = "S" if inside < 0 else "B" + "I" * inside + "E"
            labels |= {f"{letter}-{word.upos}" for letter in letters}
    return labels


def test_labels_of_dev_are_known():
    assert character_labels("dev") <= character_labels("train")


# --------------------------------------------------------------------------------------- consistent


def test_frequent_words_have_their_tags():
    found = defaultdict(set)
    for sentence in everything():
        for word in sentence.words:
            found[word.form].add(word.upos)
    assert {form: found[form] for form in TAGS} == TAGS


def test_le_is_a_particle_at_the_end_of_a_clause():
    for sentence in everything():
        for word, following in pairwise(sentence.words):
            if word.form == "了":
                at_end = following.upos == "PUNCT" or following.form in FINAL_PARTICLES
                assert word.upos == ("PART" if at_end else "AUX"), sentence.text


def test_a_string_is_segmented_in_one_way():
    words = {word.form for sentence in everything() for word in sentence.words}
    pieces = set()
    for sentence in everything():
        forms = [word.form for word in sentence.words]
        for size in (2, 3, 4):
            windows = zip(*(forms[offset:] for offset in range(size)), strict=False)
            pieces |= {"".join(window) for window in windows}
    assert pieces & words == ONE_WORD_OR_TWO
