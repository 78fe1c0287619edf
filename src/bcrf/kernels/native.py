"""The compiled kernels (C++, in `native/`) as functions of tensors, and their autograd function.

The kernels take unary [B, n, T], pair [T, T] or [B, n-1, T, T] and lengths [B] on the CPU. They
solve whole sentences: they fold, trim and check the scores themselves. Each function returns None
if a sentence is invalid: a score is NaN or +inf, a tag is out of range or removed, no path is
left, or a value overflows. The caller then runs the torch code, which raises an error that says
what is wrong (`bcrf.diagnosis`).
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..compat.private_torch import missing_probe
from . import pytorch
from .folded_chain import FoldedChain
from .pytorch import backward_messages, forward_messages
from .results import BregmanResult, ProjectionSettings, ValueAndGradient

__all__ = [
    "UNAVAILABLE",
    "MaskScan",
    "add_start_end",
    "backward_messages",
    "best_paths",
    "bregman",
    "bregman_result",
    "certified",
    "crf",
    "forward_messages",
    "most_probable",
    "project",
    "scale",
    "scan_mask",
    "sum_start_end",
    "viterbi",
]


def _load() -> tuple[Any, str | None]:
    """Return the extension module and None, or None and the reason why it is unavailable.

    The environment variable BCRF_NATIVE is the path of another build to load, for example one with
    sanitizers.
    """
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


# UNAVAILABLE is None, or the reason why there are no compiled kernels.
_native, UNAVAILABLE = _load()


def crf(
    unary: Tensor,
    pair: Tensor,
    lengths: Tensor | None,
    tags: Tensor | None = None,
    wanted: Sequence[bool] = (False, False),
    every_edge: bool = False,
    in_float64: bool = True,
    follow: Tensor | None = None,
) -> ValueAndGradient | None:
    """Return A(w), or with tags [B, n] the negative log-likelihood, and its gradients.

    Args:
        lengths: [B]; None: all n.
        wanted: whether to compute the gradient with respect to the unary scores, and the one with
            respect to the pairs. They are the tag marginals minus the gold tags, and the edge
            marginals minus the gold arcs. Without tags they are the marginals.
        every_edge: return the gradient of each edge, [B, n-1, T, T], also for shared pairs.
        in_float64: return the value in float64; False: in the dtype of the scores.
        follow: bool [T, T], the allowed transitions, for one matrix per edge; None: all.
    """
    found = _native.crf(
        unary,
        pair,
        lengths,
        follow,
        tags,
        *wanted,
        every_edge,
        in_float64,
        torch.get_num_threads(),
    )
    return None if found is None else ValueAndGradient(*found)


def bregman(
    unary: Tensor,
    pair: Tensor,
    lengths: Tensor | None,
    settings: ProjectionSettings,
    tags: Tensor | None = None,
    wanted: Sequence[bool] = (False, False),
    every_edge: bool = False,
    in_float64: bool = True,
    follow: Tensor | None = None,
) -> ValueAndGradient | None:
    """Return D(lam) after the projections, or with tags the Fenchel-Young loss, and its gradients.

    See `crf` for the other arguments.
    """
    *steps, _ = _extension_arguments(settings)
    found = _native.bregman(
        unary,
        pair,
        lengths,
        follow,
        tags,
        *wanted,
        every_edge,
        in_float64,
        torch.get_num_threads(),
        *steps,
    )
    return None if found is None else ValueAndGradient(*found)


def bregman_result(
    unary: Tensor, pair: Tensor, lengths: Tensor | None, settings: ProjectionSettings
) -> BregmanResult | None:
    """Run the projections; return the value, residual, dual point and tag marginals."""
    found = _native.bregman_result(
        unary, pair, lengths, torch.get_num_threads(), *_extension_arguments(settings)
    )
    return None if found is None else BregmanResult(*found)


def most_probable(
    unary: Tensor,
    pair: Tensor,
    lengths: Tensor | None,
    settings: ProjectionSettings,
    temperature: float,
) -> Tensor | None:
    """Return the most probable tag of each position, [B, n], -100 beyond the length."""
    threads = torch.get_num_threads()
    tags: Tensor | None = _native.most_probable(
        unary, pair, lengths, threads, *_extension_arguments(settings), temperature
    )
    return tags


def viterbi(
    unary: Tensor, pair: Tensor, lengths: Tensor | None, in_float64: bool = True
) -> tuple[Tensor, Tensor] | None:
    """Return the tags [B, n] of a best path, -100 beyond the length, and its score [B]."""
    found: tuple[Tensor, Tensor] | None = _native.viterbi(
        unary, pair, lengths, in_float64, torch.get_num_threads()
    )
    return found


def certified(
    unary: Tensor,
    pair: Tensor,
    lengths: Tensor | None,
    omegas: Sequence[float],
    temperature: float,
    in_float64: bool = True,
) -> tuple[Tensor, Tensor, Tensor] | None:
    """Return tags and score as `viterbi` does, and bool [B]: True where the tags are certified."""
    found: tuple[Tensor, Tensor, Tensor] | None = _native.certified(
        unary, pair, lengths, in_float64, torch.get_num_threads(), omegas, temperature
    )
    return found


class MaskScan(NamedTuple):
    """What a mask and gold tags keep of a batch.

    Args:
        keep: bool [B, n], the kept positions; None: every position is kept.
        lengths: int64 [B], the number of kept positions; None: all n.
        compact: whether the kept positions come first in every sentence.
        mask_keeps_first: whether the mask keeps the first position of every sentence.
    """

    keep: Tensor | None
    lengths: Tensor | None
    compact: bool
    mask_keeps_first: bool


def scan_mask(mask: Tensor | None, tags: Tensor | None) -> MaskScan:
    """Return what `mask` (bool [B, n]) and `tags` (int64 [B, n]) keep; one of them may be None.

    A tag of -100 removes its position. One call takes about 5 us; the same in torch operations
    takes about 30 us.
    """
    return MaskScan(*_native.scan_mask(mask, tags))


def add_start_end(unary: Tensor, start_end: Tensor, lengths: Tensor) -> Tensor:
    """Return `unary` [B, n, T] plus `start_end` [2T]: see `LinearChain._add_start_end`."""
    found: Tensor = _native.add_start_end(unary, start_end, lengths)
    return found


def sum_start_end(by_unary: Tensor, lengths: Tensor) -> Tensor:
    """Return the sums [2T] over the sentences of [B, n, T] at the first and last positions."""
    found: Tensor = _native.sum_start_end(by_unary, lengths)
    return found


def scale(grad: Tensor, by_unary: Tensor | None, by_pair: Tensor | None) -> bool:
    """Multiply both gradients in place by `grad` [B] if all its entries are one number in memory.

    Return whether they are; if not, the gradients do not change.
    """
    found: bool = _native.scale(grad, by_unary, by_pair)
    return found


def _extension_arguments(settings: ProjectionSettings) -> tuple[Any, ...]:
    """Return `settings` as the extension takes them, with -1 for a tolerance of None."""
    omegas, first, tolerance, *rest = settings
    return (omegas, first, -1.0 if tolerance is None else tolerance, *rest)


# The functions of the `BackendModule` protocol. Messages must be differentiable to any order, so
# this module imports `backward_messages` and `forward_messages` from the torch backend.


def project(
    folded: FoldedChain,
    lam: Tensor,
    omegas: Sequence[float],
    first: int,
    tolerance: float | None,
) -> Tensor:
    """Return lam after the projections on a folded chain: see `reference.project`."""
    tensors = (folded.left, folded.right, folded.transitions.scores, folded.lengths, lam)
    steps = _extension_arguments(ProjectionSettings(omegas, first, tolerance, False, False))[:3]
    found: Tensor | None = _native.project(*tensors, torch.get_num_threads(), *steps)
    # None: a score is NaN, and checks are off. The torch code propagates the NaN.
    return pytorch.project(folded, lam, omegas, first, tolerance) if found is None else found


def best_paths(folded: FoldedChain) -> Tensor:
    """Return the tags of a best path: see `reference.best_paths`."""
    found = viterbi(folded.unary, folded.transitions.scores, folded.lengths)
    return pytorch.best_paths(folded) if found is None else found[0].clamp(min=0)
