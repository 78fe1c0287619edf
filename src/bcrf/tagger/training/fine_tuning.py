"""Fine-tuning: begin a training with the weights of a saved model.

The network, the task and the treatment of words are those of the model. Labels and words that only
the new data have are added behind those of the model, so all old numbers keep their meaning:

- The scorer keeps its rows of old labels; rows of new labels have the initial values of a new
  network.
- The embedding of a new word (or character) is that of the unknown word, which the model used for
  it so far. Before the first step, a model without new labels therefore predicts what the old model
  predicts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .. import ModelError, Tagger, Vocabularies
from ..data import Vocabulary
from ..model_folder.description import read_description
from ..model_folder.location import locate
from ..nn import (
    UNKNOWN,
    EncoderParts,
    ModelConfig,
    PretrainedEncoder,
    TaggerModel,
    default_decoder,
)
from ..tasks import Task

__all__ = [
    "add_labels",
    "add_words",
    "copy_weights",
    "encoder_parts",
    "inherited_settings",
    "load_start",
]

# Settings of the network that do not change its weights, so that they may differ.
_FREE = ("dropout", "layer_dropout", "unknown_rate", "objective", "temperature", "window")


def inherited_settings(path: str) -> dict[str, dict[str, Any]]:
    """Return the settings of a saved model that a fine-tuning takes over: data, model, decoding.

    Raises:
        ModelError: the folder holds no model.
    """
    try:
        values = read_description(locate(Path(path))).values
    except ModelError as error:
        raise ModelError(f"training.init_from: {error}") from error
    data = {name: value for name, value in values["task"].items() if name != "labels"}
    words = values["vocabularies"].get("words")
    if words is not None:
        data["lowercase"] = words["lowercase"]
    settings = {"data": data, "model": values["model"], "decoding": {"repair": values["repair"]}}
    if values["decoder"] != default_decoder(values["model"]["objective"]):
        settings["decoding"]["decoder"] = values["decoder"]
    return settings


def load_start(path: str | None) -> Tagger | None:
    """Return the model that a training begins with, on the CPU; None: it begins anew."""
    return None if path is None else Tagger.load(path, "cpu")


def add_labels(task: Task, fitted: Task) -> Task:
    """Return the task of a saved model with the further labels of the task of new data.

    Raises:
        ValueError: the tasks or their settings differ.
    """
    if dataclasses.replace(task, labels=()) != dataclasses.replace(fitted, labels=()):
        before, now = (
            {name: value for name, value in one.to_dict().items() if name != "labels"}
            for one in (task, fitted)
        )
        raise ValueError(
            f"training.init_from: the model is for {_shown(before)}, but the settings in data are "
            f"for {_shown(now)}; leave these settings out to take over those of the model"
        )
    new = [label for label in fitted.labels if label not in task.labels]
    return dataclasses.replace(task, labels=(*task.labels, *new))


def add_words(vocabularies: Vocabularies, fitted: Vocabularies) -> Vocabularies:
    """Return the vocabularies of a saved model with the further words of new data.

    The features of words and the pretrained vectors stay those of the model.
    """
    return dataclasses.replace(
        vocabularies,
        words=_extended(vocabularies.words, fitted.words),
        characters=_extended(vocabularies.characters, fitted.characters),
    )


def _extended(old: Vocabulary | None, new: Vocabulary | None) -> Vocabulary | None:
    if old is None or new is None:
        return old
    known = set(old.tokens)
    further = [token for token in new.tokens if token not in known]
    return dataclasses.replace(old, tokens=(*old.tokens, *further))


def encoder_parts(start: Tagger | None) -> EncoderParts | None:
    """Return configuration and tokenizer of the pretrained encoder of a model, if it has one."""
    if start is None or not isinstance(start.model.encoder, PretrainedEncoder):
        return None
    encoder = start.model.encoder
    return EncoderParts(encoder.module.config, encoder.tokenizer)


@torch.no_grad()
def copy_weights(model: TaggerModel, start: TaggerModel) -> None:
    """Copy the weights of a saved model into a new network with at least its labels and words.

    Raises:
        ValueError: the networks differ; the message names the settings.
    """
    old, new = start.state_dict(), model.state_dict()
    tables = {
        f"{name}.weight" for name, part in model.named_modules() if isinstance(part, nn.Embedding)
    }
    if old.keys() != new.keys():
        raise _different(model.config, start.config)
    for name, tensor in new.items():
        source = old[name]
        if name.startswith("scorer.pairs."):
            _copy_arcs(tensor, source, model, start)
        elif tensor.shape == source.shape:
            tensor.copy_(source)
        elif name in tables and tensor.shape[1:] == source.shape[1:] and len(tensor) > len(source):
            tensor.copy_(source[UNKNOWN].expand_as(tensor))
            tensor[: len(source)] = source
        elif _only_labels_differ(name, tensor, source, model, start):
            tensor[tuple(slice(size) for size in source.shape)] = source
        else:
            raise _different(model.config, start.config)


def _only_labels_differ(
    name: str, tensor: Tensor, source: Tensor, model: TaggerModel, start: TaggerModel
) -> bool:
    """Whether all dimensions whose sizes differ are the numbers of labels of the two networks."""
    labels = (model.sizes.tags, start.sizes.tags)
    return (
        name.startswith("scorer.")
        and tensor.dim() == source.dim()
        and all(
            pair[0] == pair[1] or pair == labels
            for pair in zip(tensor.shape, source.shape, strict=True)
        )
    )


def _copy_arcs(tensor: Tensor, source: Tensor, model: TaggerModel, start: TaggerModel) -> None:
    """Copy the rows of the scored pairs of labels; row k belongs to the k-th entry of `arcs`."""
    if tensor.shape[1:] != source.shape[1:]:
        raise _different(model.config, start.config)
    tags, old_tags = model.sizes.tags, start.sizes.tags
    row = {arc: number for number, arc in enumerate(model.scorer.arcs.tolist())}
    arcs = [arc // old_tags * tags + arc % old_tags for arc in start.scorer.arcs.tolist()]
    kept = [number for number, arc in enumerate(arcs) if arc in row]
    tensor[[row[arcs[number]] for number in kept]] = source[kept]


def _different(now: ModelConfig, before: ModelConfig) -> ValueError:
    named = [
        f"model.{name} is {value!r} (in the model: {getattr(before, name)!r})"
        for name, value in vars(now).items()
        if value != getattr(before, name) and name not in _FREE
    ]
    objective = f"model.objective is {now.objective!r} (in the model: {before.objective!r})"
    reason = ", ".join(named) or objective
    return ValueError(
        f"training.init_from: the weights of the model do not fit this network: {reason}; leave "
        "these settings out to take over those of the model"
    )


def _shown(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} = {value!r}" for name, value in values.items())
