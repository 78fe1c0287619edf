"""The Bregman CRF: dual value, loss, partial loss, marginals and decoding."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from ...chain import PAD, LinearChain
from ...numerics.logspace import widest_dtype
from ..results import BregmanResult, ProjectionSettings, ValueAndGradient
from .edges import ArcSums, arc_sums, edge_terms, no_edge
from .gold import gold_scores, subtract_gold_pairs
from .prepared import PreparedChain, prepare
from .projections import FoldedScores, fold, incoming_outgoing, initial, project
from .scratch import Scratch

__all__ = ["bregman", "bregman_partial", "bregman_result", "most_probable"]


def bregman(
    chain: LinearChain,
    settings: ProjectionSettings,
    tags: Tensor | None = None,
    wanted: Sequence[bool] = (False, False),
    *,
    start_end: Tensor | None = None,
    every_edge: bool = False,
) -> ValueAndGradient:
    """Return D(lam) or the Fenchel-Young loss: see `DeviceKernels.bregman`.

    The gradient holds lam constant (Danskin's theorem): it is q, or q minus the gold arcs.
    """
    problem = prepare(chain, start_end)
    by_unary, by_pair = wanted
    folded = fold(problem)
    scratch = Scratch(folded.halves)
    mu = project(folded, initial(folded, settings.gauge_right), *_steps(settings), scratch)
    potentials = folded.all_potentials(mu)
    index = None if tags is None else problem.gold(tags)
    gold = None if index is None else gold_scores(problem, potentials, *index)
    absent = no_edge(problem)
    pair = _pair_form(problem, by_pair, every_edge)
    # From here on the pair scores of each edge are not needed, and q can have their memory.
    memory = scratch if problem.shared else None
    sums = arc_sums(problem, potentials, absent, memory, by_unary, pair)
    value = _total(edge_terms(sums, absent, gold))
    unary = None if sums.mass is None else sums.mass.mul_(folded.share)
    if index is not None and (by_unary or by_pair):
        one_hot = problem.minus_one_hot(index[0])
        if unary is not None:
            unary.add_(one_hot)
        if sums.pair is not None:
            subtract_gold_pairs(sums.pair, one_hot)
    return ValueAndGradient(value, unary, sums.pair, None)


def bregman_partial(
    chain: LinearChain,
    allowed: Tensor,
    settings: ProjectionSettings,
    wanted: Sequence[bool] = (False, False),
) -> ValueAndGradient:
    """Return the partial Fenchel-Young loss: see `BregmanSolution.partial_loss`."""
    problem = prepare(chain)
    by_unary, by_pair = wanted
    folded = fold(problem)
    scratch = Scratch(folded.halves)
    mu = project(folded, initial(folded, settings.gauge_right), *_steps(settings), scratch)
    restricted = fold(problem.restrict(allowed))
    assert restricted.frozen is not None
    start = mu * (restricted.signs[1] * -2)  # 0 where mu has no meaning
    start.masked_fill_(restricted.frozen, 0.0)
    absent = no_edge(problem)
    pair = _pair_form(problem, by_pair)

    def sums(scores: FoldedScores, point: Tensor, gradient: bool) -> ArcSums:
        form = (by_unary, pair) if gradient else (False, "no")
        potentials = scores.all_potentials(point)
        return arc_sums(scores.problem, potentials, absent, scratch, *form)

    free, between = sums(folded, mu, True), sums(restricted, start, False)
    bound = project(restricted, start, *_steps(settings), scratch)
    held = sums(restricted, bound, True)
    terms = [edge_terms(found, absent) for found in (free, between, held)]
    mass = _total((terms[0] - terms[1]).clamp_(min=0))
    descent = _total(terms[1] - terms[2]).clamp_(min=0)
    live = restricted.problem.live
    assert live is not None
    lost = (problem.lengths > 0) & ~live.flatten(1).any(1)
    value = mass.add_(descent).masked_fill_(lost, math.inf)
    unary = None
    if free.mass is not None and held.mass is not None:
        unary = free.mass.sub_(held.mass).mul_(folded.share)
    if free.pair is not None and held.pair is not None:
        free.pair.sub_(held.pair)
    return ValueAndGradient(value, unary, free.pair, None)


def bregman_result(chain: LinearChain, settings: ProjectionSettings) -> BregmanResult:
    """Run the projections; return the value, residual, dual point and tag marginals."""
    folded, mu, scratch = _projected(prepare(chain), settings)
    problem = folded.problem
    potentials = folded.all_potentials(mu)
    absent = no_edge(problem)
    value = _total(edge_terms(arc_sums(problem, potentials, absent, scratch), absent))
    incoming, outgoing = incoming_outgoing(folded, potentials, scratch)
    lam = folded.dual_point(mu)
    beyond = problem.outside.unsqueeze(-1)
    entering, leaving = torch.softmax(incoming + lam, -1), torch.softmax(outgoing - lam, -1)
    gap = (entering - leaving).abs_().masked_fill_(beyond, 0.0)
    n = gap.shape[1]
    residual = gap.amax((1, 2)) if n else gap.new_zeros(gap.shape[0])
    marginals = leaving
    if not settings.outgoing:
        marginals = torch.softmax(incoming.add_(outgoing).mul_(0.5), -1)
    marginals = marginals.masked_fill_(beyond, 0.0)
    return BregmanResult(value, residual.to(value.dtype), lam, marginals)


def most_probable(
    chain: LinearChain, settings: ProjectionSettings, temperature: float | Tensor
) -> Tensor:
    """Return the most probable tags [B, n] at a temperature, -100 beyond the length."""
    folded, mu, scratch = _projected(prepare(chain, tau=temperature), settings)
    incoming, outgoing = incoming_outgoing(folded, folded.all_potentials(mu), scratch)
    logits = outgoing - folded.dual_point(mu) if settings.outgoing else incoming.add_(outgoing)
    return logits.argmax(-1).masked_fill_(folded.problem.outside, PAD)


def _projected(
    problem: PreparedChain, settings: ProjectionSettings
) -> tuple[FoldedScores, Tensor, Scratch]:
    """Return the folded scores, mu after the projections, and the memory that they used."""
    folded = fold(problem)
    scratch = Scratch(folded.halves)
    mu = project(folded, initial(folded, settings.gauge_right), *_steps(settings), scratch)
    return folded, mu, scratch


def _steps(settings: ProjectionSettings) -> tuple[Sequence[float], int]:
    return settings.omegas, settings.first


def _total(terms: Tensor) -> Tensor:
    """Return the sum [B] of the terms of each sentence, in float64 where the device has it."""
    return terms.sum(1, dtype=widest_dtype(terms.device))


def _pair_form(
    problem: PreparedChain, wanted: bool, every_edge: bool = False
) -> Literal["no", "sum", "each"]:
    """Return which form of `ArcSums.pair` holds the gradient with respect to the pairs."""
    if not wanted:
        return "no"
    return "sum" if problem.shared and not every_edge else "each"
