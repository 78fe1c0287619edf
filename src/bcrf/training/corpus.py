"""Training data, ready for the network."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .. import tasks
from ..chain import PAD
from ..data import DataError, read
from ..nn import ModelConfig
from ..nn.padding import padded
from ..tagging import InputReader, Inputs, Vocabularies
from ..tagging.inputs import pad_masks
from ..tasks import Example, Ner, Task
from .config import DataConfig

__all__ = ["Corpus", "Item", "prepare", "stack_targets"]


@dataclass(frozen=True)
class Corpus:
    """What there is to learn from.

    Args:
        task: with the labels of the training sentences.
        train: its sentences, but for those without a token.
        dev: all of its sentences; None if there is no such file.
        vocabularies: of the training sentences.
    """

    task: Task
    train: list[Example]
    dev: list[Example] | None
    vocabularies: Vocabularies

    @classmethod
    def read(cls, config: DataConfig, model: ModelConfig, seed: int) -> Corpus:
        """Read the files that the config names."""
        sentences = list(read(config.train, config.format))
        task = tasks.fit(config.task, sentences, **config.task_settings)
        train = [example for example in task.annotated(sentences) if len(example)]
        if not train:
            raise DataError(config.train, None, "holds no words; expected training sentences")
        dev = None
        if config.dev is not None:
            dev = task.annotated(list(read(config.dev, config.format)))
            if not any(map(len, dev)):
                raise DataError(config.dev, None, "holds no words; expected dev sentences")
        if config.partial:
            assert isinstance(task, Ner)
            train = task.partial_split(train, seed, config.partial_reading)
        vocabularies = Vocabularies.build(
            train, model, lowercase=config.lowercase, min_count=config.min_count
        )
        return cls(task, train, dev, vocabularies)

    def fingerprint(self) -> str:
        """The same for the same data, wherever they are: what a run must not change under way."""
        total = hashlib.sha256(json.dumps(self.task.to_dict()).encode())
        for example in [*self.train, *(self.dev or ())]:
            known = example.labels or [
                None if labels is None else sorted(labels) for labels in example.allowed or ()
            ]
            total.update(json.dumps([example.tokens, known]).encode())
        return total.hexdigest()


@dataclass(frozen=True, slots=True)
class Item:
    """A training sentence as numbers.

    Args:
        inputs: what the network reads.
        target: the numbers of the labels; or, of partial labels, bool [n, T].
        limits: bool [n, T], what the input permits; None: everything.
    """

    inputs: Inputs
    target: list[int] | Tensor
    limits: Tensor | None


def prepare(examples: Sequence[Example], task: Task, reader: InputReader) -> list[Item]:
    """The sentences as numbers: all with one label per token, or all with sets of labels."""
    partial = any(example.allowed is not None for example in examples)
    items = []
    for example in examples:
        target = task.allowed(example) if partial else task.target(example)
        limits = task.limits(example)
        if limits is not None:
            _check_within(example, limits, target)
        items.append(Item(reader(example.tokens), target, limits))
    return items


def stack_targets(items: Sequence[Item], n: int) -> Tensor:
    """What the loss takes: int64 [B, n], -100 beyond the length; of partial labels bool [B, n, T],
    True beyond the length."""
    whole = [item.target for item in items if not isinstance(item.target, Tensor)]
    if whole:
        return padded(whole, PAD)
    masks = [item.target for item in items if isinstance(item.target, Tensor)]
    stacked = pad_masks(masks, n, masks[0].shape[1])
    assert stacked is not None
    return stacked


def _check_within(example: Example, limits: Tensor, target: list[int] | Tensor) -> None:
    """Raise where the right label is not among those that the input permits."""
    if isinstance(target, Tensor):
        lost = ~(limits & target).any(1)
    else:
        lost = ~limits[torch.arange(len(target)), torch.tensor(target, dtype=torch.int64)]
    if bool(lost.any()):
        position = int(lost.nonzero()[0])
        token = example.tokens[position]
        raise example.error(
            position,
            f"{token!r} is in a word that holds white space, where this model expects the end of a "
            "word; set data.spaces to 'token' or 'auto'",
        )
