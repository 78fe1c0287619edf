"""Named entity recognition: mentions as IOB2 or BIOES labels of words."""

from __future__ import annotations

import warnings
from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from typing import ClassVar

from ...spans import Span, encode_spans, find_spans, iterate_spans
from ...structure import Structure
from ...tag_schemes import SCHEMES, format_label, parse_label
from ..data import DataError, Sentence
from .metrics import MentionF1
from .partial_labels import (
    LabelOptions,
    allowed_around,
    is_fully_labeled,
    read_label_options,
    split_at_random,
)
from .scheme_detection import LabelRules, describe_violation, detect_scheme
from .task import Example, Metric, WordTask

__all__ = ["Ner"]

_MODEL_SCHEMES = ("IOB2", "BIOES")
_LENIENT_RULE = "a label that cannot continue a mention begins a new one"


@dataclass(frozen=True)
class Ner(WordTask):
    """Mentions of typed entities.

    Files may be in IOB1, IOB2 or BIOES (also BIOUL): the scheme of each file is detected, and its
    labels are converted to the scheme of the model. Partial labels (`A|B` or `?`) are not
    converted, so a file with partial labels must be in the scheme of the model.

    Args:
        labels: O, and each prefix of the scheme with each type.
        scheme: the scheme of the model: "IOB2" or "BIOES".
        strict: whether ill-formed labels in a file are an error. Otherwise they are read as
            conlleval reads them, and a warning counts them.

    Example:
        >>> import io
        >>> from bcrf.tagger.data import read
        >>> sentences = list(read(io.BytesIO(b"Ada I-PER\\nsings O\\n"), "columns"))
        >>> task = Ner.fit(sentences)
        >>> task.labels
        ('O', 'B-PER', 'I-PER')
        >>> task.annotated(sentences)[0].labels  # IOB1 in the file, IOB2 in the model
        ('B-PER', 'O')
    """

    name: ClassVar[str] = "ner"
    has_spans: ClassVar[bool] = True
    has_mentions: ClassVar[bool] = True
    default_format: ClassVar[str] = "columns"

    scheme: str = "IOB2"
    strict: bool = True

    def __post_init__(self) -> None:
        if self.scheme not in _MODEL_SCHEMES:
            expected = ", ".join(_MODEL_SCHEMES)
            raise ValueError(f"scheme must be one of {expected}, got {self.scheme!r}")

    @classmethod
    def fit(
        cls, sentences: Sequence[Sentence], *, scheme: str = "IOB2", strict: bool = True
    ) -> Ner:
        task = cls((), scheme, strict)
        labels = {
            label
            for sentence in sentences
            for options in read_label_options(sentence)
            for label in options or ()
        }
        types = sorted({parse_label(label).type for label in labels - {"O"}})
        if not types:
            path = sentences[0].path if sentences else "the training data"
            raise DataError(path, None, "no mention found; expected labels such as B-PER")
        prefixes = SCHEMES[task.scheme].span_prefixes
        own = [format_label(prefix, type_) for type_ in types for prefix in prefixes]
        return cls(("O", *own), task.scheme, task.strict)

    def annotated(self, sentences: Sequence[Sentence]) -> list[Example]:
        examples: list[Example] = []
        for _, group in groupby(sentences, key=lambda sentence: sentence.path):
            examples += self._annotated_file(list(group))
        return examples

    def repair(self, example: Example, labels: Sequence[str]) -> list[str]:
        """Return well-formed labels: a label that cannot continue a mention begins a new mention.

        In IOB2, for example, I-X after O becomes B-X. `find_spans` says where mentions end.
        """
        return encode_spans(iterate_spans(labels), len(labels), self.scheme)

    def items(self, example: Example, labels: Sequence[str]) -> list[Span]:
        """Return the mentions."""
        return find_spans(labels)

    def withhold(
        self, example: Example, labels: Sequence[str], kept: Sequence[bool]
    ) -> tuple[str, ...]:
        """Return well-formed labels without the mentions that are not kept."""
        spans = zip(find_spans(labels), kept, strict=True)
        rest = [span for span, keep in spans if keep]
        return tuple(encode_spans(rest, len(labels), self.scheme))

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
        return tuple(sorted({parse_label(label).type for label in self.labels if label != "O"}))

    def partial_split(
        self, examples: Sequence[Example], seed: int = 0, reading: str = "exclusive"
    ) -> list[Example]:
        """Return partially labeled examples, each with the mentions of only one type.

        The sentences are split at random into as many parts as there are types. In each part, only
        the mentions of one type stay annotated (partially supervised NER). `allowed_around`
        explains `reading`.
        """
        parts = split_at_random(len(examples), len(self.types), seed)
        return [
            self._with_one_type(example, self.types[part], reading)
            for example, part in zip(examples, parts, strict=True)
        ]

    def _with_one_type(self, example: Example, type_: str, reading: str) -> Example:
        spans = [span for span in find_spans(example.gold()) if span.type == type_]
        own = encode_spans(spans, len(example), self.scheme)
        others = frozenset(x for x in self.labels if x == "O" or parse_label(x).type != type_)
        allowed = allowed_around(spans, own, others, reading)
        return replace(example, labels=None, allowed=allowed)

    # Labels of files

    def _annotated_file(self, sentences: list[Sentence]) -> list[Example]:
        options = [read_label_options(sentence) for sentence in sentences]
        if not all(map(is_fully_labeled, options)):
            return [self._partial(*pair) for pair in zip(sentences, options, strict=True)]
        sequences = [[label for labels in row for label in labels or ()] for row in options]
        _check_well_formed(sentences, sequences, self.strict)
        return [
            Example(
                sentence.words,
                sentence,
                tuple(encode_spans(find_spans(labels), len(labels), self.scheme)),
            )
            for sentence, labels in zip(sentences, sequences, strict=True)
        ]

    def _partial(self, sentence: Sentence, options: list[LabelOptions]) -> Example:
        """Return the example of a sentence in a file with partial labels."""
        for position, labels in enumerate(options):
            for label in labels or ():
                if label[0] not in "O" + SCHEMES[self.scheme].span_prefixes:
                    raise sentence.error(
                        position,
                        f"{label!r} is not a label of {self.scheme}; a file with partial labels "
                        "must be in the scheme of the model",
                    )
                if label not in self.labels:
                    raise sentence.error(
                        position,
                        f"{label!r} is not among the {len(self.labels)} labels of the model",
                    )
        dead_end = self._rules.find_dead_end(
            [self.labels if labels is None else labels for labels in options]
        )
        if dead_end is not None:
            raise sentence.error(
                dead_end,
                f"none of these labels can stand here in a well-formed {self.scheme} sequence",
            )
        if is_fully_labeled(options):
            full = tuple(label for labels in options for label in labels or ())
            return Example(sentence.words, sentence, full)
        return Example(sentence.words, sentence, None, tuple(options))

    @cached_property
    def _rules(self) -> LabelRules:
        return LabelRules(self.labels, self.structure)


def _check_well_formed(sentences: list[Sentence], sequences: list[list[str]], strict: bool) -> None:
    """Raise DataError at the first label that violates the scheme of the file, or warn of it."""
    detected = detect_scheme(sequences)
    count = detected.num_violated
    of_file = f"{count} of {len(sentences)} sentences of the file are ill-formed"
    if count == 1:
        of_file = "One sentence of the file is ill-formed"
    for sentence, labels, position in zip(sentences, sequences, detected.violations, strict=True):
        if position is None:
            continue
        violation = describe_violation(labels, position, detected.name)
        if strict:
            raise sentence.error(
                position,
                f"{violation}. {of_file} (`bcrf check --task ner` lists all). Train with "
                f"--data.strict false to read such labels as conlleval does: {_LENIENT_RULE}",
            )
        warning = f"{violation}. {of_file}; they are read as conlleval does: {_LENIENT_RULE}"
        warnings.warn(str(sentence.error(position, warning)), stacklevel=4)
        return
