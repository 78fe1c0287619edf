"""Labels from a chain: a decoder by its name, and the repair of what it may get wrong."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..chain import LinearChain
from ..nn import TaggerModel, training_solver
from ..tasks import Example, Task, mbr_repair

__all__ = ["REPAIRS", "Labelled", "best_well_formed", "check_repair", "decoder_marginals", "label"]

REPAIRS = ("rule", "mbr", "none")
"""What is done where a decoder chose ill-formed labels: the task's rule (`Task.repair`), the best
well-formed labels by the decoder's own marginals (`mbr_repair`), or nothing."""

# Of Bregman decoders: the paper's 1/tau = 10.
_TEMPERATURE = 0.1


class Labelled(NamedTuple):
    """The labels of a sentence, and whether the decoder's own were ill-formed and changed."""

    labels: tuple[str, ...]
    repaired: bool


def check_repair(name: str) -> None:
    if name not in REPAIRS:
        raise ValueError(f"repair must be one of {', '.join(REPAIRS)}, got {name!r}")


def label(
    model: TaggerModel,
    task: Task,
    chain: LinearChain,
    examples: Sequence[Example],
    decoder: str,
    repair: str,
) -> list[Labelled]:
    """The labels of these sentences, whose chain is within the limits of the input."""
    chosen = [_named(task, tags) for tags in _rows(model.decode(chain, decoder), chain)]
    if repair == "none":
        return [Labelled(tuple(labels), False) for labels in chosen]
    found = []
    for example, labels in zip(examples, chosen, strict=True):
        repaired = task.repair(example, labels)
        found.append(Labelled(tuple(repaired), repaired != labels))
    changed = [row for row, (_, is_changed) in enumerate(found) if is_changed]
    if repair == "mbr" and changed:
        some = chain[changed]
        best = best_well_formed(task, some, decoder_marginals(decoder, some))
        for row, labels in zip(changed, best, strict=True):
            found[row] = Labelled(tuple(labels), True)
    return found


def best_well_formed(task: Task, chain: LinearChain, marginals: Tensor) -> list[list[str]]:
    """The best well-formed labels of each sentence by the tag marginals [B, n, T] of its chain."""
    best = mbr_repair(marginals, task.structure, chain.lengths, chain.unary.isfinite())
    return [_named(task, tags) for tags in _rows(best, chain)]


@torch.no_grad()
def decoder_marginals(name: str, chain: LinearChain) -> Tensor:
    """The tag marginals [B, n, T] whose largest entries a decoder chooses (one that chooses tags
    one by one: its name is also that of a solver)."""
    temperature = _TEMPERATURE if name.startswith("bregman") else 1.0
    return training_solver(name)(chain / temperature).tag_marginals


def _rows(tags: Tensor, chain: LinearChain) -> list[list[int]]:
    """Tags [B, n] as lists without padding."""
    lengths = chain.lengths.tolist()
    return [row[:length] for row, length in zip(tags.tolist(), lengths, strict=True)]


def _named(task: Task, tags: list[int]) -> list[str]:
    return [task.labels[tag] for tag in tags]
