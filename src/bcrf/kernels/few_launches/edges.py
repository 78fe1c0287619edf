"""The distribution of each edge over its arcs, for the values and the gradients of both families.

The arcs of edge e have the scores outgoing[e, s] + pair[s, t] + incoming[e+1, t]. In a Bregman CRF
these are the reduced scores, in an exact CRF the scores of all paths through the arc. In both, q[e]
is the softmax over the arcs of the edge.

Position 0 stands for the edge before it, which sentences of one position have instead of edges: its
distribution is the softmax of incoming[0] over the tags.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from .prepared import PreparedChain
from .scratch import Scratch, log_sum

__all__ = ["ArcSums", "arc_sums", "edge_terms", "no_edge"]


class ArcSums(NamedTuple):
    """Sums over the arcs of each edge; entry i is the edge from position i - 1 to position i.

    Args:
        tops, totals: [B, n]: the largest score of an arc, and the sum of exp(score - top).
        mass: [B, n, T], incoming plus outgoing mass of each tag under q; None if not requested.
        pair: the sum of q over the edges [B, T, T], or q [B, n-1, T, T]; None if not requested.
    """

    tops: Tensor
    totals: Tensor
    mass: Tensor | None
    pair: Tensor | None


def no_edge(problem: PreparedChain) -> Tensor:
    """Return bool [B, n], True where position i ends no edge and is not the only position."""
    absent = problem.outside.clone()
    if absent.shape[1]:
        torch.ne(problem.lengths, 1, out=absent[:, 0])
    return absent


def arc_sums(
    problem: PreparedChain,
    potentials: Tensor,
    absent: Tensor,
    scratch: Scratch | None,
    with_mass: bool = False,
    pair: Literal["no", "sum", "each"] = "no",
) -> ArcSums:
    """Return sums over the arcs of each edge; `absent` is the result of `no_edge`.

    Args:
        potentials: [2, B, n, T], outgoing and incoming scores.
        scratch: None: overwrite the pair scores of `problem`, which has one matrix per edge, and
            whose dtype is that of the scores.
        with_mass: whether to return `mass`.
        pair: which form of `pair` to return.
    """
    outgoing, incoming = potentials.unbind(0)
    batch, n, _ = incoming.shape
    edges = max(n - 1, 0)
    tops, totals = incoming.new_empty(2, batch, n).unbind(0)
    mass = columns = torch.zeros_like(incoming) if with_mass else None
    if n:
        tops[:, 0] = log_sum(incoming[:, 0].clone(), -1)
        totals[:, 0] = 1
    if mass is not None and n:
        columns = torch.empty_like(mass)
        torch.softmax(incoming[:, 0], -1, out=columns[:, 0])
        if not problem.plain:
            columns[:, 0].nan_to_num_(0.0)  # no tag
        columns[:, 0].masked_fill_(absent[:, :1], 0.0)
    found = _pair_result(problem, incoming, scratch, pair)
    halves = (slice(0, (edges + 1) // 2), slice((edges + 1) // 2, edges))
    for half in halves if found is None or found.dim() == 3 else (slice(0, edges),):
        rows, target = half.stop - half.start, slice(half.start + 1, half.stop + 1)
        whole = slice(0, batch)
        for part in (whole,) if scratch is None or pair == "each" else scratch.sentences(rows):
            if not rows:
                continue
            if found is not None and found.dim() == 4:
                q = found
            else:
                assert scratch is not None
                q = scratch.block(part, rows)
            # In this order: `gold_scores` has the same rounding, so no loss is negative.
            torch.add(incoming[part, target].unsqueeze(-2), problem.edge_pairs(part, half), out=q)
            q.add_(outgoing[part, half].unsqueeze(-1))
            top, total = tops[part, target], totals[part, target]
            torch.amax(q, (-2, -1), out=top)
            if not problem.plain:
                top.clamp_(min=torch.finfo(top.dtype).min)  # no arc: -inf - -inf is NaN
            q.sub_(top[..., None, None]).exp_()
            torch.sum(q, (-2, -1), out=total)
            if not problem.plain:
                total.clamp_(min=1)  # no arc
            if mass is None and pair == "no":
                continue
            weight = total.reciprocal().masked_fill_(absent[part, target], 0.0)
            q.mul_(weight[..., None, None])
            if mass is not None and columns is not None:
                torch.sum(q, -1, out=mass[part, half])
                torch.sum(q, -2, out=columns[part, target])
            if found is not None and found.dim() == 3:
                found[part] += q.sum(1)
    if mass is not None and columns is not None and n:
        mass.add_(columns)
    return ArcSums(tops, totals, mass, found if pair != "no" else None)


def _pair_result(
    problem: PreparedChain, like: Tensor, scratch: Scratch | None, pair: str
) -> Tensor | None:
    """Return the memory of `ArcSums.pair`."""
    batch, n, num_tags = like.shape
    if scratch is None:
        return problem.pair
    if pair == "no":
        return None
    if pair == "sum":
        return like.new_zeros(batch, num_tags, num_tags)
    return like.new_empty(batch, max(n - 1, 0), num_tags, num_tags)


def edge_terms(sums: ArcSums, absent: Tensor, gold: Tensor | None = None) -> Tensor:
    """Return log sum exp of each edge minus the score `gold` [B, n] of an arc, [B, n].

    The terms are 0 at `absent`. The differences are not negative.
    """
    tops = sums.tops if gold is None else sums.tops - gold
    terms = torch.log(sums.totals).add_(tops)
    if gold is not None:
        terms.clamp_(min=0)
    return terms.masked_fill_(absent, 0.0)
