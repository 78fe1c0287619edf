"""The configuration of a network: choices of the user, and sizes that follow from the data."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from ...checks import check_count
from ..config_tables import COUNT, POSITIVE, SHARE, SIZE, Limit, check_fields, from_table
from .methods import check_objective

__all__ = ["ModelConfig", "Sizes"]

_FARTHEST = 256  # distance to the farthest words that a dilated convolution reads

_ODD = Limit(lambda value: value >= 1 and value % 2 == 1, "an odd integer of at least 1")


@dataclass(frozen=True)
class ModelConfig:
    """The network and its training objective; the defaults are those of the paper.

    Args:
        features: "word" or "character": the network reads features of the tokens, which are words
            or characters (see `FeatureVocabulary`), and has a light context encoder. It replaces
            embeddings and layers. `bcrf train` chooses it unless a setting of another network is
            given: `pretrained`, `layers`, `width`, `characters` and what belongs to them.
        size: "default" or "small": sizes of a network with features that `bcrf train` chooses where
            they are not given. The small network tags twice as fast.
        feature_width: width of the embedding of a feature.
        feature_dropout: share of the features of a token that are dropped in training.
        context: the context encoder: convolutions ("cnn"), or a "bilstm".
        context_width: width of the states of the context encoder.
        context_layers: number of its layers.
        context_dilation: convolutions: the distance to the neighbours that a layer reads is 1 in
            the first layer, and `context_dilation` times that of the layer before in the others.
        vectors: text file of fastText or GloVe with pretrained vectors, which the network with
            features reads in addition. Those of the words of the data are saved with the model.
        vector_words: number of further words, from the beginning of that file, whose vectors are
            saved with the model.
        layers: number of self-attentive layers on top of the word embeddings; with 0, the scorer
            reads the embeddings.
        pretrained: folder or hub name of a Hugging Face encoder that replaces embeddings and
            layers; it has its own width.
        window: largest number of pieces that the pretrained encoder reads at once; by default the
            largest that it supports.
        width: width of the word embeddings and layers.
        heads: number of attention heads of a layer; it divides `width`.
        hidden: hidden width of a layer.
        characters: "cnn" adds a convolution over the characters of a word to its embedding.
        character_width: width of that convolution.
        character_kernel: kernel size of that convolution, an odd number.
        dropout: dropout of the states that the scorer reads, and of the embeddings below layers.
        layer_dropout: dropout within layers.
        unknown_rate: share of the training words that are replaced by the unknown word.
        objective: training objective: unstructured, crf, mean_field[-K] or bregman[-K][-relaxed],
            with K iterations; mean_field-K-uniform begins with uniform distributions.
        temperature: tau > 0 of the training loss tau l(w / tau; y), where w are the scores. The
            model then uses the scores w / tau everywhere, so its probabilities and decoders need no
            temperature of their own.
        forbidden_transitions: what the scorer does with transitions that the task forbids.
            "removed": they get no score. "scored": they get learned scores, because mean field
            cannot represent a removed transition; decoders that can represent one still remove
            them. "scored" needs the objective mean_field and the transitions "pairs".
        transitions: transition scores: computed from the states of each pair of words ("pairs"),
            "shared" by all positions, or "none". The objective "unstructured" never has any.
        score_width: hidden width of the scorer.

    Example:
        >>> ModelConfig(layers=2, objective="bregman-10").width
        768
        >>> ModelConfig(dropout=1.5)
        Traceback (most recent call last):
        ValueError: dropout: expected a number of at least 0 and less than 1, got 1.5
    """

    features: Literal["none", "word", "character"] = "none"
    size: Literal["default", "small"] = "default"
    feature_width: Annotated[int, SIZE] = 64
    feature_dropout: Annotated[float, SHARE] = 0.15
    context: Literal["cnn", "bilstm"] = "cnn"
    context_width: Annotated[int, SIZE] = 192
    context_layers: Annotated[int, SIZE] = 3
    context_dilation: Annotated[int, SIZE] = 1
    vectors: Annotated[str, Limit(bool, "the path of a file with vectors")] | None = None
    vector_words: Annotated[int, COUNT] = 20_000
    layers: Annotated[int, COUNT] = 0
    pretrained: Annotated[str, Limit(bool, "a folder or hub name")] | None = None
    window: Annotated[int, SIZE] | None = None
    width: Annotated[int, SIZE] = 768
    heads: Annotated[int, SIZE] = 8
    hidden: Annotated[int, SIZE] = 2048
    characters: Literal["none", "cnn"] = "none"
    character_width: Annotated[int, SIZE] = 64
    character_kernel: Annotated[int, _ODD] = 3
    dropout: Annotated[float, SHARE] = 0.3
    layer_dropout: Annotated[float, SHARE] = 0.1
    unknown_rate: Annotated[float, SHARE] = 0.05
    objective: str = "crf"
    temperature: Annotated[float, POSITIVE] = 1.0
    forbidden_transitions: Literal["removed", "scored"] = "removed"
    transitions: Literal["pairs", "shared", "none"] = "pairs"
    score_width: Annotated[int, SIZE] = 256

    def __post_init__(self) -> None:
        check_fields(self)
        if self.layers and self.width % self.heads:
            raise ValueError(f"heads must divide width = {self.width}, got {self.heads}")
        if self.layers and self.width % 2:
            raise ValueError(f"width must be even if there are layers, got {self.width}")
        if self.pretrained is not None:
            if self.layers:
                raise ValueError(f"layers must be 0 with a pretrained encoder, got {self.layers}")
            if self.characters != "none":
                raise ValueError("characters must be 'none' with a pretrained encoder")
        if self.uses_features:
            self._check_features()
        elif self.vectors is not None:
            raise ValueError("vectors: pretrained vectors need the network with features")
        check_objective(self.objective)
        if self.scores_forbidden and not (
            self.objective.startswith("mean_field") and self.transitions == "pairs"
        ):
            raise ValueError(
                "forbidden_transitions = 'scored' needs the objective mean_field and transitions = "
                f"'pairs', got {self.objective!r} and {self.transitions!r}"
            )

    def _check_features(self) -> None:
        """Raise if the settings of a network with features contradict each other."""
        for name, without in (("layers", 0), ("pretrained", None), ("characters", "none")):
            if getattr(self, name) != without:
                raise ValueError(
                    f"{name} belongs to a network without features; set features to 'none'"
                )
        # Not as a power: the settings of a model need not be trusted, and it could be gigantic.
        most_layers = 1 + math.log(_FARTHEST, max(2, self.context_dilation))
        if self.context_dilation > 1 and self.context_layers > most_layers + 1e-9:
            raise ValueError(
                f"context_dilation: with a dilation of {self.context_dilation}, expected at most "
                f"{int(most_layers + 1e-9)} layers, got context_layers = {self.context_layers}: "
                f"the last one would read words at a distance of more than {_FARTHEST}"
            )
        if self.context == "bilstm" and self.context_width % 2:
            raise ValueError(
                f"context_width must be even for a bilstm, got {self.context_width}, because each "
                "direction has half of it"
            )

    @property
    def scores_forbidden(self) -> bool:
        """Whether forbidden transitions have scores."""
        return self.forbidden_transitions == "scored"

    @property
    def uses_words(self) -> bool:
        """Whether the network reads word ids, not features or the pieces of words."""
        return self.pretrained is None and not self.uses_features

    @property
    def uses_features(self) -> bool:
        """Whether the network reads features of the tokens."""
        return self.features != "none"

    @property
    def uses_characters(self) -> bool:
        """Whether the network reads the characters of words."""
        return self.characters != "none"

    @property
    def summary(self) -> str:
        """The network in a few words."""
        if self.uses_features:
            return (
                f"{self.features} features, {self.context} of {self.context_layers} layers "
                f"of width {self.context_width}"
            )
        if self.pretrained is not None:
            return f"pretrained {self.pretrained}"
        return f"{self.layers} layers of width {self.width}"

    def to_dict(self) -> dict[str, Any]:
        """Return the configuration as a table of plain values, for JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ModelConfig:
        """Build a configuration; settings that are left out have their defaults."""
        return from_table(cls, values)


@dataclass(frozen=True)
class Sizes:
    """Number of tags, and sizes of the vocabularies; 0: not used.

    Args:
        tags: number of tags.
        words, characters: number of ids of words and of characters.
        feature_rows: number of rows of the embeddings of features.
        features: number of features of a token.
        vectors: number of pretrained vectors.
        vector_width: width of the pretrained vectors.
    """

    tags: int
    words: int = 0
    characters: int = 0
    feature_rows: int = 0
    features: int = 0
    vectors: int = 0
    vector_width: int = 0

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            check_count(field.name, getattr(self, field.name), least=int(field.name == "tags"))
