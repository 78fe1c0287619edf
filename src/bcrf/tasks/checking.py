"""What is in data files, what is wrong with them, and what they have in common."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from ..data import DataError, Sentence, read_with_errors, surface
from .pos_tags import UPOS, check_pos_column
from .schemes import describe_violation, detect_scheme
from .tags import is_full, read_options

__all__ = ["FileReport", "Overlap", "Report", "check"]


@dataclass(frozen=True)
class FileReport:
    """One file.

    Attributes:
        format: the name of its format; None if there is no sentence.
        sentences: how many there are with words.
        empty: how many there are without words.
        repeated: how many have the words of an earlier one.
        words: how many there are, also `distinct_words` and in the `longest` sentence.
        tags: how often each tag occurs, the most frequent first.
        scheme: of mentions (ner).
        problems: what is malformed or illegal, in the order of lines.
    """

    path: str
    format: str | None
    sentences: int
    empty: int
    repeated: int
    words: int
    distinct_words: int
    longest: int
    tags: dict[str, int]
    scheme: str | None
    problems: tuple[DataError, ...]


@dataclass(frozen=True)
class Overlap:
    """How many sentences of `second` have exactly the words of a sentence of `first`."""

    first: str
    second: str
    sentences: int
    share: float


@dataclass(frozen=True)
class Report:
    """All files, and the overlap of each pair of them."""

    files: tuple[FileReport, ...]
    overlaps: tuple[Overlap, ...]

    @property
    def ok(self) -> bool:
        """Whether no file has a problem."""
        return not any(file.problems for file in self.files)


def check(
    paths: Sequence[str | os.PathLike[str]],
    task: str = "pos",
    column: str = "upos",
    format: str = "auto",
) -> Report:
    """Read files as a task would, and report all that it would stumble over.

    Args:
        paths: the files, such as train, dev and test.
        task: "pos", "segmentation" (the words must also make up the text) or "ner".
        column: "upos" or "xpos", for the first two.
        format: of all files; "auto": of each by itself.
    """
    if task not in _CHECKS:
        raise ValueError(f"task must be one of {', '.join(_CHECKS)}, got {task!r}")
    check_pos_column(column)
    files, contents = [], []
    for path in [os.fspath(path) for path in paths]:
        sentences, problems = _read(path, format)
        tags, scheme, illegal = _CHECKS[task](sentences, column)
        words = [sentence.words for sentence in sentences if len(sentence)]
        problems = sorted([*problems, *illegal], key=lambda problem: problem.line or 0)
        files.append(
            FileReport(
                path=path,
                format=sentences[0].format.name if sentences else None,
                sentences=len(words),
                empty=len(sentences) - len(words),
                repeated=len(words) - len(set(words)),
                words=sum(map(len, words)),
                distinct_words=len({word for row in words for word in row}),
                longest=max(map(len, words), default=0),
                tags=dict(tags.most_common()),
                scheme=scheme,
                problems=tuple(problems),
            )
        )
        contents.append(words)
    pairs = combinations(zip(paths, contents, strict=True), 2)
    return Report(tuple(files), tuple(_overlap(*first, *second) for first, second in pairs))


def _read(path: str, format: str) -> tuple[list[Sentence], list[DataError]]:
    sentences, problems = [], []
    try:
        for sentence in read_with_errors(path, format):
            if isinstance(sentence, DataError):
                problems.append(sentence)
            else:
                sentences.append(sentence)
    except DataError as error:  # nothing can be read from here on
        problems.append(error)
    return sentences, problems


_Found = tuple[Counter[str], str | None, list[DataError]]
"""Tags, scheme and problems of a file."""


def _check_pos(sentences: list[Sentence], column: str) -> _Found:
    tags: Counter[str] = Counter()
    problems = []
    for sentence in filter(len, sentences):
        try:
            row = sentence.format.tags(sentence, column)
        except DataError as error:
            if error.line is None:  # the file has no tags at all
                return tags, None, [error]
            problems.append(error)
            continue
        tags.update(row)
        for position, tag in enumerate(row):
            if tag == "_":
                problems.append(sentence.error(position, f"the word has no {column}: found '_'"))
            elif column == "upos" and sentence.format.name == "conllu" and tag not in UPOS:
                problems.append(
                    sentence.error(position, f"{tag!r} is none of the universal parts of speech")
                )
    return tags, None, problems


def _check_segmentation(sentences: list[Sentence], column: str) -> _Found:
    tags, scheme, problems = _check_pos(sentences, column)
    for sentence in sentences:
        try:
            surface(sentence)
        except DataError as error:
            problems.append(error)
    return tags, scheme, problems


def _check_ner(sentences: list[Sentence], column: str) -> _Found:
    tags: Counter[str] = Counter()
    problems = []
    full = []
    for sentence in filter(len, sentences):
        try:
            options = read_options(sentence)
        except DataError as error:
            if error.line is None:
                return tags, None, [error]
            problems.append(error)
            continue
        tags.update(sentence.format.tags(sentence, "ner"))
        if is_full(options):
            full.append((sentence, [label for labels in options for label in labels or ()]))
    scheme, dead_ends = detect_scheme([labels for _, labels in full])
    for (sentence, labels), position in zip(full, dead_ends, strict=True):
        if position is not None:
            problems.append(sentence.error(position, describe_violation(labels, position, scheme)))
    return tags, scheme, problems


_CHECKS = {"pos": _check_pos, "segmentation": _check_segmentation, "ner": _check_ner}


def _overlap(
    first: str | os.PathLike[str],
    first_words: list[tuple[str, ...]],
    second: str | os.PathLike[str],
    second_words: list[tuple[str, ...]],
) -> Overlap:
    known = set(first_words)
    shared = sum(words in known for words in second_words)
    share = shared / len(second_words) if second_words else 0.0
    return Overlap(os.fspath(first), os.fspath(second), shared, share)
