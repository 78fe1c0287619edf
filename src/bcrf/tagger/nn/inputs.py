"""Convert tokens to the inputs of a network."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from ...checks import check_count
from ..data import FeatureVocabulary, Vocabulary
from ..tasks import Example
from .batch import Batch, collate
from .config import ModelConfig, Sizes
from .network import TaggerModel
from .pieces import Pieces
from .pretrained import PretrainedEncoder

__all__ = ["InputReader", "Inputs", "VectorWords", "Vocabularies", "pad_masks"]

# Number of words whose features or character ids are cached.
_CACHED_WORDS = 1 << 16


@dataclass(frozen=True)
class VectorWords:
    """The words that have pretrained vectors; the word of vector i + 1 is `words[i]`.

    Vector 0 is for all other words. If a word has no vector, that of its lower-cased form is used.

    Args:
        words: the words.
        width: width of the vectors.
    """

    words: tuple[str, ...]
    width: int
    _ids: dict[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_count("width", self.width, least=1)
        ids = {word: number for number, word in enumerate(self.words, start=1)}
        if len(ids) < len(self.words):
            raise ValueError("the words that have vectors must be distinct")
        object.__setattr__(self, "_ids", ids)

    def __len__(self) -> int:
        """Return the number of vectors."""
        return len(self.words) + 1

    def id(self, word: str) -> int:
        """Return the number of the vector of a word."""
        number = self._ids.get(word)
        return self._ids.get(word.lower(), 0) if number is None else number

    def to_dict(self) -> dict[str, Any]:
        """Return the words as plain values, for JSON."""
        return {"words": list(self.words), "width": self.width}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> VectorWords:
        """Return the words from the values that `to_dict` returned."""
        if set(values) != {"words", "width"}:
            raise ValueError(f"vectors have the fields words and width; got {', '.join(values)}")
        words = values["words"]
        if not (isinstance(words, list) and all(isinstance(word, str) for word in words)):
            raise ValueError("the words that have vectors must be a list of strings")
        return cls(tuple(words), values["width"])


@dataclass(frozen=True)
class Vocabularies:
    """The vocabularies of a network; None if the network does not read them.

    Args:
        words: the words. A network with features does not read them, but scores of unknown words
            need them.
        characters: the characters of words.
        features: the features of tokens.
        vectors: the words that have pretrained vectors.

    Example:
        >>> from bcrf.tagger.data import Vocabulary
        >>> Vocabularies(words=Vocabulary.build(["Ada", "sings"])).sizes(tags=2)
        Sizes(tags=2, words=4, characters=0, feature_rows=0, features=0, vectors=0, vector_width=0)
    """

    words: Vocabulary | None = None
    characters: Vocabulary | None = None
    features: FeatureVocabulary | None = None
    vectors: VectorWords | None = None

    @classmethod
    def build(
        cls,
        examples: Iterable[Example],
        config: ModelConfig,
        *,
        lowercase: bool = False,
        min_count: int = 1,
        vectors: VectorWords | None = None,
    ) -> Vocabularies:
        """Build the vocabularies of a training set.

        Args:
            examples: the training sentences.
            config: says what the network reads.
            lowercase: whether words are converted to lower case.
            min_count: how often a word or a feature must occur to be kept; all characters are kept.
            vectors: the words that have pretrained vectors.
        """
        sentences = [example.tokens for example in examples]
        tokens = [token for sentence in sentences for token in sentence]
        words = characters = None
        if config.features != "none":
            return cls(
                Vocabulary.build(tokens, lowercase=lowercase),
                None,
                FeatureVocabulary.build(
                    sentences, config.features, min_count=min_count, lowercase=lowercase
                ),
                vectors,
            )
        if config.uses_words:
            words = Vocabulary.build(tokens, min_count=min_count, lowercase=lowercase)
        if config.uses_characters:
            characters = Vocabulary.build(letter for token in tokens for letter in token)
        return cls(words, characters)

    def to_dict(self) -> dict[str, Any]:
        """Return the vocabularies as a table of plain values, for JSON."""
        kinds = {"words": self.words, "characters": self.characters}
        values = {name: None if one is None else one.to_dict() for name, one in kinds.items()}
        for name, some in (("features", self.features), ("vectors", self.vectors)):
            if some is not None:
                values[name] = some.to_dict()
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Vocabularies:
        """Build the vocabularies from the table that `to_dict` returned."""
        words, characters = (
            None if values[name] is None else Vocabulary.from_dict(values[name])
            for name in ("words", "characters")
        )
        features, vectors = values.get("features"), values.get("vectors")
        return cls(
            words,
            characters,
            None if features is None else FeatureVocabulary.from_dict(features),
            None if vectors is None else VectorWords.from_dict(vectors),
        )

    def sizes(self, tags: int) -> Sizes:
        """Return the sizes of a network with these vocabularies and this number of tags."""
        words, characters = (0 if v is None else len(v) for v in (self.words, self.characters))
        rows = features = vectors = width = 0
        if self.features is not None:
            rows, features = len(self.features), self.features.width
        if self.vectors is not None:
            vectors, width = len(self.vectors), self.vectors.width
        return Sizes(tags, words, characters, rows, features, vectors, width)


@dataclass(frozen=True, slots=True)
class Inputs:
    """One sentence as ids of its words and characters, of its word pieces, or of its features.

    Example:
        >>> len(Inputs(words=[2, 3], characters=None, pieces=None))
        2
    """

    words: list[int] | None
    characters: list[tuple[int, ...]] | None
    pieces: Pieces | None
    features: list[bytes] | None = None

    def __len__(self) -> int:
        """Return the number of words or word pieces, which determines the cost of encoding."""
        if self.pieces is not None:
            return len(self.pieces.ids)
        tokens = self.words if self.features is None else self.features
        assert tokens is not None
        return len(tokens)


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
        self._words = vocabularies.words if model.config.uses_words else None
        self._features = vocabularies.features if model.config.uses_features else None
        self._vectors = vocabularies.vectors
        self._word_features = lru_cache(_CACHED_WORDS)(self._read_word)
        characters = vocabularies.characters
        self._spell = None
        if characters is not None:
            letters = characters.ids
            self._spell = lru_cache(_CACHED_WORDS)(lambda word: tuple(letters(word)))

    def __call__(self, tokens: Sequence[str]) -> Inputs:
        """Return the inputs for the tokens of one sentence."""
        return Inputs(
            None if self._words is None else self._words.ids(tokens),
            None if self._spell is None else [self._spell(token) for token in tokens],
            None if self._encoder is None else self._encoder.pieces(tokens),
            None if self._features is None else self._read_features(self._features, tokens),
        )

    @property
    def cached_words(self) -> int:
        """The number of words whose features are cached."""
        return self._word_features.cache_info().currsize

    def _read_features(self, features: FeatureVocabulary, tokens: Sequence[str]) -> list[bytes]:
        """Return the ids of the features of each token.

        Those of words are cached. Those of characters depend on the characters around them.
        """
        if features.kind == "word":
            return list(map(self._word_features, tokens))
        return list(map(self._with_vector, features.ids(tokens), tokens))

    def _read_word(self, word: str) -> bytes:
        assert self._features is not None
        return self._with_vector(self._features.word_ids(word), word)

    def _with_vector(self, ids: bytes, token: str) -> bytes:
        """Return the ids of features with the number of the pretrained vector, if there are any."""
        if self._vectors is None:
            return ids
        return ids + array("i", (self._vectors.id(token),)).tobytes()

    def batch(self, sentences: Sequence[Inputs]) -> Batch:
        """Return the batch of these sentences, on the CPU."""
        if self._encoder is not None:
            pieces = [s.pieces for s in sentences if s.pieces is not None]
            return collate(windows=self._encoder.windows(pieces))
        if self._features is not None:
            return collate(features=[s.features for s in sentences if s.features is not None])
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
