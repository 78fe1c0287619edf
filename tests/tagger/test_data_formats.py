"""JSON lines and raw text, the detection of formats, and bytes that are not UTF-8."""

import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bcrf.tagger.data import DataError, Word, format_named, read, read_with_errors, surface


def sentences(data: str | bytes, format: str = "auto", name: str = "file"):
    raw = data if isinstance(data, bytes) else data.encode()
    return list(read(io.BytesIO(raw), format, name=name))


def tags(sentence):
    return sentence.format.tags(sentence, "upos")


# -------------------------------------------------------------------------------------------- JSONL

JSONL = (
    '{"id": 7, "words": ["a b", "c"], "tags": ["X", ["Y", "Z"]]}\n'
    "\n"
    '{"words": [], "tags": []}\n'
    '{"words": ["d"], "tags": [null]}\r\n'
    '{"text": "un  mot"}'
)


def test_json_lines():
    found = sentences(JSONL)
    assert [s.words for s in found] == [("a b", "c"), (), (), ("d",), ("un", "mot")]
    assert tags(found[0]) == ["X", "Y|Z"]
    assert tags(found[3]) == ["?"]
    assert found[4].text == "un  mot"
    assert "".join(line for s in found for line in s.block.lines) == JSONL
    with pytest.raises(
        DataError, match=r"file:5: the sentence has no tags; expected \"tags\": \[2 tags\]"
    ):
        tags(found[4])


def test_null_means_no_tags():
    (sentence,) = sentences('{"words": ["a"], "tags": null}\n')
    with pytest.raises(DataError, match=r"file:1: the sentence has no tags; expected"):
        tags(sentence)


def test_json_lines_are_filled():
    found = sentences(JSONL)
    filled = [s.format.fill(s, ["T"] * len(s), "upos", [1 / 3] * len(s)) for s in found]
    assert filled[1] == "\n"
    assert filled[3].endswith("}\r\n")
    assert json.loads(filled[0]) == {
        "id": 7,
        "words": ["a b", "c"],
        "tags": ["T", "T"],
        "probabilities": [0.3333, 0.3333],
    }
    assert json.loads(filled[4])["words"] == ["un", "mot"]
    assert not filled[4].endswith("\n")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"words": ["a"', "expected a JSON object, found invalid JSON: "),
        ("[1]", "expected an object"),
        ('{"tokens": []}', '"words": expected a list of non-empty strings, found None'),
        ('{"words": ["a", ""]}', '"words": expected a list of non-empty strings'),
        ('{"words": "ab"}', '"words": expected a list'),
        ('{"words": ["a"], "tags": ["X", "Y"]}', '"tags": expected a list of 1 tags, one per word'),
        ('{"words": ["a"], "tags": "X"}', "found 'X'"),
        ('{"words": ["a", "b"], "tags": ["X", []]}', '"tags"[1]: expected a string'),
        ('{"words": ["a"], "tags": [1]}', '"tags"[0]: expected a string'),
        ('{"words": ["\\ud800"]}', "not valid Unicode text"),
        ('{"text": 3}', '"text": expected a string, found 3'),
        ("[" * 100_000, "values of the JSON object are nested too deeply"),
    ],
)
def test_bad_json_is_named(line, message):
    with pytest.raises(DataError) as caught:
        sentences('{"words": []}\n' + line + "\n", "jsonl")
    assert caught.value.line == 2
    assert message in str(caught.value)


@given(st.lists(st.tuples(st.text(min_size=1), st.text(min_size=1))))
def test_composed_json_is_read_back(pairs):
    pairs = [pair for pair in pairs if not any("\ud800" <= c <= "\udfff" for c in "".join(pair))]
    written = format_named("jsonl").compose([Word(*pair) for pair in pairs], "upos")
    (sentence,) = sentences(written, "jsonl")
    assert list(zip(sentence.words, tags(sentence), strict=True)) == pairs


# --------------------------------------------------------------------------------------------- text


def test_raw_text_is_one_sentence_per_line():
    text = "\ufeffA  b.\n\n c\u3000d \r\nx\u2028y"
    found = sentences(text, "text")
    assert [s.words for s in found] == [("A", "b."), (), ("c", "d"), ("x", "y")]
    assert [s.text for s in found] == ["A  b.", "", " c\u3000d ", "x\u2028y"]
    assert "".join(line for s in found for line in s.block.lines) == text
    assert list(surface(found[2]).spans) == [(1, 2), (3, 4)]
    with pytest.raises(DataError, match="is raw text and has no upos tags"):
        tags(found[0])
    with pytest.raises(ValueError, match="raw text cannot hold tags"):
        found[0].format.fill(found[0], ["X", "X"], "upos")


# ---------------------------------------------------------------------------------------- detection

CONLLU_ROW = "1\ta" + "\t_" * 8 + "\n"


@pytest.mark.parametrize(
    ("name", "text", "format"),
    [
        ("a.conllu", "anything", "conllu"),
        ("a.JSONL", "anything", "jsonl"),
        ("a.txt", "# c\n\n" + CONLLU_ROW, "conllu"),
        ("a.conll", CONLLU_ROW, "conllu"),
        ("a", "1-2\ta" + "\t_" * 8, "conllu"),
        ("a.iob2", "# c\n1\ta\tO\t-\t-\n", "uner"),
        ("a", "EU NNP B-NP B-ORG\n", "conll2003"),
        ("a.txt", "EU\tNNP\tB-NP\tO\n", "conll2003"),
        ("eng.testa", "-DOCSTART- -X- O O\n\nEU x\n", "columns"),
        ("a", "a\tb\n", "columns"),
        ("a", "#a\tb\n", "columns"),
        ("a", "Ann B-PER\nsees O\n\nBob B-PER\n", "columns"),
        ("a", "Ann B-PER\n", "columns"),
        ("a.bio", "just words\n", "columns"),
        ("a.tsv", "", "columns"),
        ("a.col", '{"words": []}\n', "columns"),
        ("a", '{"words": []}\n', "jsonl"),
        ("a.txt", "\n\nVitamin O\nis not known .\n", "text"),
        ("a.txt", "#one\n#two\n", "text"),
        ("a", "# Title\nSome text\n", "text"),
        ("a", "I O\n" * 200 + "one two three\n", "columns"),
        ("a", "", "text"),
        ("a", "\n\n", "text"),
    ],
)
def test_detection(name, text, format):
    from bcrf.tagger.data import detect_format

    assert detect_format(name, iter(text.splitlines(True))).name == format


def test_detection_takes_no_more_lines_than_it_needs():
    class Stream(io.BytesIO):
        def readline(self, size: int | None = -1, /) -> bytes:
            assert self.tell() == 0, "read more lines than necessary"
            return super().readline(size)

    first = next(iter(read(Stream(b"some raw text\nmore\n"), name="<stdin>")))
    assert first.words == ("some", "raw", "text")


def test_format_overrides_the_suffix():
    assert sentences("a b\n", "text", name="x.conllu")[0].words == ("a", "b")
    with pytest.raises(ValueError, match="expected auto or one of conllu, columns"):
        sentences("a b\n", "xml")


# --------------------------------------------------------------------------------- bytes and errors


def test_errors_name_the_offset_of_bytes_that_are_not_utf8():
    with pytest.raises(DataError) as caught:
        sentences("été\n".encode() + b"na\xefve\n", "text", "latin.txt")
    assert str(caught.value) == (
        "latin.txt:2: expected UTF-8, found byte 0xEF at offset 8 of the file; convert the file to "
        "UTF-8"
    )
    with pytest.raises(DataError, match="offset 0 of the file"):
        sentences("a".encode("utf-16"))


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(DataError, match=r"nowhere.txt: cannot be read: No such file"):
        list(read(tmp_path / "nowhere.txt"))
    with pytest.raises(DataError, match=r"cannot be read"):
        list(read(tmp_path))


def test_reading_goes_on_after_a_malformed_sentence():
    data = io.BytesIO(b"a\tO\n\nb\n\nc\tO\n\nd\te\tf\n")
    kinds = [
        found.line if isinstance(found, DataError) else found.words
        for found in read_with_errors(data, "columns", "x")
    ]
    assert kinds == [("a",), 3, ("c",), 7]


def test_errors_for_texts_that_do_not_consist_of_their_words():
    row = "1\tde\t" + "_\t" * 7 + "_\n2\tle\t" + "_\t" * 7 + "_\n"
    (sentence,) = sentences("# text = du\n1-2\tdu" + "\t_" * 8 + "\n" + row, "conllu")
    with pytest.raises(DataError, match=r"file:3: expected the word 'de' in the text, found 'du'"):
        surface(sentence)
    (sentence,) = sentences("# text = de le pain\n" + row, "conllu")
    with pytest.raises(DataError, match=r"file:3: the text continues after the last word: 'pain'"):
        surface(sentence)
