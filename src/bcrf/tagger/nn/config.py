"""The configuration of a network: choices of the user, and sizes that follow from the data."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from ...checks import check_count
from ..config_tables import COUNT, POSITIVE, SHARE, SIZE, Limit, check_fields, from_table
from .methods import check_objective

__all__ = ["ModelConfig", "Sizes"]

_ODD = Limit(lambda value: value >= 1 and value % 2 == 1, "an odd integer of at least 1")


@dataclass(frozen=True)
class ModelConfig:
    """The network and its training objective; the defaults are those of the paper.

    Args:
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
        check_objective(self.objective)
        if self.scores_forbidden and not (
            self.objective.startswith("mean_field") and self.transitions == "pairs"
        ):
            raise ValueError(
                "forbidden_transitions = 'scored' needs the objective mean_field and transitions = "
                f"'pairs', got {self.objective!r} and {self.transitions!r}"
            )

    @property
    def scores_forbidden(self) -> bool:
        """Whether forbidden transitions have scores."""
        return self.forbidden_transitions == "scored"

    @property
    def uses_words(self) -> bool:
        """Whether the network reads word ids, not the pieces of a pretrained encoder."""
        return self.pretrained is None

    @property
    def uses_characters(self) -> bool:
        """Whether the network reads the characters of words."""
        return self.characters != "none"

    def to_dict(self) -> dict[str, Any]:
        """Return the configuration as a table of plain values, for JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ModelConfig:
        """Build a configuration; settings that are left out have their defaults."""
        return from_table(cls, values)


@dataclass(frozen=True)
class Sizes:
    """Number of tags, and sizes of the vocabularies of words and characters (0: not used)."""

    tags: int
    words: int = 0
    characters: int = 0

    def __post_init__(self) -> None:
        check_count("tags", self.tags, least=1)
        check_count("words", self.words)
        check_count("characters", self.characters)
