"""CoNLL-U: only the predicted column changes, and errors name the malformed line."""

import io

import conllu
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bcrf.tagger.data import DataError, Word, format_named, read, surface

FORMAT = format_named("conllu")


def sentences(data: str | bytes, format: str = "conllu"):
    raw = data if isinstance(data, bytes) else data.encode()
    return list(read(io.BytesIO(raw), format, name="file.conllu"))


def row(number, form="w", upos="NOUN", xpos="NN", misc="_"):
    return f"{number}\t{form}\t_\t{upos}\t{xpos}\t_\t_\t_\t_\t{misc}"


SAMPLE = "\n".join(
    [
        "# newdoc",
        "# text = Don't stop, Ann.",
        "1-2\tDon't" + "\t_" * 8,
        row(1, "Do", "AUX", "VB"),
        row(2, "n't", "PART", "RB"),
        "2.1\tever" + "\t_" * 8,
        row(3, "stop", "VERB", "VB", "SpaceAfter=No"),
        row(4, ",", "PUNCT", ","),
        row(5, "Ann", "PROPN", "NNP", "NER=B-PER|SpaceAfter=No|B=1|A=2"),
        row(6, ".", "PUNCT", "."),
        "",
        "# an empty sentence",
        "",
        "",
        row(1, "\xa0x\u2028", "X", "X"),  # other white space belongs to the form
        "",
        "",
    ]
)


def variants(text: str) -> dict[str, str]:
    return {
        "plain": text,
        "crlf": text.replace("\n", "\r\n"),
        "bom": "\ufeff" + text,
        "no newline at the end": text.rstrip("\n"),
        "blank lines first": "\n\n" + text,
        "blank lines last": text + "\n\n\n",
    }


@pytest.mark.parametrize("variant", variants(SAMPLE).values(), ids=variants(SAMPLE).keys())
def test_round_trip_is_byte_exact(variant):
    found = sentences(variant)
    assert [len(sentence) for sentence in found] == [6, 0, 1]
    assert "".join(line for s in found for line in s.block.lines) == variant
    for column in ("upos", "xpos", "ner"):
        filled = [FORMAT.fill(s, FORMAT.tags(s, column), column) for s in found]
        assert "".join(filled) == variant


@pytest.mark.parametrize("variant", variants(SAMPLE).values(), ids=variants(SAMPLE).keys())
def test_only_the_predicted_field_changes(variant):
    found = sentences(variant)
    written = "".join(FORMAT.fill(s, ["NEW"] * len(s), "upos") for s in found)
    before, after = variant.split("\n"), written.split("\n")
    assert len(before) == len(after)
    changed = 0
    for old, new in zip(before, after, strict=True):
        if old != new:
            fields = old.split("\t")
            fields[3] = "NEW"
            assert new == "\t".join(fields)
            changed += 1
    assert changed == 7


def test_words_tags_and_places():
    first, _, last = sentences(SAMPLE)
    assert first.words == ("Do", "n't", "stop", ",", "Ann", ".")
    assert FORMAT.tags(first, "upos") == ["AUX", "PART", "VERB", "PUNCT", "PROPN", "PUNCT"]
    assert FORMAT.tags(first, "xpos")[:3] == ["VB", "RB", "VB"]
    assert FORMAT.tags(first, "ner") == ["O", "O", "O", "O", "B-PER", "O"]
    assert first.text == "Don't stop, Ann."
    assert (first.first_line, last.first_line) == (4, 15)
    assert last.words == ("\xa0x\u2028",)
    assert str(first.error(2, "bad")) == "file.conllu:7: bad"


def test_entities_and_probabilities_go_to_misc():
    (first, *_) = sentences(SAMPLE)
    written = FORMAT.fill(first, ["O", "O", "B-LOC", "O", "O", "O"], "ner", [0.25] * 6)
    miscs = [line.split("\t")[9] for line in written.split("\n") if line[:2].strip().isdigit()]
    assert miscs == [
        "Prob=0.2500",
        "Prob=0.2500",
        "SpaceAfter=No|NER=B-LOC|Prob=0.2500",
        "Prob=0.2500",
        "NER=O|SpaceAfter=No|B=1|A=2|Prob=0.2500",
        "Prob=0.2500",
    ]
    assert FORMAT.tags(sentences(written)[0], "ner")[2:5] == ["B-LOC", "O", "O"]


def test_the_conllu_package_reads_the_same():
    ours = [s for s in sentences(SAMPLE[: SAMPLE.index("\xa0") - 2]) if len(s)]
    theirs = [s for s in conllu.parse(SAMPLE) if len(s)][: len(ours)]
    for sentence, reference in zip(ours, theirs, strict=True):
        words = [token for token in reference if isinstance(token["id"], int)]
        assert list(sentence.words) == [token["form"] for token in words]
        assert FORMAT.tags(sentence, "upos") == [token["upos"] for token in words]
        assert sentence.text == reference.metadata["text"]


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        (row(1) + "\n2\tword\tNOUN\n", 2, "found 3 tab-separated columns; expected 10"),
        ("# c\n\nhello world\n", 3, "if the file is not CoNLL-U"),
        (row(1) + "\n \n" + row(1), 2, "must not contain white space"),
        (row(1) + "\n" + row(3), 2, "found id '3'; expected 2"),
        (row(2), 1, "found id '2'; expected 1"),
        (row(1) + "\n" + row(1), 2, "found id '1'; expected 2"),
        (row("01"), 1, "found id '01'"),
        (row("1.1"), 1, "empty node 0.1"),
        (row(1) + "\n" + row("1.2"), 2, "empty node 1.1"),
        (row("1-1") + "\n" + row(1), 1, "a range that starts at 1"),
        (row("2-3") + "\n" + row(1), 1, "a range that starts at 1"),
        (row("1-²") + "\n" + row(1), 1, "a range that starts at 1"),
        (row("1-3") + "\n" + row(1) + "\n" + row("2-3"), 3, "does not overlap another"),
        ("\n" + row("1-3") + "\n" + row(1) + "\n" + row(2), 2, "ends at word 3"),
        (row(1, form=""), 1, "the form (column 2) is empty"),
        (row(1) + "\n# late", 2, "a comment inside a sentence"),
    ],
)
def test_malformed_lines_are_named(text, line, message):
    with pytest.raises(DataError) as caught:
        sentences(text)
    assert caught.value.line == line
    assert message in str(caught.value)
    assert str(caught.value).startswith(f"file.conllu:{line}: ")


def test_empty_files_have_no_sentence():
    assert sentences("") == []
    (blank,) = sentences("\n\r\n")
    assert blank.words == ()


# --------------------------------------------------------------------------------- random sentences

FIELD = st.text(st.characters(exclude_characters="\t\n\r", codec="utf-8"), min_size=1, max_size=5)
COMMENT = FIELD.map(lambda text: "#" + text)


@st.composite
def files(draw) -> tuple[str, list[list[str]]]:
    """Draw a valid file and the forms of its sentences."""
    end = draw(st.sampled_from(["\n", "\r\n"]))
    lines: list[str] = []
    forms = []
    for _ in range(draw(st.integers(1, 3))):
        lines += draw(st.lists(COMMENT, max_size=2))
        forms.append([])
        for number in range(1, draw(st.integers(1, 4)) + 1):
            fields = [str(number), *(draw(FIELD) for _ in range(9))]
            forms[-1].append(fields[1])
            lines.append("\t".join(fields))
            if draw(st.booleans()):
                lines.append("\t".join([f"{number}.1", *(draw(FIELD) for _ in range(9))]))
        lines += [""] * draw(st.integers(1, 2))
    return "".join(line + end for line in lines), forms


@given(files(), st.sampled_from(["upos", "xpos"]))
def test_any_file_round_trips(file, column):
    text, forms = file
    found = sentences(text)
    assert [list(sentence.words) for sentence in found] == forms
    assert "".join(FORMAT.fill(s, FORMAT.tags(s, column), column) for s in found) == text
    tags = [["T"] * len(s) for s in found]
    written = "".join(FORMAT.fill(s, t, column) for s, t in zip(found, tags, strict=True))
    again = sentences(written)
    assert [FORMAT.tags(s, column) for s in again] == tags
    assert [s.words for s in again] == [s.words for s in found]


@given(
    st.lists(
        st.tuples(FIELD.filter(lambda w: not w[0].isspace() and not w[-1].isspace()), FIELD),
        min_size=1,
        max_size=5,
    ),
    st.data(),
)
def test_composed_sentences_are_read_back(pairs, data):
    gaps = st.sampled_from(["", " ", "  ", "\u3000", " \t"])
    spaces = [data.draw(gaps) for _ in pairs]
    text = "".join(form + space for (form, _), space in zip(pairs, spaces, strict=True))
    words = [Word(form, tag, None, space) for (form, tag), space in zip(pairs, spaces, strict=True)]
    written = FORMAT.compose(words, "upos", text)
    (sentence,) = sentences(written)
    assert list(sentence.words) == [form for form, _ in pairs]
    assert FORMAT.tags(sentence, "upos") == [tag for _, tag in pairs]
    assert sentence.text == text.strip()
    # SpaceAfter and SpacesAfter, if the file has them, give the same text.
    rows = written.partition("\n")[2]
    if any(space != " " for space in spaces[:-1]):
        assert surface(sentences(rows)[0]).text == text.rstrip()


def test_words_that_would_break_a_line_are_not_written():
    for word in (Word("a\tb", "X"), Word("a", "X\n"), Word("", "X")):
        with pytest.raises(ValueError, match="cannot be written as CoNLL-U"):
            FORMAT.compose([word], "upos")


@pytest.mark.parametrize("text", ["a\nb", "a\r\n\r\nb", "\na\rb\n"])
def test_a_text_of_several_lines_is_one_comment(text):
    written = FORMAT.compose([Word("a", "X", None, "\n"), Word("b", "X")], "upos", text)
    assert written.startswith("# text = a b\n1\ta\t")
    (sentence,) = sentences(written)
    assert (sentence.text, sentence.words) == ("a b", ("a", "b"))


def test_an_entity_without_a_value_is_unchanged():
    text = row(1, misc="NER=") + "\n"
    (sentence,) = sentences(text)
    assert FORMAT.tags(sentence, "ner") == ["O"]
    assert FORMAT.fill(sentence, ["O"], "ner") == text
    assert FORMAT.fill(sentence, ["B-X"], "ner") == row(1, misc="NER=B-X") + "\n"


def test_an_empty_sentence_is_composed_as_one_sentence():
    for text in (None, "", "  "):
        (sentence,) = sentences(FORMAT.compose([], "upos", text))
        assert sentence.words == ()


def test_a_sentence_of_ten_thousand_words():
    text = "".join(row(number, f"w{number}") + "\n" for number in range(1, 10_001))
    (sentence,) = sentences(text)
    assert len(sentence) == 10_000
    assert FORMAT.fill(sentence, FORMAT.tags(sentence, "upos"), "upos") == text
