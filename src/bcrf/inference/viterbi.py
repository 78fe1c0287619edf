"""Viterbi decoding: the best path, and the k best paths."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..chain import PAD, LinearChain
from ..checks import check_count
from ..compat.graph_padding import pad_for_graph, remove_graph_padding
from ..diagnosis import check_sums
from ..kernels import (
    BACKEND_MODULES,
    check_backend,
    custom_ops,
    device_kernels,
    native,
    select_backend,
)
from ..kernels.folded_chain import FoldedChain, fold
from ..numerics.logspace import widest_dtype
from .compiled import check_on_device

__all__ = ["best_score", "k_best", "viterbi"]


def viterbi(chain: LinearChain, backend: str = "auto") -> tuple[Tensor, Tensor]:
    """Return the score and the tags of a best sequence of each sentence.

    Args:
        backend: "auto", or the name of a backend (see `bcrf.backends`).
    Returns:
        score [B], differentiable, and tags [B, n], -100 beyond the length.

    Example:
        >>> import torch, bcrf
        >>> chain = bcrf.LinearChain(torch.tensor([[[1.0, 0.0], [0.0, 0.5]]]), torch.eye(2))
        >>> bcrf.viterbi(chain)
        (tensor([2.]), tensor([[0, 0]]))
    """
    check_backend(backend)
    selected = select_backend(backend, chain.unary)
    found: tuple[Tensor, Tensor] | None = None
    if selected == "native":
        found = native.viterbi(chain.unary, chain.pair_scores, chain.lengths, in_float64=False)
    elif selected == "custom_op":
        with torch.no_grad():
            found = custom_ops.viterbi(chain.unary, chain.pair_scores, chain.lengths, backend)
    if found is not None:
        return best_score(chain, *found), found[0]
    kernels = device_kernels(selected)
    if kernels is not None:
        check_on_device(chain)
        tags, score = kernels.viterbi(chain.detach())
        return check_sums("score of the best sequence", best_score(chain, tags, score)), tags
    problem = pad_for_graph(chain)
    with torch.no_grad():
        tags = BACKEND_MODULES[selected].best_paths(fold(problem.detach()))
    score = check_sums("score of the best sequence", problem.score(tags))
    return score, chain.pad(remove_graph_padding(tags))


def best_score(chain: LinearChain, tags: Tensor, score: Tensor) -> Tensor:
    """Return `score` [B], or the same score recomputed from `tags` if it needs a gradient."""
    if torch.is_grad_enabled() and chain.requires_grad:
        return chain.score(tags)
    return score if score.dtype is chain.unary.dtype else score.to(chain.unary.dtype)


def k_best(chain: LinearChain, k: int) -> tuple[Tensor, Tensor]:
    """Return the k best tag sequences of each sentence, best first.

    Returns:
        scores [B, k], differentiable, and tags [B, k, n]. If a sentence has fewer than k paths, the
        missing ones have score -inf and tags -100.

    Example:
        >>> import torch, bcrf
        >>> chain = bcrf.LinearChain(torch.tensor([[[1.0, 0.0], [0.0, 0.75]]]), 2 * torch.eye(2))
        >>> scores, tags = bcrf.k_best(chain, 2)
        >>> scores
        tensor([[3.0000, 2.7500]])
        >>> tags.tolist()
        [[[0, 0], [1, 1]]]
    """
    check_count("k", k, least=1)
    with torch.no_grad():
        tags, missing = _k_best_paths(fold(chain.detach()), k)
    scores = torch.where(missing, -math.inf, chain.score(tags))
    tags = torch.where(missing.unsqueeze(-1), PAD, chain.pad(tags))
    return scores.transpose(0, 1), tags.transpose(0, 1)


def _k_best_paths(folded: FoldedChain, k: int) -> tuple[Tensor, Tensor]:
    """Return tags [k, B, n], and bool [k, B]: True where a sentence has no path of this rank.

    This is Viterbi from right to left with k candidates per tag: `ends` [B, T, k] holds the k best
    scores of the continuations of each tag.
    """
    batch, n, num_tags = folded.live.shape
    wide = widest_dtype(folded.left.device)
    rank = torch.arange(k, device=folded.live.device)
    if n == 0:
        tags = torch.zeros(k, batch, 0, dtype=torch.int64, device=folded.live.device)
        return tags, (rank > 0).unsqueeze(1).expand(k, batch)
    # The last position has one continuation: the end of the sentence.
    last = torch.where(rank == 0, folded.final_messages.to(wide).unsqueeze(-1), -math.inf)
    ends, choices = last[:, -1], []
    pairs = folded.transitions.edge_scores(n - 1)
    for e in reversed(range(n - 1)):
        scores = pairs[e].to(wide)
        after = folded.right[:, e].to(wide).unsqueeze(-1) + ends  # [B, T, k]
        candidates = scores.unsqueeze(-1) + after.unsqueeze(1)  # [B, from, to, k]
        best, choice = candidates.flatten(2).topk(k, -1)
        best = folded.left[:, e].to(wide).unsqueeze(-1) + best
        ends = torch.where(folded.edge[:, e].view(-1, 1, 1), best, last[:, e])
        choices.append(choice)
    # An empty sentence has one path, but its message at position 0 has one path for every tag.
    empty = (folded.lengths == 0).unsqueeze(1)
    only = torch.arange(num_tags * k, device=folded.live.device) == 0
    flat = torch.where(empty & ~only, -math.inf, ends.flatten(1))
    best, choice = flat.topk(k, -1)  # [B, k] over (tag, rank)
    tag, place = choice // k, choice % k
    path = [tag]
    for e, step in enumerate(reversed(choices)):
        pointer = step.flatten(1).gather(1, tag * k + place)
        within = folded.edge[:, e : e + 1]
        tag = torch.where(within, pointer // k, 0)
        place = torch.where(within, pointer % k, 0)
        path.append(tag)
    return torch.stack(path, -1).transpose(0, 1), (best == -math.inf).transpose(0, 1)
