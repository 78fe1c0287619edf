"""Tokens as numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["PAD", "UNKNOWN", "Vocabulary"]

PAD = "<pad>"
UNKNOWN = "<unk>"


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """A fixed list of tokens; padding is number 0, every token outside it number 1.

    Args:
        tokens: all tokens in the order of their numbers, `<pad>` and `<unk>` first.
        lowercase: whether tokens are lower-cased before they are looked up.
    """

    tokens: tuple[str, ...]
    lowercase: bool = False
    _ids: dict[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.tokens[:2] != (PAD, UNKNOWN):
            raise ValueError(f"tokens must start with {PAD}, {UNKNOWN}; got {self.tokens[:2]}")
        ids = {token: number for number, token in enumerate(self.tokens)}
        if len(ids) < len(self.tokens):
            twice = next(token for token, count in Counter(self.tokens).items() if count > 1)
            raise ValueError(f"tokens must be distinct; {twice!r} comes twice")
        # A text may hold the word "<pad>": it is as unknown as any other.
        ids[PAD] = ids[UNKNOWN]
        object.__setattr__(self, "_ids", ids)

    @classmethod
    def build(
        cls, tokens: Iterable[str], *, min_count: int = 1, lowercase: bool = False
    ) -> Vocabulary:
        """The tokens that occur at least `min_count` times, the most frequent first."""
        counts = Counter(token.lower() if lowercase else token for token in tokens)
        kept = [
            token
            for token, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))
            if count >= min_count and token not in (PAD, UNKNOWN)
        ]
        return cls((PAD, UNKNOWN, *kept), lowercase)

    @property
    def pad(self) -> int:
        return 0

    @property
    def unknown(self) -> int:
        return 1

    def ids(self, tokens: Iterable[str]) -> list[int]:
        """The number of each token."""
        get, unknown = self._ids.get, self.unknown
        if self.lowercase:
            return [get(token.lower(), unknown) for token in tokens]
        return [get(token, unknown) for token in tokens]

    def __contains__(self, token: object) -> bool:
        """Whether a token has a number of its own."""
        return isinstance(token, str) and self.ids([token]) != [self.unknown]

    def __len__(self) -> int:
        return len(self.tokens)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {"tokens": list(self.tokens), "lowercase": self.lowercase}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Vocabulary:
        """The vocabulary of which `to_dict` gave these values."""
        if set(values) != {"tokens", "lowercase"}:
            raise ValueError(f"a vocabulary has tokens and lowercase; got {', '.join(values)}")
        tokens, lowercase = values["tokens"], values["lowercase"]
        if not (isinstance(tokens, list) and all(isinstance(token, str) for token in tokens)):
            raise ValueError("the tokens of a vocabulary must be a list of strings")
        if not isinstance(lowercase, bool):
            raise ValueError(f"lowercase must be true or false, got {lowercase!r}")
        return cls(tuple(tokens), lowercase)
