"""Losses: a conjugate minus a score, written by every family in the form that does not cancel."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .chain import LinearChain
from .checks import check_sums, checks_enabled
from .inference import Solver

__all__ = ["loss", "partial_loss"]


def loss(solver: Solver, chain: LinearChain, tags: Tensor) -> Tensor:
    """Loss of the gold sequences, [B], >= 0; reduction is left to the caller.

    `ForwardBackward`: negative log-likelihood A(w) - <w, y>. `Bregman`: Fenchel-Young loss
    B(w) - <w, y>. `MeanField`, `Unstructured`: cross-entropy sum_i -log r_i(y_i). A gold sequence
    that uses a removed tag or transition is an error, whichever the family.

    Args:
        tags: [B, n] integers; beyond the lengths anything, -100 for instance.
    """
    if tags.shape != chain.unary.shape[:2]:
        raise ValueError(
            f"tags must be [B, n] = {list(chain.unary.shape[:2])}, got {list(tags.shape)}"
        )
    fused = getattr(solver, "fused_loss", None)
    if fused is not None and tags.dtype is torch.int64 and tags.device == chain.device:
        value: Tensor | None = fused(chain, tags)
        if value is not None:
            return value
    _check_legal(chain, tags)
    return check_sums("loss", solver(chain).surprisal(tags))


def partial_loss(solver: Solver, chain: LinearChain, allowed: Tensor) -> Tensor:
    """Loss of sets of tag sequences, [B], >= 0: one set of allowed tags per position.

    `ForwardBackward`: marginal NLL A(w) - A~(w). `Bregman`: partial Fenchel-Young loss
    B(w) - B~(w), the second over the allowed sequences. `MeanField`, `Unstructured`:
    -sum_i log sum over allowed t of r_i(t). With one tag per position it is `loss`.

    Args:
        allowed: bool [B, n, T]; ignored beyond the lengths.
    """
    # `restrict` checks shape and dtype for all families.
    restricted = chain.restrict(allowed)
    if checks_enabled(chain.unary):
        empty = chain.mask & (restricted.unary == -math.inf).all(-1)
        if bool(empty.any()):
            sentence, position = empty.nonzero()[0].tolist()
            raise ValueError(
                f"sentence {sentence}, position {position}: no allowed tag has a finite score"
            )
    value = solver(chain).partial_surprisal(allowed.to(chain.device))
    return check_sums("partial loss", value)


def _check_legal(chain: LinearChain, tags: Tensor) -> None:
    """A gold sequence that uses a removed tag or transition has no finite loss: say where."""
    if not checks_enabled(chain.unary):
        return
    with torch.no_grad():
        index = chain.tag_index(tags)
        unary, transitions = chain.path_scores(index)
        bad_tag = chain.mask & (unary == -math.inf)
        bad_arc = chain.mask[:, 1:] & (transitions == -math.inf)
    if bool(bad_tag.any()):
        sentence, position = bad_tag.nonzero()[0].tolist()
        tag = int(index[sentence, position])
        raise ValueError(
            f"sentence {sentence}, position {position}: gold tag {tag} is removed (-inf) there"
        )
    if bool(bad_arc.any()):
        sentence, edge = bad_arc.nonzero()[0].tolist()
        before, after = index[sentence, edge : edge + 2].tolist()
        raise ValueError(
            f"sentence {sentence}, position {edge + 1}: gold tag {after} may not follow "
            f"{before}, that transition is removed (-inf)"
        )
