"""The settings that go with each task, unless others are given.

The paper leaves epochs, batch size, dropout and unknown words open; these reproduce its numbers
for networks that are trained from scratch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["merged", "recipe"]

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

# The paper fine-tunes at a tenth of the learning rate; what is new learns at the whole.
_PRETRAINED: dict[str, dict[str, Any]] = {
    "model": {"dropout": 0.1},
    "optimizer": {"learning_rate": 3e-5, "scorer_learning_rate": 3e-4},
    "training": {"epochs": 3},
}


def recipe(task: str, pretrained: bool = False) -> dict[str, dict[str, Any]]:
    """Settings by part of the config, for a network from scratch or with a pretrained encoder."""
    return merged(_RECIPES[task], _PRETRAINED if pretrained else {})


def merged(
    lower: Mapping[str, Mapping[str, Any]], upper: Mapping[str, Mapping[str, Any]]
) -> dict[str, dict[str, Any]]:
    """Both, part by part; `upper` where they differ."""
    parts = [*lower, *(name for name in upper if name not in lower)]
    return {name: {**lower.get(name, {}), **upper.get(name, {})} for name in parts}
