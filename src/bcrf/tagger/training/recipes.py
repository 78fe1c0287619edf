"""Default settings that depend on the task.

The paper does not state epochs, batch size, dropout and the rate of unknown words. With the values
here, networks that are trained from scratch come close to the numbers of the paper.
"""

from __future__ import annotations

from typing import Any

from ..config_tables import deep_merge

__all__ = ["recipe"]

_RECIPES: dict[str, dict[str, dict[str, Any]]] = {
    "pos": {
        "data": {"lowercase": True},
        "model": {"unknown_rate": 0.05},
        "training": {"epochs": 12},
    },
    "segmentation": {
        "data": {"lowercase": False},
        "model": {"unknown_rate": 0.03},
        "training": {"epochs": 10},
    },
    "ner": {
        "data": {"lowercase": False},
        "model": {"unknown_rate": 0.05},
        "training": {"epochs": 20},
    },
}

# The paper fine-tunes encoders with a tenth of the learning rate; the scorer keeps the full rate.
_PRETRAINED: dict[str, dict[str, Any]] = {
    "model": {"dropout": 0.1},
    "optimizer": {"learning_rate": 3e-5, "scorer_learning_rate": 3e-4},
    "training": {"epochs": 3},
}


def recipe(task: str, pretrained: bool = False) -> dict[str, dict[str, Any]]:
    """Return the default settings of a task, for a network with or without a pretrained encoder.

    Example:
        >>> from bcrf.tagger.training import recipe
        >>> recipe("ner")["training"], recipe("ner", pretrained=True)["training"]
        ({'epochs': 20}, {'epochs': 3})
    """
    return deep_merge(_RECIPES[task], _PRETRAINED if pretrained else {})
