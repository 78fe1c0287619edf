"""The best path, and the k best."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .. import kernels
from ..arcs import Arcs, fold
from ..chain import PAD, LinearChain
from ..checks import check_count, check_sums
from ..kernels import native, ops
from ..logspace import wide_dtype
from ..room import roomy, without_room

__all__ = ["best_score", "k_best", "viterbi"]


def viterbi(chain: LinearChain, backend: str = "auto") -> tuple[Tensor, Tensor]:
    """A best tag sequence of each sentence.

    Returns:
        score [B], differentiable, and tags [B, n], -100 beyond the length.
    """
    kernels.check(backend)
    how = kernels.route(backend, chain.unary)
    found: tuple[Tensor, Tensor] | None = None
    if how == "native":
        found = native.viterbi(chain.unary, chain.pair_scores, chain.given_lengths, wide=False)
    elif how == "op":
        with torch.no_grad():
            found = ops.viterbi(chain.unary, chain.pair_scores, chain.lengths)
    if found is not None:
        return best_score(chain, *found), found[0]
    problem = roomy(chain)
    with torch.no_grad():
        tags = kernels.get(backend, chain.unary).best_paths(fold(problem.detach()))
    score = check_sums("score of the best sequence", problem.score(tags))
    return score, chain.pad(without_room(tags))


def best_score(chain: LinearChain, tags: Tensor, score: Tensor) -> Tensor:
    """`score` of `tags` [B], as a function of the scores of `chain` where that is wanted."""
    if torch.is_grad_enabled() and chain.requires_grad:
        return chain.score(tags)
    return score if score.dtype is chain.unary.dtype else score.to(chain.unary.dtype)


def k_best(chain: LinearChain, k: int) -> tuple[Tensor, Tensor]:
    """The k best tag sequences of each sentence, best first.

    Returns:
        scores [B, k], differentiable, and tags [B, k, n]; where a sentence has fewer than k paths
        the score is -inf and the tags are -100.
    """
    check_count("k", k, least=1)
    with torch.no_grad():
        tags, missing = _k_best_paths(fold(chain.detach()), k)
    scores = torch.where(missing, -math.inf, chain.score(tags))
    tags = torch.where(missing.unsqueeze(-1), PAD, chain.pad(tags))
    return scores.transpose(0, 1), tags.transpose(0, 1)


def _k_best_paths(arcs: Arcs, k: int) -> tuple[Tensor, Tensor]:
    """Tags [k, B, n], and bool [k, B] where there is no such path.

    As Viterbi from the end, with k candidates per tag: `ends` [B, T, k] holds the k best scores of
    what follows a tag.
    """
    batch, n, num_tags = arcs.live.shape
    wide = wide_dtype(arcs.left.device)
    rank = torch.arange(k, device=arcs.live.device)
    if n == 0:
        tags = torch.zeros(k, batch, 0, dtype=torch.int64, device=arcs.live.device)
        return tags, (rank > 0).unsqueeze(1).expand(k, batch)
    # Beyond the end there is one way to go on.
    last = torch.where(rank == 0, arcs.final_messages.to(wide).unsqueeze(-1), -math.inf)
    ends, choices = last[:, -1], []
    pairs = arcs.pair.edge_scores(n - 1)
    for e in reversed(range(n - 1)):
        scores = pairs[e].to(wide)
        after = arcs.right[:, e].to(wide).unsqueeze(-1) + ends  # [B, T, k]
        candidates = scores.unsqueeze(-1) + after.unsqueeze(1)  # [B, from, to, k]
        best, choice = candidates.flatten(2).topk(k, -1)
        best = arcs.left[:, e].to(wide).unsqueeze(-1) + best
        ends = torch.where(arcs.edge[:, e].view(-1, 1, 1), best, last[:, e])
        choices.append(choice)
    # An empty sentence has one path; its message at position 0 counts that path for every tag.
    empty = (arcs.lengths == 0).unsqueeze(1)
    only = torch.arange(num_tags * k, device=arcs.live.device) == 0
    flat = torch.where(empty & ~only, -math.inf, ends.flatten(1))
    best, choice = flat.topk(k, -1)  # [B, k] over (tag, rank)
    tag, place = choice // k, choice % k
    path = [tag]
    for e, step in enumerate(reversed(choices)):
        pointer = step.flatten(1).gather(1, tag * k + place)
        within = arcs.edge[:, e : e + 1]
        tag = torch.where(within, pointer // k, 0)
        place = torch.where(within, pointer % k, 0)
        path.append(tag)
    return torch.stack(path, -1).transpose(0, 1), (best == -math.inf).transpose(0, 1)
