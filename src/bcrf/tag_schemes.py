"""Tag schemes: how the labels of single positions encode the typed spans of a sentence.

A label is a prefix, or a prefix, "-" and a type: `O`, `B-PER`, `S-NOUN`, `B-MISC-x` (its type is
`MISC-x`), `B` (its type is empty). The prefix says where in a span the position stands:

| prefix | also written | the position is |
|---|---|---|
| B | | the first of a span |
| I | M | inside a span |
| E | L | the last of a span |
| S | U | a span by itself |
| O | | in no span |

This module is the only place that defines the prefixes, and which label may follow which.
`Structure.from_labels` and the tasks of the tagger use it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

__all__ = [
    "OUTSIDE",
    "SCHEMES",
    "ParsedLabel",
    "TagScheme",
    "format_label",
    "normalize_label",
    "parse_label",
]

# The size of the caches of labels. With a cache, equal labels of a long sentence are one object.
_CACHED_LABELS = 1 << 12

# From the prefixes of other spellings to the prefixes of this package.
_ALIASES = {"M": "I", "L": "E", "U": "S"}
_ALL_PREFIXES = "BIOESMLU"


class ParsedLabel(NamedTuple):
    """The prefix of a label (one of B, I, O, E, S) and its type ("" if it has none)."""

    prefix: str
    type: str


OUTSIDE = ParsedLabel("O", "")
"""The label of a position that is in no span. For `TagScheme.may_follow` it also stands for the
positions before and after the sentence: in every scheme a label may start (end) a sentence if and
only if it may follow (precede) a position that is in no span."""


@lru_cache(_CACHED_LABELS)
def parse_label(label: str, prefixes: str = _ALL_PREFIXES) -> ParsedLabel:
    """Return the prefix and the type of a label; raise if its prefix is not in `prefixes`.

    Example:
        >>> parse_label("L-MISC-x")
        ParsedLabel(prefix='E', type='MISC-x')
    """
    prefix, dash, span_type = label.partition("-")
    if len(prefix) != 1 or prefix not in prefixes:
        raise ValueError(
            f"{label!r} is not a label; expected one of the prefixes {', '.join(prefixes)}, alone "
            'or followed by "-" and a type, such as B-PER'
        )
    if prefix == "O" and dash:
        raise ValueError(f"{label!r} is not a label: O takes no type; expected plain 'O'")
    if dash and not span_type:
        raise ValueError(f"{label!r} is not a label: no type after '-'; expected {prefix!r}")
    return ParsedLabel(_ALIASES.get(prefix, prefix), span_type)


@lru_cache(_CACHED_LABELS)
def format_label(prefix: str, span_type: str) -> str:
    """Return the label of a prefix and a type.

    Example:
        >>> format_label("B", "PER"), format_label("O", "")
        ('B-PER', 'O')
    """
    return f"{prefix}-{span_type}" if span_type else prefix


def normalize_label(label: str) -> str:
    """Return a label with the prefixes M, L and U written as I, E and S.

    Example:
        >>> normalize_label("U-PER")
        'S-PER'
    """
    return format_label(*parse_label(label))


@dataclass(frozen=True)
class TagScheme:
    """The rules of one tag scheme. The dict `SCHEMES` holds all schemes.

    Args:
        name: the name of the scheme in messages.
        prefixes: the prefixes that labels may have, including the spellings M, L and U.
        encoding: four prefixes: of the first, a middle and the last position of a span, and of a
            span of one position. (In IOB1 the first prefix is B directly after a span of the same
            type.)

    Example:
        >>> scheme = SCHEMES["BIOES"]
        >>> scheme.may_follow(scheme.parse("B-PER"), scheme.parse("I-PER"))
        True
        >>> scheme.may_follow(scheme.parse("B-PER"), OUTSIDE)  # the span is not finished
        False
    """

    name: str
    prefixes: str
    encoding: str

    @classmethod
    def named(cls, name: str) -> TagScheme:
        """Return the scheme called `name`, in upper or lower case."""
        scheme = SCHEMES.get(name.upper()) if isinstance(name, str) else None
        if scheme is None:
            raise ValueError(f"scheme: expected one of {', '.join(SCHEMES)}, got {name!r}")
        return scheme

    @property
    def has_outside(self) -> bool:
        """Whether positions may be in no span."""
        return "O" in self.prefixes

    @property
    def span_prefixes(self) -> str:
        """The prefixes of positions in spans, without M, L and U: "BI" or "BIES"."""
        return "".join(x for x in self.prefixes if x != "O" and x not in _ALIASES)

    def parse(self, label: str) -> ParsedLabel:
        """Return the prefix and the type of a label of this scheme."""
        return parse_label(label, self.prefixes)

    def may_follow(self, label: ParsedLabel, next_label: ParsedLabel) -> bool:
        """Whether `next_label` may come directly after `label`."""
        in_same_span = label.prefix in "BI" and label.type == next_label.type
        if self.name == "BIO":
            return next_label.prefix != "I" or in_same_span
        if self.name == "IOB1":
            return next_label.prefix != "B" or in_same_span
        if label.prefix in "BI":  # BIOES and BIES: the span is not finished
            return next_label.prefix in "IE" and in_same_span
        return next_label.prefix in "OBS"


_BIO = TagScheme("BIO", prefixes="BIO", encoding="BIIB")
_IOB1 = TagScheme("IOB1", prefixes="BIO", encoding="IIII")
_BIOES = TagScheme("BIOES", prefixes="BIOESLU", encoding="BIES")
_BIES = TagScheme("BIES", prefixes="BIMES", encoding="BIES")

SCHEMES: dict[str, TagScheme] = {
    "BIO": _BIO,
    "IOB2": _BIO,
    "IOB1": _IOB1,
    "BIOES": _BIOES,
    "IOBES": _BIOES,
    "BIOUL": _BIOES,
    "BILOU": _BIOES,
    "BIES": _BIES,
    "BMES": _BIES,
}
"""From each name of a scheme, in upper case, to the scheme."""
