"""Convert tokens to the inputs of a network."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from ..data import Vocabulary
from ..tasks import Example
from .batch import Batch, collate
from .config import ModelConfig, Sizes
from .network import TaggerModel
from .pieces import Pieces
from .pretrained import PretrainedEncoder

__all__ = ["InputReader", "Inputs", "Vocabularies", "pad_masks"]

# Number of words whose character ids are cached.
_SPELLINGS = 1 << 16


@dataclass(frozen=True)
class Vocabularies:
    """The vocabularies of words and characters; None if the network does not read them.

    Example:
        >>> from bcrf.tagger.data import Vocabulary
        >>> Vocabularies(words=Vocabulary.build(["Ada", "sings"])).sizes(tags=2)
        Sizes(tags=2, words=4, characters=0)
    """

    words: Vocabulary | None = None
    characters: Vocabulary | None = None

    @classmethod
    def build(
        cls,
        examples: Iterable[Example],
        config: ModelConfig,
        *,
        lowercase: bool = False,
        min_count: int = 1,
    ) -> Vocabularies:
        """Build the vocabularies of a training set.

        Args:
            examples: the training sentences.
            config: says whether the network reads words and characters.
            lowercase: whether words are converted to lower case.
            min_count: how often a word must occur to be kept; all characters are kept.
        """
        tokens = [token for example in examples for token in example.tokens]
        words = characters = None
        if config.uses_words:
            words = Vocabulary.build(tokens, min_count=min_count, lowercase=lowercase)
        if config.uses_characters:
            characters = Vocabulary.build(letter for token in tokens for letter in token)
        return cls(words, characters)

    def to_dict(self) -> dict[str, Any]:
        """Return the vocabularies as a table of plain values, for JSON."""
        both = {"words": self.words, "characters": self.characters}
        return {name: None if one is None else one.to_dict() for name, one in both.items()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Vocabularies:
        """Build the vocabularies from the table that `to_dict` returned."""
        both = (values["words"], values["characters"])
        return cls(*(None if one is None else Vocabulary.from_dict(one) for one in both))

    def sizes(self, tags: int) -> Sizes:
        """Return the sizes of a network with these vocabularies and this number of tags."""
        words, characters = (0 if v is None else len(v) for v in (self.words, self.characters))
        return Sizes(tags, words, characters)


@dataclass(frozen=True, slots=True)
class Inputs:
    """One sentence as ids of its words and characters, or as ids of its word pieces.

    Example:
        >>> len(Inputs(words=[2, 3], characters=None, pieces=None))
        2
    """

    words: list[int] | None
    characters: list[tuple[int, ...]] | None
    pieces: Pieces | None

    def __len__(self) -> int:
        """Return the number of words or word pieces, which determines the cost of encoding."""
        if self.pieces is not None:
            return len(self.pieces.ids)
        assert self.words is not None
        return len(self.words)


class InputReader:
    """Turns tokens into the inputs of one network, and inputs into batches.

    Args:
        model: the network.
        vocabularies: the vocabularies that it was built for.

    Example:
        >>> from bcrf.tagger.data import Vocabulary
        >>> from bcrf.tagger.nn import ModelConfig, TaggerModel
        >>> vocabularies = Vocabularies(words=Vocabulary.build(["Ada", "sings"]))
        >>> config = ModelConfig(width=8, score_width=8)
        >>> reader = InputReader(TaggerModel(config, vocabularies.sizes(tags=2)), vocabularies)
        >>> reader.batch([reader(["Ada", "sings"]), reader(["Bob"])]).lengths  # Bob is unknown
        tensor([2, 1])
    """

    def __init__(self, model: TaggerModel, vocabularies: Vocabularies) -> None:
        self._encoder = model.encoder if isinstance(model.encoder, PretrainedEncoder) else None
        self._words = vocabularies.words
        characters = vocabularies.characters
        self._spell = None
        if characters is not None:
            letters = characters.ids
            self._spell = lru_cache(_SPELLINGS)(lambda word: tuple(letters(word)))

    def __call__(self, tokens: Sequence[str]) -> Inputs:
        """Return the inputs for the tokens of one sentence."""
        return Inputs(
            None if self._words is None else self._words.ids(tokens),
            None if self._spell is None else [self._spell(token) for token in tokens],
            None if self._encoder is None else self._encoder.pieces(tokens),
        )

    def batch(self, sentences: Sequence[Inputs]) -> Batch:
        """Return the batch of these sentences, on the CPU."""
        if self._encoder is not None:
            pieces = [s.pieces for s in sentences if s.pieces is not None]
            return collate(windows=self._encoder.windows(pieces))
        words = [s.words for s in sentences if s.words is not None]
        if self._spell is None:
            return collate(words)
        return collate(words, [s.characters for s in sentences if s.characters is not None])


def pad_masks(masks: Sequence[Tensor | None], n: int, tags: int) -> Tensor | None:
    """Return masks [n_b, T] as one mask, bool [B, n, T]; missing masks and padding become True.

    Returns None if all masks are None.
    """
    if all(mask is None for mask in masks):
        return None
    whole = torch.ones(len(masks), n, tags, dtype=torch.bool)
    for row, mask in zip(whole, masks, strict=True):
        if mask is not None:
            row[: len(mask)] = mask
    return whole
