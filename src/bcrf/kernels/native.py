"""The compiled kernels (C++, in `native/`), as functions from tensors to tensors; no autograd.

They take unary [B, n, T], pair [T, T] or [B, n-1, T, T] and lengths [B] on the CPU, and solve whole
sentences: fold, trim, checks and all. Each returns None if a sentence has no answer (a score that
is NaN or +inf, a tag out of range or removed, no path left): the torch kernels then say what is
wrong.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..arcs import Arcs
from . import vectorized
from .vectorized import backward_messages, forward_messages

__all__ = [
    "UNAVAILABLE",
    "Flow",
    "Settings",
    "Slopes",
    "backward_messages",
    "best_paths",
    "bregman",
    "certified",
    "crf",
    "flow",
    "forward_messages",
    "most_probable",
    "project",
    "viterbi",
]


def _load() -> tuple[Any, str | None]:
    """The extension, or why there is none. BCRF_NATIVE names another build, with sanitizers say."""
    path = os.environ.get("BCRF_NATIVE")
    try:
        if not path:
            from .. import _native

            return _native, None
        spec = importlib.util.spec_from_file_location("bcrf._native", path)
        if spec is None or spec.loader is None:
            raise ImportError(f"BCRF_NATIVE={path} is no extension module")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        sys.modules["bcrf._native"] = module
        return module, None
    except ImportError as error:
        return None, f"the compiled extension cannot be loaded: {error}"


# UNAVAILABLE says why there are no compiled kernels here; None if there are.
_native, UNAVAILABLE = _load()


class Slopes(NamedTuple):
    """A value [B] (float64) per sentence, and its derivatives, None where not asked for.

    By the unary scores, [B, n, T], and by the pairs, [B, n-1, T, T]; for shared pairs [B, T, T],
    one sum per sentence, and [T, T], the sum of all.
    """

    value: Tensor
    unary: Tensor | None
    pair: Tensor | None
    total: Tensor | None


class Flow(NamedTuple):
    """What a Bregman solution says: D(lam) and residual [B] (float64), lam and tag marginals
    [B, n, T]."""

    value: Tensor
    residual: Tensor
    lam: Tensor
    marginals: Tensor


class Settings(NamedTuple):
    """What `inference.Bregman` says about projections and marginals."""

    omegas: Sequence[float]
    first: int
    tolerance: float | None
    gauge_right: bool
    outgoing: bool


def crf(
    unary: Tensor,
    pair: Tensor,
    lengths: Tensor,
    tags: Tensor | None = None,
    wanted: Sequence[bool] = (False, False),
    every_edge: bool = False,
) -> Slopes | None:
    """A(w), or with tags [B, n] the negative log-likelihood, and its slopes.

    Args:
        wanted: derivatives by the unary scores (the tag marginals, less the gold tags) and by the
            pairs (the edge marginals, less the gold arcs).
        every_edge: shared pairs too get one matrix per edge.
    """
    unary, pair, lengths = _packed(unary, 1), _packed(pair, 2), _packed(lengths, 1)
    tags = None if tags is None else tags.contiguous()
    slopes = _slopes(unary, pair, wanted, every_edge)
    failed = _native.crf(
        _problem(pair, lengths, unary=unary),
        every_edge=every_edge,
        **_addresses(tags=tags, **_destinations(slopes)),
    )
    return None if failed else slopes


def bregman(
    unary: Tensor,
    pair: Tensor,
    lengths: Tensor,
    settings: Settings,
    tags: Tensor | None = None,
    wanted: Sequence[bool] = (False, False),
    every_edge: bool = False,
) -> Slopes | None:
    """D(lam) after the projections, or with tags the Fenchel-Young loss; otherwise as `crf`."""
    unary, pair, lengths = _packed(unary, 1), _packed(pair, 2), _packed(lengths, 1)
    tags = None if tags is None else tags.contiguous()
    slopes = _slopes(unary, pair, wanted, every_edge)
    failed = _bregman(
        _problem(pair, lengths, unary=unary),
        settings,
        every_edge=every_edge,
        **_addresses(tags=tags, **_destinations(slopes)),
    )
    return None if failed else slopes


def flow(unary: Tensor, pair: Tensor, lengths: Tensor, settings: Settings) -> Flow | None:
    """The projections, and all that is said of them per sentence or position."""
    unary, pair, lengths = _packed(unary, 1), _packed(pair, 2), _packed(lengths, 1)
    value, residual = (torch.empty(len(unary), dtype=torch.float64, device="cpu") for _ in range(2))
    lam, marginals = (torch.empty(unary.shape, dtype=unary.dtype, device="cpu") for _ in range(2))
    failed = _bregman(
        _problem(pair, lengths, unary=unary),
        settings,
        **_addresses(value=value, residual=residual, dual=lam, marginals=marginals),
    )
    return None if failed else Flow(value, residual, lam, marginals)


def most_probable(
    unary: Tensor, pair: Tensor, lengths: Tensor, settings: Settings, temperature: float
) -> Tensor | None:
    """The most probable tag of each position, [B, n], -100 beyond the length."""
    unary, pair, lengths = _packed(unary, 1), _packed(pair, 2), _packed(lengths, 1)
    best = torch.empty(unary.shape[:2], dtype=torch.int64, device="cpu")
    problem = _problem(pair, lengths, unary=unary, scale=1 / temperature)
    failed = _bregman(problem, settings, best=best.data_ptr())
    return None if failed else best


def viterbi(unary: Tensor, pair: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor] | None:
    """Tags [B, n] of a best path, -100 beyond the length, and its score [B] (float64)."""
    unary, pair, lengths = _packed(unary, 1), _packed(pair, 2), _packed(lengths, 1)
    tags = torch.empty(unary.shape[:2], dtype=torch.int64, device="cpu")
    score = torch.empty(len(unary), dtype=torch.float64, device="cpu")
    problem = _problem(pair, lengths, unary=unary)
    failed = _native.viterbi(problem, tags.data_ptr(), score.data_ptr())
    return None if failed else (tags, score)


def certified(
    unary: Tensor, pair: Tensor, lengths: Tensor, omegas: Sequence[float], temperature: float
) -> tuple[Tensor, Tensor, Tensor] | None:
    """As `viterbi`, by projections where these prove it: and where they did, bool [B]."""
    unary, pair, lengths = _packed(unary, 1), _packed(pair, 2), _packed(lengths, 1)
    tags = torch.empty(unary.shape[:2], dtype=torch.int64, device="cpu")
    score = torch.empty(len(unary), dtype=torch.float64, device="cpu")
    proved = torch.empty(len(unary), dtype=torch.bool, device="cpu")
    problem = _problem(pair, lengths, unary=unary)
    outputs = tags.data_ptr(), score.data_ptr(), proved.data_ptr()
    failed = _native.certified(problem, omegas, temperature, *outputs)
    return None if failed else (tags, score, proved)


# What every kernel has (see `naive`). Messages have to be differentiable to any order: torch's are.


def project(
    arcs: Arcs, lam: Tensor, omegas: Sequence[float], first: int, tolerance: float | None
) -> Tensor:
    left, right, start = _packed(arcs.left, 3), _packed(arcs.right, 3), _packed(lam, 3)
    pair, lengths = _packed(arcs.pair.scores, 2), _packed(arcs.lengths, 1)
    out = torch.empty_like(start)
    failed = _bregman(
        _problem(pair, lengths, left=left, right=right, n=lam.shape[1]),
        Settings(omegas, first, tolerance, False, False),
        **_addresses(start=start, dual=out),
    )
    # Failed: a NaN that nobody looked for. Let it through.
    return vectorized.project(arcs, lam, omegas, first, tolerance) if failed else out


def best_paths(arcs: Arcs) -> Tensor:
    found = viterbi(arcs.unary, arcs.pair.scores, arcs.lengths)
    return vectorized.best_paths(arcs) if found is None else found[0].clamp(min=0)


# How tensors get there: as addresses of packed memory, which the caller keeps alive.


def _problem(
    pair: Tensor,
    lengths: Tensor,
    *,
    unary: Tensor | None = None,
    left: Tensor | None = None,
    right: Tensor | None = None,
    n: int | None = None,
    scale: float = 1.0,
) -> Any:
    """Scores of positions are `unary`, or else the shares `left` and `right` of arcs."""
    nodes = left if unary is None else unary
    assert nodes is not None
    batch, positions, tags = nodes.shape
    by_sentence, by_position, _ = nodes.stride()
    shared = pair.dim() == 2
    by_pairs = (0, 0) if shared else pair.stride()[:2]
    return _native.Problem(
        nodes.dtype is torch.float64,
        torch.get_num_threads(),
        batch,
        positions if n is None else n,
        tags,
        lengths.data_ptr(),
        0 if unary is None else unary.data_ptr(),
        0 if left is None else left.data_ptr(),
        0 if right is None else right.data_ptr(),
        by_sentence,
        by_position,
        pair.data_ptr(),
        *by_pairs,
        shared,
        scale,
    )


def _bregman(problem: Any, settings: Settings, **rest: Any) -> int:
    tolerance = -1.0 if settings.tolerance is None else settings.tolerance
    failed: int = _native.bregman(
        problem,
        settings.omegas,
        settings.first,
        tolerance,
        gauge_right=settings.gauge_right,
        outgoing=settings.outgoing,
        **rest,
    )
    return failed


def _packed(x: Tensor, dims: int) -> Tensor:
    """`x` with no gaps in its last `dims` dimensions; copied only if it has some."""
    x = x.resolve_neg()  # of a view that is negated when it is read
    if x.is_contiguous():
        return x
    size = 1
    for dim in range(1, dims + 1):
        if x.stride(-dim) != size:
            return x.contiguous()
        size *= x.shape[-dim]
    return x


def _slopes(unary: Tensor, pair: Tensor, wanted: Sequence[bool], every_edge: bool) -> Slopes:
    """Memory for what is wanted."""
    batch, n, tags = unary.shape
    total = pair.dim() == 2 and not every_edge
    shape = (batch, tags, tags) if total else (batch, max(n - 1, 0), tags, tags)
    return Slopes(
        torch.empty(batch, dtype=torch.float64, device="cpu"),
        torch.empty(unary.shape, dtype=unary.dtype, device="cpu") if wanted[0] else None,
        torch.empty(shape, dtype=unary.dtype, device="cpu") if wanted[1] else None,
        torch.empty(pair.shape, dtype=unary.dtype, device="cpu") if wanted[1] and total else None,
    )


def _destinations(slopes: Slopes) -> dict[str, Tensor | None]:
    return {
        "value": slopes.value,
        "unary_gradient": slopes.unary,
        "pair_gradient": slopes.pair,
        "pair_total": slopes.total,
    }


def _addresses(**tensors: Tensor | None) -> dict[str, int]:
    return {name: x.data_ptr() for name, x in tensors.items() if x is not None}
