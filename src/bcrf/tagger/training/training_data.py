"""The data of a training run: examples from files, and tensors for the network."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...chain import PAD
from .. import InputReader, Inputs, Tagger, Vocabularies, tasks
from ..data import DataError, WordVectors, read, read_word_vectors
from ..files import sha256_of_parts
from ..nn import ModelConfig
from ..nn.inputs import VectorWords, pad_masks
from ..nn.padding import padded
from ..tasks import Example, Ner, Task
from .config import DataConfig
from .fine_tuning import add_labels, add_words

__all__ = ["TrainingData", "TrainingItem", "prepare", "stack_targets"]


@dataclass(frozen=True)
class TrainingData:
    """The sentences of a training run.

    Args:
        task: the task, with the labels of the training sentences.
        train: the training sentences that have at least one token.
        dev: all dev sentences; None if the configuration names no dev file.
        vocabularies: the vocabularies of the training sentences.
        vectors: the pretrained vectors of the words; None if the network reads none.
        is_fine_tuning: whether task and vocabularies continue those of a saved model.
    """

    task: Task
    train: list[Example]
    dev: list[Example] | None
    vocabularies: Vocabularies
    vectors: WordVectors | None = None
    is_fine_tuning: bool = False

    @classmethod
    def read(
        cls, config: DataConfig, model: ModelConfig, seed: int, start: Tagger | None = None
    ) -> TrainingData:
        """Read the files that the configuration names.

        Args:
            start: the model that the training begins with, whose labels and words are kept.
        """
        sentences = list(read(config.train, config.format))
        task = tasks.fit(config.task, sentences, config.task_settings)
        if start is not None:
            task = add_labels(start.task, task)
        train = [example for example in task.annotated(sentences) if len(example)]
        if not train:
            raise DataError(config.train, None, "has no words; expected training sentences")
        dev = None
        if config.dev is not None:
            dev = task.annotated(list(read(config.dev, config.format)))
            if not any(map(len, dev)):
                raise DataError(config.dev, None, "has no words; expected dev sentences")
            warning = tasks.check_gold_labels(task, dev, config.dev)
            if warning is not None:
                warnings.warn(warning, stacklevel=2)
        if config.partial:
            assert isinstance(task, Ner)
            train = task.partial_split(train, seed, config.partial_reading)
        train = task.training_examples(train, seed)
        vectors = _read_vectors(model, [*train, *(dev or ())])
        vocabularies = Vocabularies.build(
            train,
            model,
            lowercase=config.lowercase,
            min_count=config.min_count,
            vectors=None if vectors is None else VectorWords(vectors.words, vectors.width),
        )
        if start is not None:
            vocabularies = add_words(start.vocabularies, vocabularies)
        return cls(task, train, dev, vocabularies, vectors, start is not None)

    def fingerprint(self) -> str:
        """Return a checksum of the data; a run is resumed only if it is unchanged."""
        return sha256_of_parts(json.dumps(value).encode() for value in self._content())

    def _content(self) -> Iterator[object]:
        """Yield the task, and the tokens and labels of each sentence, as JSON can write them."""
        yield self.task.to_dict()
        if self.is_fine_tuning:  # otherwise they follow from the sentences
            yield self.vocabularies.to_dict()
        for example in [*self.train, *(self.dev or ())]:
            known = example.labels or [
                None if labels is None else sorted(labels) for labels in example.allowed or ()
            ]
            yield [example.tokens, known]
        if self.vectors is not None:
            yield [self.vectors.words, self.vectors.numbers.tolist()]


def _read_vectors(model: ModelConfig, examples: Sequence[Example]) -> WordVectors | None:
    """Return the vectors of the words of the data, and of the first words of the file."""
    if model.vectors is None:
        return None
    words = {token for example in examples for token in example.tokens}
    words |= {word.lower() for word in words}
    return read_word_vectors(model.vectors, words.__contains__, model.vector_words)


@dataclass(frozen=True, slots=True)
class TrainingItem:
    """A training sentence as the inputs and targets of the network.

    Args:
        inputs: the inputs of the network.
        target: the tag of each token; with partial labels, the possible tags, bool [n, T].
        permitted: the tags that the text permits, bool [n, T]; None: all.
    """

    inputs: Inputs
    target: list[int] | Tensor
    permitted: Tensor | None


def prepare(examples: Sequence[Example], task: Task, reader: InputReader) -> list[TrainingItem]:
    """Return the training items; either all targets are tags, or all are sets of possible tags."""
    partial = any(example.allowed is not None for example in examples)
    items = []
    for example in examples:
        target = task.allowed(example) if partial else task.target(example)
        permitted = task.permitted_tags(example)
        if permitted is not None:
            _check_permitted(example, permitted, target)
        items.append(TrainingItem(reader(example.tokens), target, permitted))
    return items


def stack_targets(items: Sequence[TrainingItem], n: int) -> Tensor:
    """Return the targets of a batch in the form that `TaggerModel.loss` expects.

    The form is int64 [B, n], with -100 after the end of a sentence. With partial labels it is
    bool [B, n, T], with True after the end of a sentence.
    """
    whole = [item.target for item in items if not isinstance(item.target, Tensor)]
    if whole:
        return padded(whole, PAD)
    masks = [item.target for item in items if isinstance(item.target, Tensor)]
    stacked = pad_masks(masks, n, masks[0].shape[1])
    assert stacked is not None
    return stacked


def _check_permitted(example: Example, permitted: Tensor, target: list[int] | Tensor) -> None:
    """Raise if the text does not permit the label of a token."""
    if isinstance(target, Tensor):
        excluded = ~(permitted & target).any(1)
    else:
        excluded = ~permitted[torch.arange(len(target)), torch.tensor(target, dtype=torch.int64)]
    if bool(excluded.any()):
        position = int(excluded.nonzero()[0])
        token = example.tokens[position]
        raise example.error(
            position,
            f"{token!r} is in a word that contains white space, but white space ends a word in "
            "this model; set data.spaces to 'token' or 'auto'",
        )
