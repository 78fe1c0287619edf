"""Probabilities of the words, mentions and tags that a tagger predicts."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ...chain import LinearChain
from ...layers.probabilities import distribution, span_probabilities
from ...tag_schemes import parse_label
from ..nn import TaggerModel, probability_solver
from ..tasks import Example, Segmentation, Task

__all__ = ["continuing_tags", "item_probabilities", "probabilities"]


@torch.no_grad()
def probabilities(
    model: TaggerModel,
    task: Task,
    chain: LinearChain,
    examples: Sequence[Example],
    sequences: Sequence[Sequence[str]],
) -> list[tuple[float, ...]]:
    """Return, for each sentence, the probability of each word's tag under the model.

    For tasks on words, this is the marginal of the word's label. For segmentation, it is the joint
    probability of the labels of the word's characters, that is, of the word with its tag.
    """
    if isinstance(task, Segmentation):
        return item_probabilities(model, task, chain, examples, sequences)
    number = {label: index for index, label in enumerate(task.labels)}
    marginals = model.marginals(chain).cpu()
    return [
        tuple(_chosen(row, [number[label] for label in labels]))
        for row, labels in zip(marginals, sequences, strict=True)
    ]


@torch.no_grad()
def item_probabilities(
    model: TaggerModel,
    task: Task,
    chain: LinearChain,
    examples: Sequence[Example],
    sequences: Sequence[Sequence[str]],
) -> list[tuple[float, ...]]:
    """Return, for each sentence, the probability of each of its items (see `Task.items`).

    If items are spans, it is the joint probability of the labels of the span, and of a next label
    that does not continue it.
    """
    if not task.has_spans:
        return probabilities(model, task, chain, examples, sequences)
    number = {label: index for index, label in enumerate(task.labels)}
    # Ill-formed labels are repaired first; the repaired labels have the same items.
    repaired = [task.repair(*pair) for pair in zip(examples, sequences, strict=True)]
    items = [task.items(*pair) for pair in zip(examples, repaired, strict=True)]
    places = [(row, item) for row, spans in enumerate(items) for item in spans]
    if not places:
        return [() for _ in examples]
    tags = [
        torch.tensor([number[label] for label in repaired[row][item.start : item.end]])
        for row, item in places
    ]
    continuing = continuing_tags(task.labels)[torch.stack([of_item[-1] for of_item in tags])]
    closing = int(bool(continuing.any()))  # in BIES and BIOES the last label closes the span
    sets = torch.ones(
        len(places), max(map(len, tags)) + closing, len(task.labels), dtype=torch.bool
    )
    for one, of_item, further in zip(sets, tags, continuing, strict=True):
        one[: len(of_item)] = False
        one[torch.arange(len(of_item)), of_item] = True
        if closing:
            one[len(of_item)] = ~further
    law = distribution(probability_solver(model.config.objective), chain)
    first = torch.tensor([(row, item.start) for row, item in places], device=chain.device)
    found = iter(span_probabilities(law, sets.to(chain.device), first[:, 0], first[:, 1]).tolist())
    return [tuple(next(found) for _ in spans) for spans in items]


def continuing_tags(labels: Sequence[str]) -> Tensor:
    """Return bool [T, T]: whether a span that ends with the first tag could go on with the second.

    Example:
        >>> continuing_tags(["O", "B-PER", "I-PER", "I-LOC"]).nonzero().tolist()
        [[1, 2], [2, 2], [3, 3]]
    """
    parsed = [parse_label(label) for label in labels]
    types = {type_: number for number, type_ in enumerate({label.type for label in parsed})}
    numbers = torch.tensor([types[label.type] for label in parsed])
    open_, inside = (torch.tensor([x.prefix in some for x in parsed]) for some in ("BI", "IE"))
    same_type = numbers.unsqueeze(1) == numbers
    return open_.unsqueeze(1) & inside & same_type


def _chosen(marginals: Tensor, tags: list[int]) -> list[float]:
    """Return the entries of the marginals [n, T] for these tags [n]."""
    position = torch.arange(len(tags))
    return marginals[position, torch.tensor(tags, dtype=torch.int64)].tolist()
