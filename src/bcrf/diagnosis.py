"""Checks of the values of a problem, which find and locate errors in the data.

Compiled kernels only report that a sentence is invalid. The functions here then find the reason:
a score that is NaN or +inf, a tag out of range, a gold tag or transition that is removed, a
sentence without a path, or a sum that overflows. They read tensor values, so the `check_` functions
do nothing unless the checks are enabled (see `bcrf.set_checks`).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .chain import LinearChain
from .checks import Defect, checks_enabled, tag_out_of_range
from .structure import Structure

__all__ = [
    "check_gold",
    "check_paths",
    "check_positions",
    "check_scores",
    "check_sums",
    "check_tag_sets",
    "find_defect",
]


def check_scores(chain: LinearChain) -> None:
    """Raise ValueError if a score within the lengths is NaN or +inf."""
    if checks_enabled(chain.unary):
        _raise(_bad_score(chain))


def check_gold(chain: LinearChain, tags: Tensor) -> None:
    """Raise ValueError if gold `tags` [B, n] are out of range, or are no path of the chain."""
    if checks_enabled(chain.unary):
        _raise(_bad_tag(chain, tags, chain.structure))


def check_tag_sets(chain: LinearChain, allowed: Tensor) -> None:
    """Raise ValueError if `allowed` (bool [B, n, T]) leaves a position without a tag."""
    if checks_enabled(chain.unary):
        _raise(_bad_set(chain, allowed))


def _raise(defect: Defect | None) -> None:
    if defect is not None:
        raise ValueError(defect.message)


def find_defect(
    chain: LinearChain,
    tags: Tensor | None = None,
    allowed: Tensor | None = None,
    structure: Structure | None = None,
) -> Defect | None:
    """Return the first defect of the scores, of gold `tags`, or of `allowed` tags; None: no defect.

    Args:
        tags: [B, n] gold tags.
        allowed: bool [B, n, T], the allowed tags of each position.
        structure: rules that are already applied to the scores of `chain`; None: the rules of the
            chain. With them, the defect can say that a gold tag may not start or end a sentence.
    """
    defect = _bad_score(chain)
    if defect is None and tags is not None:
        defect = _bad_tag(chain, tags, chain.structure if structure is None else structure)
    if defect is None and allowed is not None:
        defect = _bad_set(chain, allowed)
    return defect


def check_paths(live: Tensor, lengths: Tensor) -> None:
    """Raise if a sentence has no path, that is, no live tag in `live` (bool [B, n, T])."""
    if checks_enabled(live):
        lost = (lengths > 0) & ~live.any(-1).any(-1)
        if bool(lost.any()):
            raise ValueError(Defect("no path", int(lost.nonzero()[0])).message)


def check_positions(unary: Tensor) -> None:
    """Raise if `unary` [B, n, T] is -inf for every tag of a position."""
    if checks_enabled(unary):
        where = _first((unary == -math.inf).all(-1))
        if where is not None:
            raise ValueError(Defect("no path", *where).message)


def check_sums(name: str, sums: Tensor) -> Tensor:
    """Return `sums` [B], one sum of scores per sentence; raise if one of them overflowed."""
    if checks_enabled(sums):
        bad = ~sums.detach().isfinite()
        if bool(bad.any()):
            sentence = int(bad.nonzero()[0])
            kind = str(sums.dtype).removeprefix("torch.")
            raise ValueError(
                f"sentence {sentence}: the {name} is {float(sums.detach()[sentence])}, because the "
                f"scores are so large that their sum overflows {kind}; divide the scores, use a "
                "wider dtype, or remove tags and transitions with -inf, not with huge numbers"
            )
    return sums


@torch.no_grad()
def _bad_score(chain: LinearChain) -> Defect | None:
    """Return the first NaN or +inf in the scores within the lengths, or None."""
    where = _first(~(chain.unary < math.inf) & chain.mask.unsqueeze(-1))
    if where is not None:
        sentence, position, tag = where
        return Defect(
            "unary score", sentence, position, tag, value=float(chain.unary[tuple(where)])
        )
    transitions = chain.raw_transitions
    if transitions is None:
        return None
    bad = ~(transitions < math.inf)
    if transitions.dim() == 4:
        bad = bad & chain.mask[:, 1:, None, None]
    where = _first(bad)
    if where is None:
        return None
    value = float(transitions[tuple(where)])
    *edge, before, after = where
    if not edge:
        return Defect("transition score", None, None, after, before, value=value)
    return Defect("transition score", edge[0], edge[1] + 1, after, before, edge[1], value)


@torch.no_grad()
def _bad_tag(chain: LinearChain, tags: Tensor, structure: Structure | None) -> Defect | None:
    """Return the first gold tag out of range, removed gold tag or removed transition, or None."""
    index = torch.where(chain.mask, tags, 0)
    defect = tag_out_of_range(index, chain.num_tags)
    if defect is not None:
        return defect
    unary, transitions = chain.path_scores(index)
    where = _first(chain.mask & (unary == -math.inf))
    if where is not None:
        sentence, position = where
        tag = int(index[sentence, position])
        if structure is not None and position == 0 and not bool(structure.start[tag]):
            return Defect("start", sentence, position, tag)
        last = int(chain.lengths[sentence]) - 1
        if structure is not None and position == last and not bool(structure.end[tag]):
            return Defect("end", sentence, position, tag)
        return Defect("removed tag", sentence, position, tag)
    where = _first(chain.mask[:, 1:] & (transitions == -math.inf))
    if where is None:
        return None
    sentence, edge = where
    before, after = index[sentence, edge : edge + 2].tolist()
    return Defect("removed transition", sentence, edge + 1, after, before, edge)


@torch.no_grad()
def _bad_set(chain: LinearChain, allowed: Tensor) -> Defect | None:
    """Return the first position with no allowed tag, or only removed allowed tags, or None."""
    where = _first(chain.mask & ~allowed.any(-1))
    if where is not None:
        return Defect("nothing allowed", *where)
    where = _first(chain.mask & ~(allowed & (chain.unary > -math.inf)).any(-1))
    return None if where is None else Defect("allowed tags removed", *where)


def _first(mask: Tensor) -> list[int] | None:
    """Return the indices of the first True in `mask`, or None if there is none."""
    return mask.nonzero()[0].tolist() if bool(mask.any()) else None
