"""Default settings that depend on the task and on the network.

Without a setting of another network, the network reads features of the tokens: it is the tagger
that we recommend. Its recipes were chosen on the dev files of English-EWT, Japanese-GSD and
Chinese-GSD.

The networks of the paper are chosen by their settings. The paper does not state epochs, batch size,
dropout and the rate of unknown words. With the values here, networks that are trained from scratch
come close to the numbers of the paper.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..config_tables import deep_merge

__all__ = ["recipe"]

_Settings = dict[str, dict[str, Any]]

# The tables of features are small, and a batch uses a large part of them: dense updates of all rows
# take 0.8 of the time of a step with lazy ones (English-EWT, small network, one thread).
_FEATURES: _Settings = {
    "data": {"lowercase": False, "min_count": 2},
    "model": {"dropout": 0.4, "transitions": "shared", "score_width": 128},
    "optimizer": {
        "learning_rate": 2e-3,
        "beta2": 0.99,
        "warmup": 0.05,
        "clip": 5.0,
        "lazy": False,
    },
    "training": {"batch": 1500, "batch_unit": "tokens", "loss_unit": "tokens", "patience": 4},
}

_FEATURES_OF_TASK: dict[str, _Settings] = {
    "pos": {"model": {"features": "word", "context_width": 256}, "training": {"epochs": 8}},
    "segmentation": {
        "model": {"features": "character", "feature_dropout": 0.2},
        "training": {"epochs": 8},
    },
    "ner": {"model": {"features": "word"}, "training": {"epochs": 20}},
    "tokenization": {
        "data": {"min_count": 5},
        "model": {
            "features": "character",
            "feature_width": 24,
            "context_width": 48,
            "context_layers": 4,
            "context_dilation": 2,
            "score_width": 32,
            "dropout": 0.15,
        },
        "optimizer": {"learning_rate": 3e-3},
        "training": {"epochs": 6, "batch": 10_000},
    },
}

_SMALL: _Settings = {
    "model": {"feature_width": 48, "context_width": 128, "context_layers": 2, "score_width": 64}
}

_PAPER: dict[str, _Settings] = {
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
    "tokenization": {
        "data": {"lowercase": False, "min_count": 3},
        "model": {"unknown_rate": 0.0, "transitions": "shared"},
        "training": {"epochs": 8, "batch": 12},
    },
}

# The paper fine-tunes encoders with a tenth of the learning rate; the scorer keeps the full rate.
_PRETRAINED: _Settings = {
    "model": {"dropout": 0.1},
    "optimizer": {"learning_rate": 3e-5, "scorer_learning_rate": 3e-4},
    "training": {"epochs": 3},
}

# Settings of the networks of the paper.
_PAPER_SETTINGS = frozenset(
    {"layers", "pretrained", "window", "width", "heads", "hidden", "layer_dropout", "unknown_rate"}
    | {"characters", "character_width", "character_kernel", "forbidden_transitions"}
)


def recipe(task: str, model: Mapping[str, Any] | None = None) -> _Settings:
    """Return the default settings of a task for the network that some settings choose.

    Args:
        task: the name of the task.
        model: the settings of the model that are given. If they name a pretrained encoder, layers,
            a width or another setting of the networks of the paper, that network is chosen;
            otherwise, or if they name `features`, the network that reads features.

    Example:
        >>> from bcrf.tagger.training import recipe
        >>> recipe("ner")["model"]["features"], recipe("ner", {"layers": 2})["training"]
        ('word', {'epochs': 20})
        >>> recipe("ner", {"pretrained": "bert-base-cased"})["training"]
        {'epochs': 3}
    """
    model = model or {}
    if model.get("pretrained") is not None:
        return deep_merge(_PAPER[task], _PRETRAINED)
    features = model.get("features")
    if features == "none" or (features is None and not _PAPER_SETTINGS.isdisjoint(model)):
        return _PAPER[task]
    settings = deep_merge(_FEATURES, _FEATURES_OF_TASK[task])
    # The network of tokenization is small by default.
    is_smaller = model.get("size") == "small" and task != "tokenization"
    return deep_merge(settings, _SMALL) if is_smaller else settings
