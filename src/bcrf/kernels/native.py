"""The compiled kernels (C++, in `native/`), as functions from tensors to tensors; no autograd.

They take unary [B, n, T], pair [T, T] or [B, n-1, T, T] and lengths [B] on the CPU, and solve whole
sentences: fold, trim, checks and all. Each returns None if a sentence has no answer (a score that
is NaN or +inf, a tag out of range or removed, no path left, a value that overflows): the torch
kernels then say what is wrong.
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
from ..torch_internals import missing_probe
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
    "scale",
    "viterbi",
]


def _load() -> tuple[Any, str | None]:
    """The extension, or why there is none. BCRF_NATIVE names another build, with sanitizers say."""
    path = os.environ.get("BCRF_NATIVE")
    missing = missing_probe()
    if missing is not None:
        return None, (
            f"torch {torch.__version__} has no {missing}, which tells whether operations may be "
            "hidden from torch; install a version of torch that has it"
        )
    try:
        if not path:
            from .. import _native

            _native.use_torch(torch)
            return _native, None
        spec = importlib.util.spec_from_file_location("bcrf._native", path)
        if spec is None or spec.loader is None:
            raise ImportError(f"BCRF_NATIVE={path} is no extension module")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        sys.modules["bcrf._native"] = module
        module.use_torch(torch)
        return module, None
    except ImportError as error:
        if not path and importlib.util.find_spec("bcrf._native") is None:
            return None, (
                "the compiled extension was not built: there was no CMake or C++ compiler when "
                "bcrf was installed, or compiling failed; get a C++ compiler and install bcrf "
                "again (`make native` in a checkout shows what goes wrong)"
            )
        return None, f"the compiled extension was built, but cannot be loaded: {error}"


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
    lengths: Tensor | None,
    tags: Tensor | None = None,
    wanted: Sequence[bool] = (False, False),
    every_edge: bool = False,
    wide: bool = True,
    follow: Tensor | None = None,
) -> Slopes | None:
    """A(w), or with tags [B, n] the negative log-likelihood, and its slopes.

    Args:
        lengths: [B]; None: all n.
        wanted: derivatives by the unary scores (the tag marginals, less the gold tags) and by the
            pairs (the edge marginals, less the gold arcs).
        every_edge: shared pairs too get one matrix per edge.
        wide: the value in float64; otherwise in the dtype of the scores.
        follow: bool [T, T], which pairs count, if there is one matrix per edge; None: all.
    """
    threads = torch.get_num_threads()
    found = _native.crf(unary, pair, lengths, follow, tags, *wanted, every_edge, wide, threads)
    return None if found is None else Slopes(*found)


def bregman(
    unary: Tensor,
    pair: Tensor,
    lengths: Tensor | None,
    settings: Settings,
    tags: Tensor | None = None,
    wanted: Sequence[bool] = (False, False),
    every_edge: bool = False,
    wide: bool = True,
    follow: Tensor | None = None,
) -> Slopes | None:
    """D(lam) after the projections, or with tags the Fenchel-Young loss; otherwise as `crf`."""
    flags = (*wanted, every_edge, wide, torch.get_num_threads())
    found = _native.bregman(unary, pair, lengths, follow, tags, *flags, *_steps(settings)[:4])
    return None if found is None else Slopes(*found)


def flow(unary: Tensor, pair: Tensor, lengths: Tensor | None, settings: Settings) -> Flow | None:
    """The projections, and all that is said of them per sentence or position."""
    found = _native.flow(unary, pair, lengths, torch.get_num_threads(), *_steps(settings))
    return None if found is None else Flow(*found)


def most_probable(
    unary: Tensor, pair: Tensor, lengths: Tensor | None, settings: Settings, temperature: float
) -> Tensor | None:
    """The most probable tag of each position, [B, n], -100 beyond the length."""
    threads = torch.get_num_threads()
    tags: Tensor | None = _native.most_probable(
        unary, pair, lengths, threads, *_steps(settings), temperature
    )
    return tags


def viterbi(
    unary: Tensor, pair: Tensor, lengths: Tensor | None, wide: bool = True
) -> tuple[Tensor, Tensor] | None:
    """Tags [B, n] of a best path, -100 beyond the length, and its score [B]."""
    found: tuple[Tensor, Tensor] | None = _native.viterbi(
        unary, pair, lengths, wide, torch.get_num_threads()
    )
    return found


def certified(
    unary: Tensor,
    pair: Tensor,
    lengths: Tensor | None,
    omegas: Sequence[float],
    temperature: float,
    wide: bool = True,
) -> tuple[Tensor, Tensor, Tensor] | None:
    """As `viterbi`, by projections where these prove it: and where they did, bool [B]."""
    found: tuple[Tensor, Tensor, Tensor] | None = _native.certified(
        unary, pair, lengths, wide, torch.get_num_threads(), omegas, temperature
    )
    return found


def scale(grad: Tensor, unary: Tensor | None, pair: Tensor | None) -> bool:
    """Multiply both slopes in place by `grad` [B] if that is one number; False: it is not."""
    done: bool = _native.scale(grad, unary, pair)
    return done


def _steps(settings: Settings) -> tuple[Any, ...]:
    """`settings` as the extension takes them: a negative tolerance is none."""
    omegas, first, tolerance, *rest = settings
    return (omegas, first, -1.0 if tolerance is None else tolerance, *rest)


# What every kernel has (see `naive`). Messages have to be differentiable to any order: torch's are.


def project(
    arcs: Arcs, lam: Tensor, omegas: Sequence[float], first: int, tolerance: float | None
) -> Tensor:
    tensors = (arcs.left, arcs.right, arcs.pair.scores, arcs.lengths, lam)
    steps = (omegas, first, -1.0 if tolerance is None else tolerance)
    found: Tensor | None = _native.project(*tensors, torch.get_num_threads(), *steps)
    # None: a NaN that nobody looked for. Let it through.
    return vectorized.project(arcs, lam, omegas, first, tolerance) if found is None else found


def best_paths(arcs: Arcs) -> Tensor:
    found = viterbi(arcs.unary, arcs.pair.scores, arcs.lengths)
    return vectorized.best_paths(arcs) if found is None else found[0].clamp(min=0)
