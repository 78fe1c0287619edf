"""What is wrong with a batch, in the caller's coordinates: looked for once something has failed."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..chain import LinearChain
from ..structure import Structure
from .masks import Layout

__all__ = ["Posed", "explain"]


@dataclass(frozen=True, eq=False)
class Posed:
    """A batch as solvers see it, compact, and where it came from.

    Attributes:
        chain: the problem.
        layout: where its positions stand in what the caller gave.
        tags: gold tags [B, n], compact.
        allowed: sets of tags bool [B, n, T], compact.
    """

    chain: LinearChain
    layout: Layout
    tags: Tensor | None = None
    allowed: Tensor | None = None


def explain(posed: Posed, rules: Structure | None = None) -> str | None:
    """The first thing that is wrong, with sentence and position; None if it is none of these.

    Args:
        rules: constraints that have removed something from the chain.
    """
    with torch.no_grad():
        return _bad_score(posed) or _bad_tags(posed, rules) or _bad_sets(posed)


def _at(posed: Posed, sentence: int, position: int) -> str:
    return f"sentence {sentence}, position {posed.layout.position(sentence, position)}"


def _first(where: Tensor) -> list[int] | None:
    """The indices of the first True."""
    found = where.nonzero()
    return found[0].tolist() if len(found) else None


def _bad_score(posed: Posed) -> str | None:
    chain = posed.chain
    said = "scores are finite or -inf (removed)"
    if found := _first(~(chain.unary < math.inf) & chain.mask.unsqueeze(-1)):
        value = float(chain.unary[tuple(found)])
        sentence, position, tag = found
        return f"{_at(posed, sentence, position)}: the score of tag {tag} is {value}; {said}"
    bad = ~(chain.pair_scores < math.inf)
    if not chain.shared:
        bad = bad & chain.mask[:, 1:, None, None]
    if found := _first(bad):
        value = float(chain.pair_scores[tuple(found)])
        *where, before, after = found
        place = f"{_at(posed, where[0], where[1] + 1)}: " if where else ""
        return f"{place}the transition from tag {before} to tag {after} is {value}; {said}"
    return None


def _bad_tags(posed: Posed, rules: Structure | None) -> str | None:
    chain, tags = posed.chain, posed.tags
    if tags is None:
        return None
    outside = ((tags < 0) | (tags >= chain.num_tags)) & chain.mask
    if found := _first(outside):
        tag = int(tags[tuple(found)])
        return f"{_at(posed, *found)}: tag {tag} is not in 0..{chain.num_tags - 1}"
    index = chain.tag_index(tags)
    unary, transitions = chain.path_scores(index)
    if found := _first(chain.mask & (unary == -math.inf)):
        sentence, position = found
        tag = int(index[sentence, position])
        reason = "is removed (-inf) there"
        last = int(chain.lengths[sentence]) - 1
        if rules is not None and position == 0 and not bool(rules.start[tag]):
            reason = "may not start a sentence"
        elif rules is not None and position == last and not bool(rules.end[tag]):
            reason = "may not end a sentence"
        return f"{_at(posed, sentence, position)}: gold tag {tag} {reason}"
    if found := _first(chain.mask[:, 1:] & (transitions == -math.inf)):
        sentence, edge = found
        before, after = index[sentence, edge : edge + 2].tolist()
        origin = posed.layout.position(sentence, edge)
        return (
            f"{_at(posed, sentence, edge + 1)}: gold tag {after} may not follow tag {before} of "
            f"position {origin}, that transition is removed"
        )
    return None


def _bad_sets(posed: Posed) -> str | None:
    chain, allowed = posed.chain, posed.allowed
    if allowed is None:
        return None
    if found := _first(chain.mask & ~allowed.any(-1)):
        return f"{_at(posed, *found)}: no tag is allowed"
    left = allowed & (chain.unary > -math.inf)
    if found := _first(chain.mask & ~left.any(-1)):
        return f"{_at(posed, *found)}: every allowed tag is removed (-inf) there"
    return None
