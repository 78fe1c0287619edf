"""Batches: sentences as the tensors that a network reads."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, overload

import torch
from torch import Tensor

from .padding import Packing, padded
from .pieces import Windows

__all__ = [
    "PADDING",
    "UNKNOWN",
    "Batch",
    "FeatureIds",
    "Spellings",
    "collate",
    "copy_to_device",
]

PADDING, UNKNOWN = 0, 1
"""Ids of the first two entries of every vocabulary."""


@dataclass(frozen=True)
class Spellings:
    """The characters of the U distinct words of a batch, one word after the other.

    Args:
        characters: int64 [C], character ids; `PADDING` means no character.
        sizes: int64 [U], number of characters of each distinct word, at least 1; their sum is C.
        index: int64 [B, n], the distinct word at each position; 0 is the padding.
    """

    characters: Tensor
    sizes: Tensor
    index: Tensor


@dataclass(frozen=True)
class FeatureIds:
    """The features of the U distinct words of a batch.

    Args:
        ids: int64 [U, F], the ids of the features of each distinct word.
        index: int64 [B, n], the distinct word at each position; 0 in the padding.
    """

    ids: Tensor
    index: Tensor


@dataclass(frozen=True)
class Batch:
    """B sentences of up to n words.

    Args:
        lengths: int64 [B], number of words.
        words: int64 [B, n], word ids, `PADDING` after the end of a sentence; None if the network
            reads no word ids.
        spellings: the characters, for networks that read them.
        windows: the word pieces, for pretrained encoders.
        features: the features of words, for networks that read them.
        packing: where the words are in the padded tensors; None: it is computed from `lengths`
            where it is needed, which makes the host wait for a GPU.
    """

    lengths: Tensor
    words: Tensor | None = None
    spellings: Spellings | None = None
    windows: Windows | None = None
    features: FeatureIds | None = None
    packing: Packing | None = None

    @overload
    def to(self, dtype: torch.dtype, non_blocking: bool = ..., copy: bool = ...) -> Batch: ...

    @overload
    def to(
        self,
        device: torch.device | str | int | None = ...,
        dtype: torch.dtype | None = ...,
        non_blocking: bool = ...,
        copy: bool = ...,
    ) -> Batch: ...

    @overload
    def to(self, other: Tensor, non_blocking: bool = ..., copy: bool = ...) -> Batch: ...

    def to(self, *args: Any, **kwargs: Any) -> Batch:
        """Return the batch with `Tensor.to` applied to every tensor."""
        return self._map(lambda tensor: tensor.to(*args, **kwargs))

    def to_device(self, device: torch.device) -> Batch:
        """Return the batch on a device; the host does not wait for a GPU (`copy_to_device`)."""
        return self._map(lambda tensor: copy_to_device(tensor, device))

    def _map(self, function: Callable[[Tensor], Tensor]) -> Batch:
        """Return the batch with the function applied to every tensor."""

        def mapped(value: Any) -> Any:
            if isinstance(value, Tensor):
                return function(value)
            if dataclasses.is_dataclass(value) and not isinstance(value, type):
                parts = {f.name: mapped(getattr(value, f.name)) for f in dataclasses.fields(value)}
                return dataclasses.replace(value, **parts)
            return value

        batch: Batch = mapped(self)
        return batch


def copy_to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Return the tensor on a device; a copy from the CPU to a GPU does not wait for the GPU.

    Such a copy needs pinned memory: from other memory, CUDA copies only after all work before it.
    torch keeps the pinned memory until the copy is done.
    """
    if device.type == "cuda" and tensor.is_cpu:
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def collate(
    words: Sequence[Sequence[int]] | None = None,
    characters: Sequence[Sequence[Sequence[int]]] | None = None,
    windows: Windows | None = None,
    features: Sequence[Sequence[bytes]] | None = None,
) -> Batch:
    """Return the batch of these sentences.

    Args:
        words: the word ids of each sentence.
        characters: the character ids of each word of each sentence.
        windows: the word pieces of the sentences, from `Frame.windows`.
        features: the ids of the features of each word, from `FeatureVocabulary.ids`.

    Example:
        >>> collate([[5, 7, 9], [4]]).words
        tensor([[5, 7, 9],
                [4, 0, 0]])
    """
    lengths = {
        "words": None if words is None else [len(sentence) for sentence in words],
        "characters": None if characters is None else [len(sentence) for sentence in characters],
        "windows": None if windows is None else windows.lengths.tolist(),
        "features": None if features is None else [len(sentence) for sentence in features],
    }
    given = {name: sizes for name, sizes in lengths.items() if sizes is not None}
    if not given:
        raise ValueError("expected words, characters, windows or features; all are None")
    sizes = next(iter(given.values()))
    for name, other in given.items():
        if other != sizes:
            raise ValueError(
                f"{' and '.join(given)} must have the same sentences: {next(iter(given))} has "
                f"lengths {sizes}, {name} has {other}"
            )
    lengths_tensor = torch.tensor(sizes, dtype=torch.int64)
    return Batch(
        lengths_tensor,
        None if words is None else padded(words, PADDING),
        None if characters is None else _spellings(characters),
        windows,
        None if features is None else _feature_ids(features),
        Packing.of(lengths_tensor, max(sizes, default=0)),
    )


def _spellings(characters: Sequence[Sequence[Sequence[int]]]) -> Spellings:
    """Return the spellings of the distinct words; a word without characters is spelt as padding."""
    number: dict[tuple[int, ...], int] = {(PADDING,): 0}
    index = [
        [number.setdefault(tuple(word) or (PADDING,), len(number)) for word in sentence]
        for sentence in characters
    ]
    letters = [letter for word in number for letter in word]
    return Spellings(
        torch.tensor(letters, dtype=torch.int64),
        torch.tensor([len(word) for word in number], dtype=torch.int64),
        padded(index, 0),
    )


def _feature_ids(features: Sequence[Sequence[bytes]]) -> FeatureIds:
    """Return the features of the distinct words; a sentence has the same number for each word."""
    number: dict[bytes, int] = {}
    index = [[number.setdefault(word, len(number)) for word in sentence] for sentence in features]
    width = len(next(iter(number), b""))
    if any(len(word) != width for word in number):
        raise ValueError("features: all words must have the same number of features")
    packed = bytearray().join(number)
    ids = torch.frombuffer(packed, dtype=torch.int32) if packed else torch.empty(0)
    return FeatureIds(ids.long().view(len(number), width // 4), padded(index, 0))
