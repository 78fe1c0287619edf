"""Readers of sentences with input that is endless, nested too deeply, or not text."""

from __future__ import annotations

import io

import pytest

from bcrf.tagger.data import DataError, lines, read, read_with_errors
from bcrf.tagger.data.lines import shorten

FORMATS = ["conllu", "columns", "conll2003", "uner", "jsonl", "text", "auto"]


class Endless(io.RawIOBase):
    """A stream that repeats some bytes; a reader that ignores the limit of a test fails."""

    def __init__(self, unit: bytes) -> None:
        self.unit, self.given = unit, 0

    def readable(self) -> bool:
        return True

    def readline(self, size: int | None = -1, /) -> bytes:
        assert size is not None
        assert size >= 0, "the reader did not limit the length of a line"
        end = self.unit.find(b"\n") + 1 or size
        line = (self.unit * (size // len(self.unit) + 1))[: min(size, end)]
        self.given += len(line)
        assert self.given < 1_000_000, "the reader did not stop at its limit"
        return line


@pytest.fixture
def low_limits(monkeypatch) -> None:
    """Set limits that are so low that a test reaches them."""
    monkeypatch.setattr(lines, "MAX_SENTENCE_BYTES", 10_000)
    monkeypatch.setattr(lines, "MAX_SENTENCE_LINES", 1_000)


@pytest.mark.parametrize("format", FORMATS)
def test_a_line_without_end(low_limits, format):
    with pytest.raises(DataError) as caught:
        list(read(Endless(b"x"), format, "<stdin>"))
    assert str(caught.value) == (
        "<stdin>:1: the line has more than 10,000 bytes; split the text into sentences, with a "
        "line feed after each line"
    )


@pytest.mark.parametrize("unit", [b"a\tO\n", b"\n", b"-DOCSTART-\n", b"a" * 99 + b"\tO\n"])
@pytest.mark.parametrize("format", ["columns", "conll2003", "uner"])
def test_a_column_file_without_empty_lines(low_limits, format, unit):
    with pytest.raises(DataError, match=r"the sentence that begins in line 1 has more than 10,000"):
        list(read(Endless(unit), format))


@pytest.mark.parametrize("unit", [b"# comment\n", b"\n", b"# " + b"x" * 97 + b"\n"])
def test_conllu_without_end(low_limits, unit):
    with pytest.raises(DataError, match=r"or 1,000 lines; separate sentences by empty lines"):
        list(read(Endless(unit), "conllu"))


def test_format_detection_reads_a_limited_amount(low_limits):
    """Up to a hundred lines are read ahead while they may be comments; here they are long."""
    stream = Endless(b"#" + b"x" * 8000 + b"\n")
    found = read(stream, "auto", "<stdin>")
    next(found)
    assert stream.given < 30_000


def test_sentences_below_the_limits_pass(low_limits):
    line = b"x" * 9_999 + b"\n"
    assert [len(s) for s in read(io.BytesIO(line * 3), "text")] == [1, 1, 1]
    rows = b"a\tO\n" * 999 + b"\n"
    assert [len(s) for s in read(io.BytesIO(rows * 3), "columns")] == [999] * 3


def test_a_million_words_in_one_line_pass():
    (sentence,) = read(io.BytesIO(b"word " * 1_000_000 + b"\n"), "text")
    assert len(sentence) == 1_000_000


@pytest.mark.parametrize("depth", range(900, 1000, 5))
def test_nested_json_is_read_or_an_error(depth):
    """Near the limit of the stack, JSON that can be read may be nested too deeply to write."""
    line = '{"words": ["a"], "x": ' + "[" * depth + "]" * depth + "}\n"
    (found,) = read_with_errors(io.BytesIO(line.encode()), "jsonl", "x")
    if isinstance(found, DataError):
        assert str(found).endswith("are nested too deeply; flatten them")
    else:
        assert found.format.fill(found, ["T"], "upos")


@pytest.mark.parametrize("format", ["conllu", "uner"])
def test_numbers_of_thousands_of_digits(format):
    columns = {"conllu": 10, "uner": 5}[format]
    row = "\t".join([f"1-{'9' * 5000}", *["_"] * (columns - 1)])
    with pytest.raises(DataError, match=r":1: found id '1-9+'\.\.\.; expected 1, or the empty"):
        list(read(io.BytesIO(row.encode()), format))


@pytest.mark.parametrize(
    ("format", "line"),
    [
        ("columns", "a\tO\n" + "x" * 100_000),
        ("jsonl", '{"words": [' + "1," * 100_000 + "1]}"),
        ("jsonl", "[" + "1," * 100_000 + "1]"),
        ("jsonl", '{"text": [' + "1," * 100_000 + "1]}"),
        ("jsonl", '{"words": ["a"], "tags": [' + "1" * 4000 + "]}"),
    ],
)
def test_messages_quote_only_the_beginning_of_long_values(format, line):
    with pytest.raises(DataError) as caught:
        list(read(io.BytesIO(line.encode()), format))
    assert "..." in str(caught.value)
    assert len(str(caught.value)) < 300


def test_shortened_values():
    assert shorten("a\tb") == r"'a\tb'"
    assert shorten([1, None]) == "[1, None]"
    assert shorten("é" * 61) == "'" + "é" * 60 + "'..."


def test_a_stream_that_fails_is_named():
    class UnreadableStream(io.BytesIO):
        def readline(self, size: int | None = -1, /) -> bytes:
            raise OSError(5, "Input/output error")

    with pytest.raises(DataError, match=r"<stdin>: cannot be read: Input/output error"):
        list(read(UnreadableStream(), "text", "<stdin>"))
