"""Check data files: count their content, list their mistakes, find sentences that they share.

`check` reads files as a task would. `check_gold_labels` compares the labels of a file with those of
a model.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from ..data import DataError, Sentence, annotated_text, read_with_errors, surface
from .ner import Ner
from .partial_labels import is_fully_labeled, read_label_options
from .pos import UPOS, check_pos_column
from .scheme_detection import describe_violation, detect_scheme
from .task import Example, Task

__all__ = ["FileReport", "Overlap", "Report", "check", "check_gold_labels"]

# How many labels a message names; further ones are only counted.
_NAMED_LABELS = 10


@dataclass(frozen=True)
class FileReport:
    """The content of one file, and its problems.

    Attributes:
        path: the file.
        format: the name of its format; None if it has no sentence.
        sentences: the number of sentences with words.
        empty: the number of sentences without words.
        repeated: the number of sentences with exactly the words of an earlier one.
        words: the number of words.
        distinct_words: the number of distinct words.
        longest: the number of words of the longest sentence.
        tags: how often each tag occurs, the most frequent first.
        scheme: the tag scheme (ner only).
        problems: malformed lines and illegal tags, in the order of lines.
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
    """The number and share of sentences of `second` whose words equal those of one of `first`."""

    first: str
    second: str
    sentences: int
    share: float


@dataclass(frozen=True)
class Report:
    """The report on each file, and the overlap of each pair of files."""

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
    """Read files as a task would; return a report with all errors that the task would raise.

    Args:
        paths: the files, such as train, dev and test.
        task: "pos", "ner", "segmentation" (where the words must also make up the text), or
            "tokenization" (where they must make up the text, and need no tags).
        column: "upos" or "xpos", for pos and segmentation.
        format: the format of all files; "auto": detected for each file.

    Example:
        >>> from importlib.resources import files
        >>> report = check([str(files("bcrf") / "samples" / "english-dev.conllu")])
        >>> report.ok, report.files[0].sentences
        (True, 62)
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
    except DataError as error:  # the rest of the file cannot be read
        problems.append(error)
    return sentences, problems


_CheckResult = tuple[Counter[str], str | None, list[DataError]]
"""The tags, the scheme and the problems of a file."""


def _check_pos(sentences: list[Sentence], column: str) -> _CheckResult:
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
                    sentence.error(
                        position, f"{tag!r} is not a universal part-of-speech tag (upos)"
                    )
                )
    return tags, None, problems


def _check_segmentation(sentences: list[Sentence], column: str) -> _CheckResult:
    tags, scheme, problems = _check_pos(sentences, column)
    for sentence in sentences:
        try:
            surface(sentence)
        except DataError as error:
            problems.append(error)
    return tags, scheme, problems


def _check_ner(sentences: list[Sentence], column: str) -> _CheckResult:
    tags: Counter[str] = Counter()
    problems = []
    full = []
    for sentence in filter(len, sentences):
        try:
            options = read_label_options(sentence)
        except DataError as error:
            if error.line is None:
                return tags, None, [error]
            problems.append(error)
            continue
        tags.update(sentence.format.tags(sentence, "ner"))
        if is_fully_labeled(options):
            full.append((sentence, [label for labels in options for label in labels or ()]))
    scheme = detect_scheme([labels for _, labels in full])
    for (sentence, labels), position in zip(full, scheme.violations, strict=True):
        if position is not None:
            message = describe_violation(labels, position, scheme.name)
            problems.append(sentence.error(position, message))
    return tags, scheme.name, problems


def _check_tokenization(sentences: list[Sentence], column: str) -> _CheckResult:
    problems = []
    for sentence in sentences:
        try:
            annotated_text([sentence])
        except DataError as error:
            problems.append(error)
    return Counter(), None, problems


_CHECKS = {
    "pos": _check_pos,
    "segmentation": _check_segmentation,
    "ner": _check_ner,
    "tokenization": _check_tokenization,
}


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


def check_gold_labels(task: Task, examples: Sequence[Example], file: str) -> str | None:
    """Return a warning about gold labels that lower every score, or None.

    Such labels are labels that the task does not know, and, in named entity recognition, labels
    that are all O: without a mention, recall and F1 are 0 whatever the model predicts.

    Args:
        task: the task of a model.
        examples: annotated sentences, on which the model is to be evaluated.
        file: the file of the sentences, for messages.

    Raises:
        DataError: there are no words, or the task has none of the labels (other than O), so that
            every score would be zero.
    """
    counts: Counter[str] = Counter()
    for example in examples:
        if example.labels is not None:
            counts.update(example.labels)
        elif example.allowed is not None:
            counts.update(label for labels in example.allowed for label in labels or ())
    if not any(map(len, examples)):
        raise DataError(file, None, "has no words; expected annotated sentences")
    known = set(task.labels)
    unknown = [(label, count) for label, count in counts.most_common() if label not in known]
    if not unknown:
        return _warn_of_no_mentions(counts, file) if isinstance(task, Ner) else None
    tags, these = ("tag", "this tag") if len(unknown) == 1 else ("tags", "these tags")
    named = _enumerate([f"{label} ({count})" for label, count in unknown])
    message = f"the model does not know the {tags} {named}"
    if not counts.keys() & (known - {"O"}):
        expected = _enumerate(task.labels)
        raise DataError(
            file, None, f"{message}; it knows {expected}; check that the file is for this task"
        )
    return f"{file}: {message}; words with {these} count as errors"


def _enumerate(labels: Sequence[str]) -> str:
    """Return the first labels, and how many more there are: "A, B and 3 more"."""
    more = len(labels) - _NAMED_LABELS
    return ", ".join(labels[:_NAMED_LABELS]) + (f" and {more} more" if more > 0 else "")


def _warn_of_no_mentions(counts: Counter[str], file: str) -> str | None:
    if counts.keys() - {"O"}:
        return None
    found = f"the only tag is O ({counts['O']})" if counts else "the words have no tags"
    return (
        f"{file}: has no mentions, so precision, recall and F1 are 0; {found}; expected tags such "
        "as B-PER (in CoNLL-U: NER=B-PER in the column MISC)"
    )
