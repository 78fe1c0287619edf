"""Named entity recognition: mentions as IOB2 or BIOES labels of words."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from typing import Any, ClassVar

from ..data import DataError, Sentence
from ..structure import Structure
from .example import Example, Metric
from .metrics import MentionF1
from .partial import allowed_around, deal
from .schemes import Rules, describe_violation, detect_scheme
from .spans import encode_spans, find_spans, iterate_spans, split_label
from .tags import Options, is_full, read_options
from .words import WordTask

__all__ = ["Ner"]

# Scheme -> its letters besides O.
_LETTERS = {"IOB2": "BI", "BIOES": "BIES"}


@dataclass(frozen=True)
class Ner(WordTask):
    """Mentions of typed entities.

    Files may be in IOB1, IOB2 or BIOES (also BIOUL): the scheme of each file is found and its
    labels are converted. Partial labels, `A|B` or `?`, are taken as they are, so files that have
    them must be in the task's own scheme.

    Args:
        labels: O, and the letters of the scheme with each type.
        scheme: of the model: "IOB2" or "BIOES".
        strict: whether ill-formed labels in a file are an error; else they are read as conlleval
            reads them.
    """

    name: ClassVar[str] = "ner"
    default_format: ClassVar[str] = "columns"

    scheme: str = "IOB2"
    strict: bool = True

    def __post_init__(self) -> None:
        if self.scheme not in _LETTERS:
            raise ValueError(f"scheme must be one of {', '.join(_LETTERS)}, got {self.scheme!r}")

    @classmethod
    def fit(cls, sentences: Sequence[Sentence], **settings: Any) -> Ner:
        task = cls((), **settings)
        labels = {
            label
            for sentence in sentences
            for options in read_options(sentence)
            for label in options or ()
        }
        types = sorted({split_label(label)[1] for label in labels - {"O"}})
        if not types:
            path = sentences[0].path if sentences else "the training data"
            raise DataError(path, None, "no mention found; expected labels such as B-PER")
        own = [f"{x}-{kind}" if kind else x for kind in types for x in _LETTERS[task.scheme]]
        return cls(("O", *own), task.scheme, task.strict)

    def annotated(self, sentences: Sequence[Sentence]) -> list[Example]:
        examples: list[Example] = []
        for _, group in groupby(sentences, key=lambda sentence: sentence.path):
            examples += self._annotated_file(list(group))
        return examples

    def repair(self, example: Example, labels: Sequence[str]) -> list[str]:
        """A letter that cannot go on with a mention begins one: in IOB2 an orphan I-X becomes B-X.
        See `find_spans` for where a mention ends."""
        return encode_spans(iterate_spans(labels), len(labels), self.scheme)

    def metric(self, known_words: Container[str] | None = None) -> Metric:
        return MentionF1()

    @cached_property
    def structure(self) -> Structure:
        return Structure.from_labels(self.labels, self.scheme)

    @property
    def _tag_column(self) -> str:
        return "ner"

    @cached_property
    def types(self) -> tuple[str, ...]:
        """The types of mentions, sorted."""
        return tuple(sorted({split_label(label)[1] for label in self.labels if label != "O"}))

    def partial_split(
        self, examples: Sequence[Example], seed: int = 0, reading: str = "exclusive"
    ) -> list[Example]:
        """Forget all annotation but one type of mentions per sentence (partially supervised NER).

        The sentences are dealt at random into as many parts as there are types, and in each part
        the mentions of one type remain. For `reading` see `allowed_around`.
        """
        parts = deal(len(examples), len(self.types), seed)
        return [
            self._with_one_type(example, self.types[part], reading)
            for example, part in zip(examples, parts, strict=True)
        ]

    def _with_one_type(self, example: Example, kind: str, reading: str) -> Example:
        spans = [span for span in find_spans(example.gold()) if span.type == kind]
        own = encode_spans(spans, len(example), self.scheme)
        others = frozenset(x for x in self.labels if x == "O" or split_label(x)[1] != kind)
        allowed = allowed_around(spans, own, others, reading)
        return replace(example, labels=None, allowed=allowed)

    # Labels of files

    def _annotated_file(self, sentences: list[Sentence]) -> list[Example]:
        options = [read_options(sentence) for sentence in sentences]
        if not all(map(is_full, options)):
            return [self._partial(*pair) for pair in zip(sentences, options, strict=True)]
        sequences = [[label for labels in row for label in labels or ()] for row in options]
        if self.strict:
            _check_well_formed(sentences, sequences)
        return [
            Example(
                sentence.words,
                sentence,
                tuple(encode_spans(find_spans(labels), len(labels), self.scheme)),
            )
            for sentence, labels in zip(sentences, sequences, strict=True)
        ]

    def _partial(self, sentence: Sentence, options: list[Options]) -> Example:
        """The example of a sentence in a file with partial labels."""
        for position, labels in enumerate(options):
            for label in labels or ():
                if label[0] not in "O" + _LETTERS[self.scheme]:
                    raise sentence.error(
                        position,
                        f"{label!r} is no label of {self.scheme}, the scheme of the model; a file "
                        "with partial labels must be in that scheme",
                    )
                if label not in self.labels:
                    raise sentence.error(position, f"{label!r} is no label of the model")
        dead_end = self._rules.dead_end(
            [self.labels if labels is None else labels for labels in options]
        )
        if dead_end is not None:
            raise sentence.error(
                dead_end, f"no well-formed {self.scheme} sequence has one of these labels here"
            )
        if is_full(options):
            full = tuple(label for labels in options for label in labels or ())
            return Example(sentence.words, sentence, full)
        return Example(sentence.words, sentence, None, tuple(options))

    @cached_property
    def _rules(self) -> Rules:
        return Rules(self.labels, self.structure)


def _check_well_formed(sentences: list[Sentence], sequences: list[list[str]]) -> None:
    """An error at the first label that the file's scheme does not allow where it is."""
    scheme, dead_ends = detect_scheme(sequences)
    for sentence, labels, position in zip(sentences, sequences, dead_ends, strict=True):
        if position is not None:
            raise sentence.error(position, describe_violation(labels, position, scheme))
