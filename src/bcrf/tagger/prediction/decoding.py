"""Decode a chain with a decoder given by its name, and repair ill-formed labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from ...chain import LinearChain
from ...decoding import decoder_marginals, mbr_tags
from ..nn import TaggerModel, parse_decoder
from ..tasks import Example, Task

__all__ = ["REPAIRS", "Labelled", "best_well_formed", "check_repair", "label"]

REPAIRS = ("rule", "mbr", "none")
"""How ill-formed labels are repaired: by the rule of the task (`Task.repair`), by the best
well-formed labels under the decoder's marginals (`mbr_tags`), or not at all."""


class Labelled(NamedTuple):
    """The labels of a sentence, and whether the repair has changed them."""

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
    """Return the labels of the sentences of `chain`; it has only the permitted tags."""
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
        best = best_well_formed(task, some, decoder_marginals(parse_decoder(decoder), some))
        for row, labels in zip(changed, best, strict=True):
            found[row] = Labelled(tuple(labels), True)
    return found


def best_well_formed(task: Task, chain: LinearChain, marginals: Tensor) -> list[list[str]]:
    """Return the best well-formed labels of each sentence under the tag marginals [B, n, T]."""
    best = mbr_tags(marginals, task.structure, chain.lengths, chain.unary.isfinite())
    return [_named(task, tags) for tags in _rows(best, chain)]


def _rows(tags: Tensor, chain: LinearChain) -> list[list[int]]:
    """Return tags [B, n] as lists without padding."""
    lengths = chain.lengths.tolist()
    return [row[:length] for row, length in zip(tags.tolist(), lengths, strict=True)]


def _named(task: Task, tags: list[int]) -> list[str]:
    return [task.labels[tag] for tag in tags]
