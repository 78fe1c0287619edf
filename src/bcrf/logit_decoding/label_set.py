"""The labels of a token classifier: detect their tag scheme, and say which label continues a span.

The detection reads the set of labels, not sequences of labels. (`bcrf.tagger` detects the scheme of
a file from its sequences.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ..structure import Structure, checked_labels
from ..tag_schemes import ParsedLabel, TagScheme, format_label, normalize_label, parse_label

__all__ = ["LabelSet"]

# From the prefix of a label to the prefixes that its type needs, so that a span can contain it.
_PARTNERS = {
    "BIO": {"I": "B"},
    "IOB1": {"B": "I"},
    "BIOES": {"B": "E", "I": "BE", "E": "B"},
}


@dataclass(frozen=True, eq=False)
class LabelSet:
    """T labels of one tag scheme, in the order of the columns of the logits.

    Attributes:
        labels: the labels as the model spells them.
        parsed: prefix and type of each label; the prefixes M, L and U are read as I, E and S.
        scheme: "BIO", "IOB1", "BIOES" or "BIES".
        structure: which label sequences are legal.
    """

    labels: tuple[str, ...]
    parsed: tuple[ParsedLabel, ...]
    scheme: str
    structure: Structure

    @classmethod
    def read(
        cls, labels: Sequence[str] | Mapping[int, str] | Mapping[str, str], scheme: str = "auto"
    ) -> LabelSet:
        """Return the label set of a list of labels or an `id2label`; "auto" detects the scheme.

        Raise ValueError, with the name of the label, if the labels are of no scheme or of more than
        one, or if a label can be part of no span.
        """
        names = checked_labels(labels)
        parsed = tuple(_parse(index, name) for index, name in enumerate(names))
        if all(label.prefix == "O" for label in parsed):
            raise ValueError(f"labels: {list(names)} has no label of a span, such as B-PER")
        rules = TagScheme.named(_detect(parsed) if scheme == "auto" else scheme)
        for index, (name, label) in enumerate(zip(names, parsed, strict=True)):
            if label.prefix not in rules.prefixes:
                raise ValueError(
                    f"labels[{index}]: {name!r} is not a label of {rules.name}, the given scheme; "
                    'expected labels of this scheme, or scheme="auto"'
                )
        _check_distinct(names, parsed)
        _check_partners(names, parsed, rules.name)
        structure = Structure.from_labels([normalize_label(name) for name in names], rules.name)
        return cls(names, parsed, rules.name, structure)

    @property
    def num_tags(self) -> int:
        return len(self.labels)

    @cached_property
    def in_span(self) -> Tensor:
        """bool [T]: every label but O."""
        return torch.tensor([label.prefix != "O" for label in self.parsed])

    @cached_property
    def span_types(self) -> tuple[str, ...]:
        """The types of spans, sorted."""
        return tuple(sorted({label.type for label in self.parsed if label.prefix != "O"}))

    @cached_property
    def type_ids(self) -> Tensor:
        """int64 [T]: the index of the type of each label in `span_types`; -1 for O."""
        ids = {span_type: index for index, span_type in enumerate(self.span_types)}
        return torch.tensor([-1 if x.prefix == "O" else ids[x.type] for x in self.parsed])

    @cached_property
    def continues(self) -> Tensor:
        """bool [T, T]: whether the transition from -> to stays within one span.

        After any other transition, a label other than O begins a new span.
        """
        same_type = self.type_ids.unsqueeze(1) == self.type_ids
        before = self._has_prefix("BI").unsqueeze(1)
        return self.structure.follow & same_type & before & self._has_prefix("IE")

    @cached_property
    def finishes(self) -> Tensor:
        """bool [T]: the labels E-X, which tell that a span of several positions ends."""
        return self._has_prefix("E")

    def _has_prefix(self, prefixes: str) -> Tensor:
        return torch.tensor([label.prefix in prefixes for label in self.parsed])


def _parse(index: int, name: str) -> ParsedLabel:
    try:
        return parse_label(name)
    except ValueError as error:
        raise ValueError(f"labels[{index}]: {error}") from None


def _detect(parsed: Sequence[ParsedLabel]) -> str:
    """Return the name of the scheme that fits the labels.

    E or S occur in BIOES only. A type with I but without B occurs in IOB1 only, where B is needed
    only between adjacent spans. IOB1 with all B labels cannot be told from BIO, which is usual.
    """
    prefixes = {label.prefix for label in parsed}
    if prefixes & {"E", "S"}:
        return "BIOES" if "O" in prefixes else "BIES"
    begun = {label.type for label in parsed if label.prefix == "B"}
    return "IOB1" if any(x.prefix == "I" and x.type not in begun for x in parsed) else "BIO"


def _check_distinct(names: Sequence[str], parsed: Sequence[ParsedLabel]) -> None:
    first: dict[ParsedLabel, int] = {}
    for index, label in enumerate(parsed):
        other = first.setdefault(label, index)
        if other != index:
            raise ValueError(
                f"labels[{index}]: {names[index]!r} means the same as labels[{other}], "
                f"{names[other]!r}; expected distinct labels"
            )


def _check_partners(names: Sequence[str], parsed: Sequence[ParsedLabel], scheme: str) -> None:
    """Raise if a label can be part of no span, because another label of its type is missing."""
    present = set(parsed)
    partners = _PARTNERS["BIOES" if scheme == "BIES" else scheme]
    for index, label in enumerate(parsed):
        for partner in partners.get(label.prefix, ""):
            if (partner, label.type) not in present:
                raise ValueError(
                    f"labels[{index}]: {names[index]!r} can be part of no span in {scheme}, "
                    f"because there is no label {format_label(partner, label.type)!r}; expected "
                    "the labels of one scheme: all types in BIO (B-X, I-X), all in IOB1 (I-X, "
                    "B-X), or all in BIOES (B-X, I-X, E-X, S-X)"
                )
