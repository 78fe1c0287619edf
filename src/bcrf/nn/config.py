"""What a network looks like: the user's choices, and the sizes that the data give."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ..checks import check_count, check_number
from .methods import check_objective

__all__ = ["ModelConfig", "Sizes"]


@dataclass(frozen=True)
class ModelConfig:
    """The choices from which a `TaggerModel` is built; the defaults are the paper's.

    Args:
        layers: self-attentive layers on top of the word embeddings; 0: the embeddings alone.
        pretrained: folder or hub name of a Hugging Face encoder to use in place of embeddings and
            layers; its own width applies.
        window: most pieces that a pretrained encoder reads at once; None: as many as it can take.
        width: of the word embeddings and layers.
        heads, hidden: of a self-attentive layer; `heads` divides `width`.
        characters: "cnn" adds a convolution over the letters of a word to its embedding.
        character_width, character_kernel: of that convolution; the kernel is odd.
        dropout: of the states that the scorer reads, and of the embeddings below layers.
        layer_dropout: within self-attentive layers.
        unknown_rate: share of the words that training replaces by the unknown word.
        objective: what is trained, see `training_solver`.
        transitions: scores of adjacent tags: from the states of each "pairs" of words, "shared" by
            all, or "none". The objective "unstructured" has none in any case.
        score_width: hidden width of the scorer.
    """

    layers: int = 0
    pretrained: str | None = None
    window: int | None = None
    width: int = 768
    heads: int = 8
    hidden: int = 2048
    characters: Literal["none", "cnn"] = "none"
    character_width: int = 64
    character_kernel: int = 3
    dropout: float = 0.3
    layer_dropout: float = 0.1
    unknown_rate: float = 0.05
    objective: str = "crf"
    transitions: Literal["pairs", "shared", "none"] = "pairs"
    score_width: int = 256

    def __post_init__(self) -> None:
        check_count("layers", self.layers)
        for name in ("width", "heads", "hidden", "character_width", "score_width"):
            check_count(name, getattr(self, name), least=1)
        for name in ("dropout", "layer_dropout", "unknown_rate"):
            rate = getattr(self, name)
            check_number(name, rate)
            if not 0 <= rate < 1:
                raise ValueError(f"{name} must be in [0, 1), got {rate}")
        for name, known in _CHOICES.items():
            if getattr(self, name) not in known:
                raise ValueError(f"{name} must be one of {known}, got {getattr(self, name)!r}")
        check_count("character_kernel", self.character_kernel, least=1)
        if self.character_kernel % 2 == 0:
            raise ValueError(f"character_kernel must be odd, got {self.character_kernel}")
        if self.layers and self.width % self.heads:
            raise ValueError(f"heads must divide width = {self.width}, got {self.heads}")
        if self.layers and self.width % 2:
            raise ValueError(f"width must be even where there are layers, got {self.width}")
        if self.pretrained is not None:
            self._check_pretrained()
        check_objective(self.objective)

    def _check_pretrained(self) -> None:
        if not isinstance(self.pretrained, str) or not self.pretrained:
            raise TypeError(f"pretrained must be a folder or hub name, got {self.pretrained!r}")
        if self.layers:
            raise ValueError(f"layers must be 0 with a pretrained encoder, got {self.layers}")
        if self.characters != "none":
            raise ValueError("characters must be 'none' with a pretrained encoder")
        if self.window is not None:
            check_count("window", self.window, least=1)

    @property
    def uses_words(self) -> bool:
        """Whether the network reads word ids (else it reads the pieces of a pretrained encoder)."""
        return self.pretrained is None

    @property
    def uses_characters(self) -> bool:
        return self.characters != "none"

    def to_dict(self) -> dict[str, Any]:
        """Plain types, for JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ModelConfig:
        """The config with these values, defaults elsewhere; unknown keys are an error."""
        known = [field.name for field in dataclasses.fields(cls)]
        unknown = [key for key in values if key not in known]
        if unknown:
            raise ValueError(
                f"unknown key {unknown[0]!r} in the model's config; expected {', '.join(known)}"
            )
        return cls(**values)


_CHOICES: dict[str, tuple[object, ...]] = {
    "characters": ("none", "cnn"),
    "transitions": ("pairs", "shared", "none"),
}


@dataclass(frozen=True)
class Sizes:
    """How many tags, and how many words and characters the vocabularies have (0: none is used)."""

    tags: int
    words: int = 0
    characters: int = 0

    def __post_init__(self) -> None:
        check_count("tags", self.tags, least=1)
        check_count("words", self.words)
        check_count("characters", self.characters)
