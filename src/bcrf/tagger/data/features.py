"""Features of tokens: the strings by which the network knows a word or a character, and their ids.

- Features of a word: the word, its lower-cased form, prefixes of 1 to 4 and suffixes of 1 to 5
  letters, and its shape.
- Features of a character: the character, the bigrams and trigrams that contain it, and the classes
  of the character and its neighbours.

A feature is known if it occurs often enough in the training sentences. We count features instead of
hashing them: no two features share an embedding by accident, the table is as small as the data
permits, and the model can be read.
"""

from __future__ import annotations

import unicodedata
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain, groupby, pairwise
from typing import Any, Literal, get_args

__all__ = ["FeatureKind", "FeatureVocabulary", "character_class", "word_shape"]

FeatureKind = Literal["word", "character"]
"""Whether tokens are words or characters."""

_Extract = Callable[[str], str]


def word_shape(word: str) -> str:
    """Return the shape of a word: X, x and d for its letters and digits, in runs of at most two.

    Letters without case are `c`. All other characters stay.

    Example:
        >>> word_shape("McDonald's"), word_shape("B-52"), word_shape("東京")
        ("XxXxx'x", 'X-dd', 'cc')
    """
    kinds = map(_letter_kind, word)
    return "".join("".join(group)[:2] for _, group in groupby(kinds))


def _letter_kind(letter: str) -> str:
    if letter.isupper():
        return "X"
    if letter.islower():
        return "x"
    if letter.isdigit():
        return "d"
    return "c" if letter.isalpha() else letter


@lru_cache(1 << 16)
def character_class(character: str) -> str:
    """Return the class of a character: its general category, and the first word of its name.

    The first word of the name mostly is the script. The start and end of a sentence have the class
    "".

    Example:
        >>> [character_class(character) for character in "aAあ東7。"]
        ['Ll LATIN', 'Lu LATIN', 'Lo HIRAGANA', 'Lo CJK', 'Nd DIGIT', 'Po IDEOGRAPHIC']
    """
    if character == _EDGE:
        return ""
    name = unicodedata.name(character[0], "").partition(" ")[0].partition("-")[0]
    return f"{unicodedata.category(character[0])} {name}"


def _prefix(size: int) -> _Extract:
    return lambda word: word[:size].lower()


def _suffix(size: int) -> _Extract:
    return lambda word: word[-size:].lower()


_WORD_FEATURES: dict[str, _Extract] = {
    "word": lambda word: word,
    "lower": str.lower,
    **{f"prefix-{size}": _prefix(size) for size in range(1, 5)},
    **{f"suffix-{size}": _suffix(size) for size in range(1, 6)},
    "shape": word_shape,
}

# Stands for the positions before and after a sentence.
_EDGE = "\n"

# The positions at which the n-grams of a character start, relative to the character. The n-grams of
# all positions share one table.
_CHARACTER_FEATURES: dict[str, tuple[int, ...]] = {
    "character": (0,),
    "bigram": (-1, 0),
    "trigram": (-2, -1, 0),
    "class": (-1, 0, 1),
}
_MARGIN = 2


@dataclass(frozen=True)
class FeatureVocabulary:
    """The known features of tokens, and the ids of these features.

    Ids are rows of one embedding table. Each feature has a row for unknown values, followed by a
    row for each known value.

    Args:
        kind: whether tokens are words or characters.
        values: feature -> its known values, in the order of their ids.
        lowercase: whether words are lower-cased before anything else.

    Example:
        >>> vocabulary = FeatureVocabulary.build([["the", "cat"], ["the"]], "word", min_count=2)
        >>> vocabulary.values["suffix-2"], len(vocabulary), vocabulary.width
        (('he',), 24, 12)
        >>> [len(ids) for ids in vocabulary.ids(["the", "dog"])]  # 12 ids of 4 bytes
        [48, 48]
    """

    kind: FeatureKind
    values: Mapping[str, tuple[str, ...]]
    lowercase: bool = False
    _rows: dict[str, dict[str, int]] = field(init=False, repr=False, compare=False)
    _unknown: dict[str, int] = field(init=False, repr=False, compare=False)
    _size: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.kind not in get_args(FeatureKind):
            raise ValueError(f"kind must be one of {', '.join(get_args(FeatureKind))}")
        expected = tuple(_WORD_FEATURES if self.kind == "word" else _CHARACTER_FEATURES)
        if tuple(self.values) != expected:
            raise ValueError(
                f"the features of a {self.kind} are {', '.join(expected)}; got "
                f"{', '.join(self.values) or 'none'}"
            )
        rows, unknown, size = {}, {}, 0
        for name, values in self.values.items():
            unknown[name] = size
            rows[name] = {value: size + 1 + number for number, value in enumerate(values)}
            if len(rows[name]) < len(values):
                raise ValueError(f"the values of the feature {name} must be distinct")
            size += 1 + len(values)
        object.__setattr__(self, "_rows", rows)
        object.__setattr__(self, "_unknown", unknown)
        object.__setattr__(self, "_size", size)

    @classmethod
    def build(
        cls,
        sentences: Iterable[Sequence[str]],
        kind: FeatureKind,
        *,
        min_count: int = 1,
        lowercase: bool = False,
    ) -> FeatureVocabulary:
        """Return the features that occur at least `min_count` times in these sentences."""
        counts: dict[str, Counter[str]]
        if kind == "word":
            words = Counter(word for sentence in sentences for word in sentence)
            counts = {name: Counter() for name in _WORD_FEATURES}
            for word, count in words.items():
                word = word.lower() if lowercase else word
                for name, extract in _WORD_FEATURES.items():
                    counts[name][extract(word)] += count
        else:
            counts = {name: Counter() for name in _CHARACTER_FEATURES}
            for sentence in sentences:
                for name, values in _character_values(sentence).items():
                    counts[name].update(values)
        known = {
            name: tuple(
                value
                for value, count in sorted(of_feature.items(), key=lambda item: (-item[1], item[0]))
                if count >= min_count
            )
            for name, of_feature in counts.items()
        }
        return cls(kind, known, lowercase)

    def __len__(self) -> int:
        """Return the number of rows of the embedding table."""
        return self._size

    @property
    def width(self) -> int:
        """The number of features of a token."""
        if self.kind == "word":
            return len(_WORD_FEATURES)
        return sum(map(len, _CHARACTER_FEATURES.values()))

    def ids(self, tokens: Sequence[str]) -> list[bytes]:
        """Return the ids of the features of each token, `width` int32 numbers as bytes.

        Tokens with the same features have equal bytes, so a batch can find its distinct tokens.
        """
        if self.kind == "word":
            return list(map(self.word_ids, tokens))
        columns: list[list[int]] = []
        found = _character_values(tokens)
        for name, starts in _CHARACTER_FEATURES.items():
            get, unknown = self._rows[name].get, self._unknown[name]
            rows = [get(value, unknown) for value in found[name]]
            columns += [rows[_MARGIN + start : len(tokens) + _MARGIN + start] for start in starts]
        packed = array("i", chain.from_iterable(zip(*columns, strict=True))).tobytes()
        size = len(columns) * 4
        return [packed[start : start + size] for start in range(0, len(packed), size)]

    def word_ids(self, word: str) -> bytes:
        """Return the ids of the features of a word, see `ids`."""
        if self.lowercase:
            word = word.lower()
        rows, unknown = self._rows, self._unknown
        return array(
            "i",
            (
                rows[name].get(extract(word), unknown[name])
                for name, extract in _WORD_FEATURES.items()
            ),
        ).tobytes()

    def to_dict(self) -> dict[str, Any]:
        """Return the vocabulary as plain values, for JSON."""
        values = {name: list(values) for name, values in self.values.items()}
        return {"kind": self.kind, "values": values, "lowercase": self.lowercase}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> FeatureVocabulary:
        """Return the vocabulary from the values that `to_dict` returned."""
        if set(values) != {"kind", "values", "lowercase"}:
            raise ValueError(
                f"features have the fields kind, values and lowercase; got {', '.join(values)}"
            )
        kind, known, lowercase = values["kind"], values["values"], values["lowercase"]
        if not isinstance(lowercase, bool):
            raise ValueError(f"lowercase must be true or false, got {lowercase!r}")
        if not isinstance(known, dict):
            raise ValueError("the values of features must be a table of lists")
        for name, of_feature in known.items():
            if not (
                isinstance(of_feature, list) and all(isinstance(value, str) for value in of_feature)
            ):
                raise ValueError(f"the values of the feature {name!r:.60} must be strings")
        return cls(kind, {name: tuple(of_feature) for name, of_feature in known.items()}, lowercase)


def _character_values(tokens: Sequence[str]) -> dict[str, list[str]]:
    """Return the n-grams of a sentence that start at each position, two positions before it first.

    Entry i + 2 of each list belongs to the position i.
    """
    padded = [_EDGE] * _MARGIN + list(tokens) + [_EDGE] * (2 * _MARGIN)
    last = len(tokens) + 2 * _MARGIN
    return {
        "character": padded[:last],
        "bigram": [a + b for a, b in pairwise(padded)],
        "trigram": [
            a + b + c for a, b, c in zip(padded[:last], padded[1:], padded[2:], strict=False)
        ],
        "class": list(map(character_class, padded[:last])),
    }
