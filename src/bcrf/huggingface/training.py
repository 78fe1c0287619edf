"""Helpers for `Trainer`: a metric of entities, and learning rates of their own for transitions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from torch import nn

from ..chain import PAD
from ..checks import check_number
from ..layers import ChainLayer
from ..tagger.tasks.metrics import MentionF1
from .config import CRFTokenClassificationConfig

__all__ = ["compute_metrics_for", "parameter_groups"]


def compute_metrics_for(
    config: CRFTokenClassificationConfig,
) -> Callable[[Any], dict[str, float]]:
    """Return a function for the argument `compute_metrics` of `Trainer`.

    Its result has "accuracy" (of words), and, if the configuration has a tag scheme, "f1",
    "precision", "recall" and the number of gold mentions, over all types ("f1") and for each type
    ("f1/PER"). A predicted mention is right if its start, end and type are those of a gold mention.
    Only positions with a label count.

    Example:
        >>> import numpy as np
        >>> from transformers import BertConfig, EvalPrediction
        >>> from bcrf.huggingface import CRFTokenClassificationConfig, compute_metrics_for
        >>> config = CRFTokenClassificationConfig(BertConfig(), ["O", "B-PER", "I-PER"], "IOB2")
        >>> tags, gold = np.array([[-100, 1, 0, 1]]), np.array([[-100, 1, 0, 0]])
        >>> found = compute_metrics_for(config)(EvalPrediction(tags, gold))
        >>> found["precision"], found["recall"]
        (0.5, 1.0)
    """
    labels = config.labels

    def compute_metrics(prediction: Any) -> dict[str, float]:
        tags = prediction.predictions
        tags = np.asarray(tags[0] if isinstance(tags, tuple | list) else tags)
        gold = np.asarray(prediction.label_ids)
        _check_tags(tags, gold)
        mentions = MentionF1()
        right = total = 0
        for number, (predicted, correct) in enumerate(zip(tags, gold, strict=True)):
            kept = correct != PAD
            if bool((predicted[kept] == PAD).any()):
                raise ValueError(
                    f"sentence {number}: a position has a label but no predicted tag; word_mask "
                    "must be 1 at every position with a label"
                )
            right += int((predicted[kept] == correct[kept]).sum())
            total += int(kept.sum())
            if config.scheme is not None:
                mentions.add_labels(
                    [labels[tag] for tag in correct[kept]],
                    [labels[tag] for tag in predicted[kept]],
                )
        result = {"accuracy": right / total if total else 0.0}
        return result if config.scheme is None else mentions.result() | result

    return compute_metrics


def _check_tags(tags: Any, gold: Any) -> None:
    if tags.dtype.kind != "i" or tags.ndim != 2:
        raise TypeError(
            f"predictions: expected the decoded tags [sentences, positions] of a "
            f"CRFForTokenClassification, got {tags.dtype} {list(tags.shape)}"
        )
    if tags.shape != gold.shape:
        raise ValueError(
            f"predictions are {list(tags.shape)}, but the labels are {list(gold.shape)}"
        )


def parameter_groups(
    model: nn.Module,
    learning_rate: float,
    *,
    transition_factor: float = 100.0,
    weight_decay: float = 0.0,
) -> list[dict[str, Any]]:
    """Return parameter groups for an optimizer, with a learning rate of their own for transitions.

    The transitions of all bcrf layers in the model get `learning_rate * transition_factor` and no
    weight decay. They start near zero, but a pretrained encoder needs a small learning rate; so
    factors from 10 to 1000 are usual. Biases and the weights of norms get no weight decay, either.
    A scheduler multiplies all learning rates by the same number.

    Args:
        model: any module, such as a `CRFForTokenClassification` or your own `PreTrainedModel`.
        learning_rate: of all other parameters.
        transition_factor: a number > 0.
        weight_decay: of parameters with two or more axes.

    Example:
        >>> import torch, bcrf
        >>> from bcrf.huggingface import parameter_groups
        >>> model = torch.nn.ModuleList([torch.nn.Linear(4, 3), bcrf.ExactCRF(3)])
        >>> [group["lr"] for group in parameter_groups(model, 0.001, transition_factor=50)]
        [0.001, 0.001, 0.05]
        >>> optimizer = torch.optim.AdamW(parameter_groups(model, 3e-5))
    """
    for name, value in (
        ("learning_rate", learning_rate),
        ("transition_factor", transition_factor),
        ("weight_decay", weight_decay),
    ):
        check_number(name, value)
        if value < 0 or (value == 0 and name == "transition_factor"):
            raise ValueError(f"{name} must be positive, got {value}")
    layers = [module for module in model.modules() if isinstance(module, ChainLayer)]
    if not layers:
        raise ValueError("the model has no layer of bcrf, such as bcrf.ExactCRF")
    transitions = {id(p): p for layer in layers for p in layer.parameters(recurse=False)}
    others = [p for p in model.parameters() if p.requires_grad and id(p) not in transitions]
    groups: list[tuple[list[nn.Parameter], float, float]] = [
        ([p for p in others if p.dim() > 1], learning_rate, weight_decay),
        ([p for p in others if p.dim() <= 1], learning_rate, 0.0),
        (
            [p for p in transitions.values() if p.requires_grad],
            learning_rate * transition_factor,
            0.0,
        ),
    ]
    return [
        {"params": params, "lr": rate, "weight_decay": decay}
        for params, rate, decay in groups
        if params
    ]
