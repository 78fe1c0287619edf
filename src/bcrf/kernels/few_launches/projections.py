"""The projections: block coordinate descent on the dual D, in the log form, and its messages.

We store mu = -2 lam [B, n, T]. With the halves h of the unary scores (see `fold`), the arcs of edge
e have the reduced scores

    outgoing[e, s] + pair[s, t] + incoming[e+1, t],
    outgoing = h + mu / 2,    incoming = h - mu / 2.

At an interior position the halves cancel in the projection lam = (beta - alpha) / 2, so

    mu <- (1 - omega) mu + omega (alpha - beta),
    alpha[i, t] = log sum_s exp(outgoing[i-1, s] + pair[s, t]),
    beta[i, s]  = log sum_t exp(pair[s, t] + incoming[i+1, t]).

A projection adds, sums and updates twice, with one buffer: seven launches.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .prepared import PreparedChain
from .scratch import Scratch, log_sum

__all__ = ["FoldedScores", "fold", "incoming_outgoing", "initial", "log_messages", "project"]


@dataclass(eq=False)
class FoldedScores:
    """The unary scores as parts of the arcs, and what projections need to know about positions.

    Attributes:
        halves: [B, n, T], half of a unary score at interior positions, all of it at both ends;
            0 beyond the length, -inf at dead tags.
        share: [B, n, 1], the factor of the unary scores in `halves`.
        signs: [2, B, n, 1], the factors of mu in the outgoing scores (1/2) and in the incoming
            scores (-1/2) of interior positions; 0 elsewhere.
        frozen: bool [B, n, T], where mu stays 0: dead tags, and positions that are not interior.
            None if all tags are live: then `signs` is enough.
    """

    problem: PreparedChain
    halves: Tensor
    share: Tensor
    signs: Tensor
    frozen: Tensor | None

    def potentials(self, mu: Tensor, positions: slice, out: Tensor) -> Tensor:
        """Write the outgoing and the incoming scores of some positions to `out` [2, B, k, T]."""
        part = self.halves[:, positions], mu[:, positions], self.signs[:, :, positions]
        return torch.addcmul(*part, out=out)

    def all_potentials(self, mu: Tensor) -> Tensor:
        """Return the outgoing and the incoming scores [2, B, n, T]."""
        return self.potentials(mu, slice(None), mu.new_empty(2, *mu.shape))

    def dual_point(self, mu: Tensor) -> Tensor:
        """Return lam [B, n, T], 0 outside live interior tags."""
        return mu * self.signs[1]


def fold(problem: PreparedChain) -> FoldedScores:
    """Return the halves of the unary scores, without dead tags."""
    unary = problem.raw_unary
    signs = unary.new_zeros(2, *unary.shape[:2], 1)
    if unary.shape[1] > 2:
        # Position i > 0 is interior if position i + 1 is within the length.
        minus_interior = problem.minus_inside[:, 2:].unsqueeze(-1)
        half = torch.arange(2, dtype=unary.dtype, device=unary.device).sub_(0.5).view(2, 1, 1, 1)
        torch.mul(half, minus_interior, out=signs[:, :, 1:-1])
    share = signs[1] + 1
    halves = unary * share
    frozen = None
    if problem.live is not None:
        dead = ~problem.live
        halves.masked_fill_(dead, -math.inf)
        frozen = dead | (signs[1] == 0)
    halves.masked_fill_(problem.outside.unsqueeze(-1), 0.0)
    return FoldedScores(problem, halves, share, signs, frozen)


def initial(folded: FoldedScores, gauge_right: bool) -> Tensor:
    """Return mu at the start of the projections: see `Bregman._start`."""
    if not gauge_right:
        return torch.zeros_like(folded.halves)
    # lam moves the half of the outgoing arcs to the incoming ones.
    if folded.frozen is None:
        return folded.halves * -2
    return (folded.halves * -2).masked_fill_(folded.frozen, 0.0)


def project(
    folded: FoldedScores, mu: Tensor, omegas: Sequence[float], first: int, scratch: Scratch
) -> Tensor:
    """Project `mu` in place at positions first, first + 2, ..., then at the others, in turns.

    lam is defined up to a constant per position. At the end we choose it so that the numbers are
    small, which keeps the sums over arcs precise.
    """
    problem = folded.problem
    _, n, num_tags = mu.shape
    both = mu.new_empty(2, mu.shape[0], (n + 1) // 2, num_tags)
    for k, omega in enumerate(omegas):
        start = first if k % 2 == 0 else 3 - first
        rows = len(range(start, n - 1, 2))
        if not rows:
            continue
        here, others = slice(start, n - 1, 2), slice(start - 1, n, 2)
        before, after = slice(start - 1, n - 2, 2), slice(start, n - 1, 2)  # edges
        neighbours = both[:, :, : len(range(start - 1, n, 2))]
        outgoing, incoming = folded.potentials(mu, others, neighbours).unbind(0)
        outgoing, incoming = outgoing[:, :rows], incoming[:, 1 : rows + 1]
        for part in scratch.sentences(rows):
            buffer, target = scratch.block(part, rows), mu[part, here]
            torch.add(outgoing[part].unsqueeze(-1), problem.edge_pairs(part, before), out=buffer)
            target.lerp_(log_sum(buffer, -2), omega)
            torch.add(incoming[part].unsqueeze(-2), problem.edge_pairs(part, after), out=buffer)
            target.add_(log_sum(buffer, -1), alpha=-omega)
        if folded.frozen is not None:
            mu[:, here].masked_fill_(folded.frozen[:, here], 0.0)
    return _centre(folded, mu) if len(omegas) else mu


def _centre(folded: FoldedScores, mu: Tensor) -> Tensor:
    """Subtract the mean of `mu` at each position, in place; `mu` stays 0 where it is frozen.

    A constant per position changes no result. The numbers stay small.
    """
    mu.sub_(mu.mean(-1, keepdim=True))
    return mu if folded.frozen is None else mu.masked_fill_(folded.frozen, 0.0)


def log_messages(
    folded: FoldedScores, potentials: Tensor, scratch: Scratch
) -> tuple[Tensor, Tensor]:
    """Return alpha and beta [B, n, T] of all positions, 0 where there is no edge on their side."""
    problem, (outgoing, incoming) = folded.problem, potentials.unbind(0)
    alpha, beta = torch.zeros_like(potentials).unbind(0)
    edges = max(outgoing.shape[1] - 1, 0)
    for half in (slice(0, (edges + 1) // 2), slice((edges + 1) // 2, edges)):
        rows, target = half.stop - half.start, slice(half.start + 1, half.stop + 1)
        for part in scratch.sentences(rows) if rows else ():
            buffer, pair = scratch.block(part, rows), problem.edge_pairs(part, half)
            torch.add(outgoing[part, half].unsqueeze(-1), pair, out=buffer)
            alpha[part, target] = log_sum(buffer, -2)
            torch.add(incoming[part, target].unsqueeze(-2), pair, out=buffer)
            beta[part, half] = log_sum(buffer, -1)
    return alpha, beta


def incoming_outgoing(
    folded: FoldedScores, potentials: Tensor, scratch: Scratch
) -> tuple[Tensor, Tensor]:
    """Return logits [B, n, T] of the mass that enters, and that leaves, each tag: see `dual`.

    They do not include the lam of the tag. Beyond the lengths they have no meaning.
    """
    alpha, beta = log_messages(folded, potentials, scratch)
    # Both ends have arcs on one side only, and a sentence of one position has none.
    last = folded.problem.position == (folded.problem.lengths - 1).unsqueeze(1)
    beta = torch.where(last.unsqueeze(-1), alpha, beta)
    alpha[:, :1] = beta[:, :1]
    return alpha.add_(folded.halves), beta.add_(folded.halves)
