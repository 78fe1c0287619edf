"""Well-formed labels, from labels that are not or from marginals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from ..chain import LinearChain
from ..inference import viterbi
from ..structure import Structure
from .example import Example, Task

__all__ = ["Repaired", "mbr_repair", "repair_all"]


class Repaired(NamedTuple):
    """Well-formed label sequences, and how many sentences had to be changed."""

    sequences: list[list[str]]
    changed: int


def repair_all(
    task: Task, examples: Sequence[Example], sequences: Sequence[Sequence[str]]
) -> Repaired:
    """Repair the label sequences of some examples by the task's rule."""
    repaired = [task.repair(*pair) for pair in zip(examples, sequences, strict=True)]
    changed = (new != list(old) for new, old in zip(repaired, sequences, strict=True))
    return Repaired(repaired, sum(changed))


def mbr_repair(
    marginals: Tensor,
    structure: Structure | None,
    lengths: Tensor | Sequence[int] | None = None,
    limits: Tensor | None = None,
) -> Tensor:
    """The well-formed tags with the most right tags to be expected (minimum Bayes risk).

    They maximise sum_i p_i(y_i) among the sequences that the structure allows, by Viterbi. Without
    a structure these are the most probable tags one by one. The marginals are the scores, not their
    logarithms: only then is the criterion the same with and without constraints, and a tag whose
    marginal underflows to 0 may still be part of a sequence.

    Args:
        marginals: [B, n, T], probabilities of the tags at each position.
        structure: what is well-formed; None: everything.
        lengths: [B]; None: all n.
        limits: bool [B, n, T], which tags the input permits; None: all.

    Returns:
        tags [B, n], -100 beyond the length.
    """
    chain = LinearChain(marginals.detach(), None, lengths)
    if limits is not None:
        chain = chain.restrict(limits)
    if structure is not None:
        chain = chain.constrain(structure)
    return viterbi(chain)[1]
