"""Probabilities of the words and tags that a tagger predicts."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ...chain import LinearChain
from ...layers.probabilities import distribution, span_probabilities
from ..nn import TaggerModel, probability_solver
from ..tasks import Example, Segmentation, Task

__all__ = ["probabilities"]


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
    number = {label: index for index, label in enumerate(task.labels)}
    if not isinstance(task, Segmentation):
        marginals = model.marginals(chain).cpu()
        return [
            tuple(_chosen(row, [number[label] for label in labels]))
            for row, labels in zip(marginals, sequences, strict=True)
        ]
    # Ill-formed labels are repaired first; the repaired labels have the same words.
    spans = [task.words(*pair) for pair in zip(examples, sequences, strict=True)]
    tags = [
        [number[label] for label in task.repair(*pair)]
        for pair in zip(examples, sequences, strict=True)
    ]
    places = [(row, span.start, span.end) for row, words in enumerate(spans) for span in words]
    if not places:
        return [() for _ in examples]
    longest = max(end - start for _, start, end in places)
    sets = torch.ones(len(places), longest, len(task.labels), dtype=torch.bool)
    for one, (row, start, end) in zip(sets, places, strict=True):
        one[: end - start] = False
        one[torch.arange(end - start), torch.tensor(tags[row][start:end])] = True
    law = distribution(probability_solver(model.config.objective), chain)
    first = torch.tensor([place[:2] for place in places], device=chain.device)
    found = iter(span_probabilities(law, sets.to(chain.device), first[:, 0], first[:, 1]).tolist())
    return [tuple(next(found) for _ in words) for words in spans]


def _chosen(marginals: Tensor, tags: list[int]) -> list[float]:
    """Return the entries of the marginals [n, T] for these tags [n]."""
    position = torch.arange(len(tags))
    return marginals[position, torch.tensor(tags, dtype=torch.int64)].tolist()
