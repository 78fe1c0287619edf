"""Pretrained word vectors from text files."""

import os

import pytest

from bcrf.tagger.data import DataError, read_word_vectors
from bcrf.tagger.data import word_vectors as module


def write(folder, text: str | bytes):
    path = folder / "some.vec"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def read(path, *wanted: str, first: int = 0):
    found = read_word_vectors(path, set(wanted).__contains__, first)
    numbers = [
        list(found.numbers[start : start + found.width])
        for start in range(0, len(found.numbers), found.width)
    ]
    return dict(zip(found.words, numbers, strict=True))


def test_files_of_glove_and_of_fasttext(tmp_path):
    lines = "the 1 2\ncat 0.5 -2e-1\r\n\ndog 3 4 \n"
    expected = {"cat": [0.5, pytest.approx(-0.2)], "dog": [3, 4]}
    assert read(write(tmp_path, lines), "cat", "dog", "cow") == expected
    assert read(write(tmp_path, "3 2\n" + lines), "cat", "dog", "cow") == expected


def test_the_first_words_are_kept_too(tmp_path):
    path = write(tmp_path, "the 1 2\ncat 3 4\ndog 5 6\n")
    assert list(read(path, "dog", first=1)) == ["the", "dog"]
    assert read(path) == {}


def test_the_first_vector_of_a_word_counts(tmp_path):
    assert read(write(tmp_path, "a 1 2\nb 3 4\na 5 6\n"), "a") == {"a": [1, 2]}


def test_words_with_spaces(tmp_path):
    path = write(tmp_path, "the 1 2\n. . . 3 4\n")
    assert read(path, ". . .") == {". . .": [3, 4]}


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("a 1 2\nb 1\n", 2, "expected a word and 2 numbers, .* found 2 fields: 'b 1'"),
        ("a 1 2\nb 1 2 3\n", 2, "expected 2 numbers after the word, found more"),
        ("2 3\na 1 2\n", 2, "expected a word and 3 numbers"),
        ("a 1 x\n", 1, "expected a finite number, found 'x'"),
        ("a 1 nan\n", 1, "expected a finite number, found 'nan'"),
        ("a 1 inf\n", 1, "expected a finite number"),
        ("a 1 1e39\n", 1, "expected a finite number"),
        ("a 1 2\nb  1\n", 2, "expected a finite number, found ''"),
        ("a\n", 1, "expected a word and 2 to 4,096 numbers"),
        ("", None, "has no vectors"),
        ("2 2\n", None, "has no vectors"),
        (b"\xff\xfe 1 2\n", 1, "expected a word in UTF-8"),
    ],
)
def test_errors_name_the_line(tmp_path, text, line, message):
    path = write(tmp_path, text)
    with pytest.raises(DataError, match=message) as caught:
        read_word_vectors(path, lambda word: word != "a" or "b" not in str(text))
    assert caught.value.line == line
    assert caught.value.path == str(path)


def test_a_huge_line_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MAX_LINE_BYTES", 100)
    path = write(tmp_path, "a 1 2\n" + "b" * 101)
    with pytest.raises(DataError, match=r":2: the line has more than 100 bytes"):
        read(path, "a")


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(DataError, match="cannot be read: No such file"):
        read(tmp_path / "none.vec")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match="cannot be read: expected a regular file"):
        read(tmp_path / "pipe")
