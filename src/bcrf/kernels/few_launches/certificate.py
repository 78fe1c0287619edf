"""The certificate: tags at which the best arcs of all edges meet are a best path."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ...chain import PAD, LinearChain
from ...numerics.logspace import widest_dtype
from .gold import gold_scores
from .prepared import PreparedChain, prepare
from .projections import FoldedScores, fold, initial, project
from .scratch import Scratch

__all__ = ["certified"]


def certified(
    chain: LinearChain, omegas: Sequence[float], temperature: float | Tensor
) -> tuple[Tensor, Tensor]:
    """Return tags [B, n] and bool [B], True where they are proved to be a best path.

    On each edge, take an arc with the highest reduced score. The certificate holds if the arcs
    between the tags attain the highest score of their edges. It is computed in float64 where the
    device has it, so that rounding does not decide it.
    """
    problem = prepare(chain)
    if not chain.max_length:
        return problem.outside.long(), problem.lengths == 0
    potentials = _potentials(problem, *_dual_point(chain, omegas, temperature))
    source, peaks = _best_arcs(problem, potentials)
    incoming = potentials[1]
    if problem.shared:
        rows = problem.pair[source]
    else:
        index = source[..., None, None].expand(*source.shape, 1, incoming.shape[-1])
        rows = problem.pair.gather(2, index).squeeze(2)
    # No edge starts at the last position: its tag is the target of the best arc before it.
    arrived = incoming.clone()
    arrived[:, 1:] += rows
    target = arrived.argmax(-1)
    last = problem.position == (problem.lengths - 1).unsqueeze(1)
    tags = torch.where(last[:, :-1], target[:, :-1], source)
    tags = torch.cat([tags, target[:, -1:]], 1)
    scores = gold_scores(problem, potentials, *problem.gold(tags))
    reached = (scores[:, 1:] == peaks).logical_or_(problem.outside[:, 1:])
    return tags.masked_fill_(problem.outside, PAD), reached.all(1)


def _dual_point(
    chain: LinearChain, omegas: Sequence[float], tau: float | Tensor
) -> tuple[FoldedScores, Tensor]:
    """Return the folded scores at temperature `tau`, and tau lam in float64."""
    folded = fold(prepare(chain, tau=tau))
    mu = project(folded, initial(folded, False), omegas, 1, Scratch(folded.halves))
    lam = folded.dual_point(mu)
    return folded, lam.to(widest_dtype(lam.device)).mul_(tau)


def _potentials(problem: PreparedChain, folded: FoldedScores, lam: Tensor) -> Tensor:
    """Return the outgoing and the incoming scores [2, B, n, T] at temperature 1, in float64."""
    halves = problem.raw_unary.to(lam.dtype) * folded.share
    live = folded.problem.live
    if live is not None:
        halves.masked_fill_(~live, -math.inf)
    halves.masked_fill_(problem.outside.unsqueeze(-1), 0.0)
    return torch.stack([halves - lam, halves + lam])


def _best_arcs(problem: PreparedChain, potentials: Tensor) -> tuple[Tensor, Tensor]:
    """Return the tag [B, m] at which the best arc of each edge starts, and its score [B, m]."""
    outgoing, incoming = potentials.unbind(0)
    edges = outgoing.shape[1] - 1
    from_tag = outgoing[:, :-1].clone()
    scratch = Scratch(outgoing)
    for half in (slice(0, (edges + 1) // 2), slice((edges + 1) // 2, edges)):
        rows, target = half.stop - half.start, slice(half.start + 1, half.stop + 1)
        for part in scratch.sentences(rows) if rows else ():
            buffer, pair = scratch.block(part, rows), problem.edge_pairs(part, half)
            torch.add(incoming[part, target].unsqueeze(-2), pair, out=buffer)
            from_tag[part, half] += buffer.amax(-1)
    peaks, source = from_tag.max(-1)
    return source, peaks
