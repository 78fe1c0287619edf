"""Column files: two columns, CoNLL-2003, UNER; line counts and bytes are kept."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bcrf.tagger.data import DataError, Word, format_named, read


def sentences(text: str, format: str = "auto", name: str = "file.conll"):
    return list(read(io.BytesIO(text.encode()), format, name=name))


def ner(sentence):
    return sentence.format.tags(sentence, "ner")


CONLL2003 = """-DOCSTART- -X- -X- O

EU NNP B-NP B-ORG
rejects VBZ B-VP O

Peter NNP B-NP B-PER
Blackburn NNP I-NP I-PER
"""
TWO_TABS = "#bcrf\tO\nnew york\tB-LOC\n\t\na\xa0b\tO\n \t\n\n"
TWO_SPACES = "Ann  B-PER \nsees O\n\nBob\tB-PER\n".replace("\t", " ")
UNER = (
    "# newdoc id = x\n# text = 我們\n1\t我\tO\t-\t-\n2\t們\tB-PER\tA\t-\n\n"
    "# text = x\n1-2\tdu\t_\t_\t_\n1\tde\tO\t-\t-\n1.1\te\t_\t_\t_\n2\tle\tO\t-\t-\n"
)


@pytest.mark.parametrize(
    ("text", "format", "words", "tags"),
    [
        (
            CONLL2003,
            "conll2003",
            [(), ("EU", "rejects"), ("Peter", "Blackburn")],
            [[], ["B-ORG", "O"], ["B-PER", "I-PER"]],
        ),
        (TWO_TABS, "columns", [("#bcrf", "new york"), ("a\xa0b",)], [["O", "B-LOC"], ["O"]]),
        (TWO_SPACES, "columns", [("Ann", "sees"), ("Bob",)], [["B-PER", "O"], ["B-PER"]]),
        (UNER, "uner", [("我", "們"), ("de", "le")], [["O", "B-PER"], ["O", "O"]]),
    ],
)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("bom", ["", "\ufeff"])
def test_each_layout(text, format, words, tags, end, bom):
    text = bom + text.replace("\n", end)
    found = sentences(text)
    assert {sentence.format.name for sentence in found} == {format}
    assert [sentence.words for sentence in found] == words
    assert [ner(sentence) for sentence in found] == tags
    filled = [s.format.fill(s, t, "ner") for s, t in zip(found, tags, strict=True)]
    assert "".join(filled) == text
    for sentence in found:
        for position, word in enumerate(sentence.words):
            line = sentence.error(position, "").line
            assert word in text.split("\n")[line - 1]


def test_only_the_tag_changes_and_separators_stay():
    found = sentences("a   x   O  \nb y O\n\n", "columns")
    written = "".join(s.format.fill(s, ["B-X", "I-X"], "ner") for s in found)
    assert written == "a   x   B-X  \nb y I-X\n\n"


def test_parts_of_speech_of_conll2003():
    _, sentence, _ = sentences(CONLL2003)
    assert sentence.format.tags(sentence, "xpos") == ["NNP", "VBZ"]
    filled = sentence.format.fill(sentence, ["A", "B"], "xpos")
    assert filled == "EU A B-NP B-ORG\nrejects B B-VP O\n\n"
    with pytest.raises(DataError, match=r"file.conll: has no column with upos tags"):
        sentence.format.tags(sentence, "upos")


def test_uner_comments_hold_the_text():
    assert [sentence.text for sentence in sentences(UNER)] == ["我們", "x"]


def test_a_file_of_words_gets_a_tag_column():
    found = sentences("-DOCSTART-\n\nan\napple\n\nx\n", "columns")
    assert [s.words for s in found] == [(), ("an", "apple"), ("x",)]
    written = [s.format.fill(s, ["T"] * len(s), "upos", [0.5] * len(s)) for s in found]
    assert "".join(written) == "-DOCSTART-\n\nan T 0.5000\napple T 0.5000\n\nx T 0.5000\n"
    with pytest.raises(DataError, match="no column with ner tags"):
        ner(found[1])


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("a\tO\nb\tx\tO\n", 2, "found 3 tab-separated columns; expected 2: 'b\\tx\\tO'"),
        ("a\tO\n\nb O\n", 3, "found 1 tab-separated columns; expected 2"),
        ("a O\n\nb x O\n", 3, "found 3 space-separated columns; expected 2"),
        ("a\tO\n\tO\n", 2, "the word is empty"),
        ("1\ta\tO\t-\t-\n3\tb\tO\t-\t-\n", 2, "found id '3'; expected 2"),
        ("1\ta\tO\t-\t-\n2\tb\tO\n", 2, "expected 5"),
    ],
)
def test_malformed_lines_are_named(text, line, message):
    with pytest.raises(DataError) as caught:
        sentences(text)
    assert caught.value.line == line
    assert message in str(caught.value)


def test_lines_must_have_the_columns_of_a_named_format():
    with pytest.raises(DataError, match=r":1: found 2 space-separated columns; expected 4"):
        sentences("a O\n", "conll2003")


def test_empty_tags_are_named():
    first, second = sentences("a\tO\n\nb\tO\nc\t\n")
    assert ner(first) == ["O"]
    with pytest.raises(DataError, match=r"file.conll:4: the tag is empty"):
        ner(second)


def test_only_plain_columns_are_composed():
    for name in ("conll2003", "uner"):
        with pytest.raises(
            ValueError, match=f"cannot be written in the format {name}; use columns instead"
        ):
            format_named(name).compose([Word("a", "O")], "ner")


@pytest.mark.parametrize("bom", ["", "\ufeff"])
def test_the_start_of_a_document_is_kept_in_columns(bom):
    found = sentences(bom + CONLL2003 + "\n" + CONLL2003)
    words = [[Word(word, "T") for word in sentence.words] for sentence in found]
    columns = format_named("columns")
    pairs = zip(found, words, strict=True)
    written = "".join(line for pair in pairs for line in columns.rewrite_lines(*pair, "ner"))
    document = "-DOCSTART-\tO\n\nEU\tT\nrejects\tT\n\nPeter\tT\nBlackburn\tT\n\n"
    assert written == document * 2
    assert [s.words for s in sentences(written)] == [s.words for s in found]
    assert "".join(columns.rewrite_lines(found[0], [], "xpos")) == "-DOCSTART-\t-X-\n\n"


def test_document_starts_count_only_in_the_first_column_before_a_sentence():
    text = "-DOCSTART-x\tO\na\tO\n-DOCSTART-\tO\n\n-DOCSTART-\nb\tO\n"
    assert [s.words for s in sentences(text, "columns")] == [
        ("-DOCSTART-x", "a", "-DOCSTART-"),
        ("b",),
    ]


def test_a_byte_order_mark_that_is_a_whole_column_is_a_word():
    words = [Word("\ufeff", "T"), Word("a", "T"), Word("\ufeff", "T")]
    written = format_named("columns").compose(words, "ner")
    (sentence,) = sentences(written, "columns")
    assert sentence.words == ("\ufeff", "a", "\ufeff")
    assert ner(sentence) == ["T"] * 3
    assert sentence.format.fill(sentence, ["U"] * 3, "ner") == written.replace("T", "U")


def test_spaces_after_the_byte_order_mark_do_not_shift_columns():
    (sentence,) = sentences("\ufeff EU NNP B-NP B-ORG\n", "conll2003")
    assert sentence.words == ("EU",)
    assert sentence.format.fill(sentence, ["O"], "ner") == "\ufeff EU NNP B-NP O\n"


FIELD = st.text(
    st.characters(exclude_characters="\t\n\r ", codec="utf-8"), min_size=1, max_size=4
).filter(lambda text: text != "-DOCSTART-" and not text.startswith("\ufeff"))


@given(st.lists(st.lists(st.tuples(FIELD, FIELD), min_size=1), min_size=1), st.sampled_from("\t "))
def test_any_two_column_file_round_trips(rows, separator):
    text = "".join("".join(f"{w}{separator}{t}\n" for w, t in row) + "\n" for row in rows)
    found = sentences(text, "columns")
    assert [list(s.words) for s in found] == [[word for word, _ in row] for row in rows]
    assert [ner(s) for s in found] == [[tag for _, tag in row] for row in rows]
    assert "".join(s.format.fill(s, ner(s), "ner") for s in found) == text
    new = "".join(s.format.fill(s, ["T"] * len(s), "ner") for s in found)
    expected = "".join("".join(f"{w}{separator}T\n" for w, _ in row) + "\n" for row in rows)
    assert new == expected


@given(st.lists(st.tuples(FIELD, FIELD), min_size=1))
def test_composed_sentences_are_read_back(pairs):
    written = format_named("columns").compose([Word(*pair) for pair in pairs], "ner")
    (sentence,) = sentences(written, "columns")
    assert list(zip(sentence.words, ner(sentence), strict=True)) == pairs
