"""Define how each bundled model is trained, and from what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["LICENCE", "RECIPES", "Recipe"]

LICENCE = "CC BY-SA 4.0"


@dataclass(frozen=True)
class Recipe:
    """How a bundled model is trained.

    A Chinese model is missing on purpose: the training file that we have is non-commercial.

    Args:
        does: what the model does, for users.
        data: the treebank, for users.
        files: the prefix of the names of its files, such as "en_ewt-ud".
        tasks: part of the model -> its task. The part "tagger" is the model; the part "tokenizer",
            if there is one, divides raw text for it.
        settings: part -> settings of `bcrf train` that differ from its defaults.
        licence: the licence of the treebank, and so of the weights.
    """

    does: str
    data: str
    files: str
    tasks: Mapping[str, str]
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    licence: str = LICENCE


RECIPES = {
    "en": Recipe(
        "English text: sentences, words, parts of speech",
        "UD English-EWT 2.15",
        "en_ewt-ud",
        {"tokenizer": "tokenization", "tagger": "pos"},
        {
            # The seed with the best F1 on dev, of 0 to 3: the F1 of sentences depends much on it.
            "tokenizer": {"training": {"seed": 1}},
            # The default network has 0.3 points more, but takes four times as long.
            "tagger": {"model": {"size": "small"}},
        },
    ),
    "ja": Recipe(
        "Japanese sentences: words, parts of speech",
        "UD Japanese-GSD 2.15",
        "ja_gsd-ud",
        {"tagger": "segmentation"},
    ),
}
"""All bundled models by name."""
