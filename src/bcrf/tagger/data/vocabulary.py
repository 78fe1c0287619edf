"""Vocabularies: the ids of tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["PAD_TOKEN", "UNKNOWN_TOKEN", "Vocabulary"]

PAD_TOKEN = "<pad>"
UNKNOWN_TOKEN = "<unk>"


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """A fixed list of tokens. The id of padding is 0, the id of tokens outside the list is 1.

    Args:
        tokens: all tokens in the order of their ids, `<pad>` and `<unk>` first.
        lowercase: whether tokens are lower-cased before they are looked up.

    Example:
        >>> vocabulary = Vocabulary.build(["the", "cat", "the"])
        >>> vocabulary.ids(["the", "dog"])
        [2, 1]
    """

    tokens: tuple[str, ...]
    lowercase: bool = False
    _ids: dict[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.tokens[:2] != (PAD_TOKEN, UNKNOWN_TOKEN):
            raise ValueError(
                f"tokens must start with {PAD_TOKEN}, {UNKNOWN_TOKEN}; got {self.tokens[:2]}"
            )
        ids = {token: number for number, token in enumerate(self.tokens)}
        if len(ids) < len(self.tokens):
            twice = next(token for token, count in Counter(self.tokens).items() if count > 1)
            raise ValueError(f"tokens must be distinct; {twice!r} occurs twice")
        # If the word "<pad>" occurs in a text, it is an unknown word.
        ids[PAD_TOKEN] = ids[UNKNOWN_TOKEN]
        object.__setattr__(self, "_ids", ids)

    @classmethod
    def build(
        cls, tokens: Iterable[str], *, min_count: int = 1, lowercase: bool = False
    ) -> Vocabulary:
        """Return the vocabulary of the tokens that occur at least `min_count` times.

        The most frequent token comes first.
        """
        counts = Counter(token.lower() if lowercase else token for token in tokens)
        kept = [
            token
            for token, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))
            if count >= min_count and token not in (PAD_TOKEN, UNKNOWN_TOKEN)
        ]
        return cls((PAD_TOKEN, UNKNOWN_TOKEN, *kept), lowercase)

    @property
    def pad(self) -> int:
        return 0

    @property
    def unknown(self) -> int:
        return 1

    def ids(self, tokens: Iterable[str]) -> list[int]:
        """Return the id of each token."""
        get, unknown = self._ids.get, self.unknown
        if self.lowercase:
            return [get(token.lower(), unknown) for token in tokens]
        return [get(token, unknown) for token in tokens]

    def __contains__(self, token: object) -> bool:
        """Return whether a token is in the vocabulary."""
        return isinstance(token, str) and self.ids([token]) != [self.unknown]

    def __len__(self) -> int:
        return len(self.tokens)

    def to_dict(self) -> dict[str, Any]:
        """Return the vocabulary as plain values, for JSON."""
        return {"tokens": list(self.tokens), "lowercase": self.lowercase}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Vocabulary:
        """Return the vocabulary from the values that `to_dict` returned."""
        if set(values) != {"tokens", "lowercase"}:
            raise ValueError(
                f"a vocabulary has the fields tokens and lowercase; got {', '.join(values)}"
            )
        tokens, lowercase = values["tokens"], values["lowercase"]
        if not (isinstance(tokens, list) and all(isinstance(token, str) for token in tokens)):
            raise ValueError("the tokens of a vocabulary must be a list of strings")
        if not isinstance(lowercase, bool):
            raise ValueError(f"lowercase must be true or false, got {lowercase!r}")
        return cls(tuple(tokens), lowercase)
