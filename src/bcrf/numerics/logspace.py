"""Sums of exponentials that handle -inf exactly, also in first and second derivatives.

A term of -inf is absent. An empty sum is -inf and has gradient zero. No operation turns -inf into
NaN.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ..checks import values_readable

__all__ = [
    "clamp_rounding",
    "log_matmul",
    "log_softmax",
    "logsumexp",
    "matmul",
    "scaled_exp",
    "softmax",
    "wide_log_matmul",
    "widest_dtype",
]

# `log_matmul` recomputes rows in chunks of this many numbers, to bound the memory.
_CHUNK = 1 << 22


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """Return `a @ b` in the dtype of its inputs, also under autocast.

    Under autocast, `torch.matmul` would round log-space sums to half precision.
    """
    device = a.device.type
    if _has_autocast(device) and torch.is_autocast_enabled(device):
        product: Tensor = _FullPrecision.apply(a, b)  # type: ignore[no-untyped-call]
        return product
    return torch.matmul(a, b)


def _has_autocast(device: str) -> bool:
    if torch.compiler.is_compiling():  # torch 2.7 cannot trace the call below
        return device != "meta"
    return torch.amp.is_autocast_available(device)


class _FullPrecision(torch.autograd.Function):
    """A matrix product that ignores autocast, also in a backward pass inside an autocast block."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        with torch.autocast(a.device.type, enabled=False):
            return torch.matmul(a, b)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        a, b = ctx.saved_tensors
        by_a, by_b = matmul(grads[0], b.mT), matmul(a.mT, grads[0])
        return by_a.sum_to_size(a.shape), by_b.sum_to_size(b.shape)


def widest_dtype(device: torch.device) -> torch.dtype:
    """Return float64, or float32 on devices without float64."""
    return torch.float32 if device.type == "mps" else torch.float64


def _peak(x: Tensor, dim: int | tuple[int, ...]) -> Tensor:
    """Return the maximum over `dim` without gradient, or 0 where all are -inf; `dim` is kept."""
    peak = x.detach().amax(dim, keepdim=True)
    return torch.where(peak == -math.inf, 0.0, peak)


def logsumexp(x: Tensor, dim: int = -1) -> Tensor:
    """Return log sum exp over `dim`; an empty sum is -inf with gradient zero.

    In every dtype, the result is at least as large as each of its terms. So losses are >= 0.
    """
    peak = _peak(x, dim)
    mass = torch.exp(x - peak).sum(dim)
    empty = mass == 0
    log_mass = torch.where(empty, -math.inf, torch.log(torch.where(empty, 1.0, mass)))
    return log_mass + peak.squeeze(dim)


def log_softmax(logits: Tensor, dim: int = -1) -> Tensor:
    """Return logits - log sum exp; -inf everywhere if every logit is -inf.

    torch subtracts the maximum first, so that probabilities sum to one for scores of any size.
    """
    empty = (logits == -math.inf).all(dim, keepdim=True)
    found = torch.log_softmax(logits.masked_fill(empty, 0.0), dim)
    return found.masked_fill(empty, -math.inf)


def softmax(logits: Tensor, dim: int = -1) -> Tensor:
    """Return exp(logits) / sum; zero everywhere if every logit is -inf."""
    return torch.exp(log_softmax(logits, dim))


def clamp_rounding(difference: Tensor) -> Tensor:
    """Return `difference` with negative values, which are rounding errors, set to 0.

    The gradient does not change.
    """
    return difference - difference.detach().clamp(max=0)


def log_matmul(
    a: Tensor, b: Tensor, exp_b: Tensor | None = None, peak_b: Tensor | None = None
) -> Tensor:
    """Return out[..., r, t] = log sum_s exp(a[..., r, s] + b[..., s, t]).

    The fast form takes two exponentials and a matrix product. If a sum is so small that its terms
    may have underflowed, its row is recomputed in the log form. So the result is exact for any
    range of scores. Finding such sums reads values. In graphs and on other devices, where reading
    is not free, everything is computed in the log form.

    Args:
        a: [..., R, S].
        b: [..., S, T], broadcast against `a`.
        exp_b, peak_b: the result of `scaled_exp(b)`, if several products share it.
    """
    if not values_readable(a):
        return logsumexp(a.unsqueeze(-1) + b.unsqueeze(-3), -2)
    if exp_b is None or peak_b is None:
        exp_b, peak_b = scaled_exp(b)
    peak_a = _peak(a, -1)
    mass = matmul(torch.exp(a - peak_a), exp_b)
    info = torch.finfo(mass.dtype)
    # A term that underflowed is below `tiny`, which is negligible compared to this threshold. Above
    # the threshold, 1 / mass^2, which second derivatives need, does not overflow.
    low = mass < info.tiny**0.4
    if not bool(low.any()):
        return torch.log(mass) + peak_a + peak_b
    out = torch.log(torch.where(low, 1.0, mass)) + peak_a + peak_b
    out = torch.where(low, -math.inf, out)
    present = matmul((a > -math.inf).to(mass.dtype), (b > -math.inf).to(mass.dtype)) > 0
    return _redo_rows(out, a, b, (low & present).any(-1))


def wide_log_matmul(a: Tensor, b: Tensor) -> Tensor:
    """Return `log_matmul(a, b)` for one matrix `b` [S, T], as one matrix product in float64.

    An exported graph cannot look for terms that underflow, so it has no log form to fall back to.
    In float64 a term may be up to exp(-690) of the largest ones before it is lost: 690 is the sum
    of two differences, between a[s] and the largest entry of its row, and between b[s, t] and the
    largest entry of its column. A sum without any larger term becomes exp(-690) of these, also if
    it is empty. Tags without an allowed neighbour are therefore trimmed before.
    """
    wide = widest_dtype(a.device)
    scores, matrix = a.to(wide), b.to(wide)
    peak_a, peak_b = _peak(scores, -1), _peak(matrix, -2)
    mass = matmul(torch.exp(scores - peak_a), torch.exp(matrix - peak_b))
    least = math.exp(-690) if wide == torch.float64 else torch.finfo(wide).tiny
    return (torch.log(mass.clamp(min=least)) + peak_a + peak_b).to(a.dtype)


def scaled_exp(b: Tensor) -> tuple[Tensor, Tensor]:
    """Return exp(b - peak) and the peak [..., 1, 1] of each matrix [..., S, T]."""
    peak = _peak(b, (-2, -1))
    return torch.exp(b - peak), peak


def _redo_rows(out: Tensor, a: Tensor, b: Tensor, rows: Tensor) -> Tensor:
    """Return `out` with the rows `rows` (bool [..., R]) recomputed in the log form."""
    index = torch.nonzero(rows, as_tuple=True)
    if not index[0].numel():
        return out
    matrices = b if b.dim() == 2 else b.expand(*a.shape[:-2], *b.shape[-2:])
    size = max(1, _CHUNK // (b.shape[-2] * b.shape[-1]))
    pieces = []
    for start in range(0, index[0].numel(), size):
        chunk = tuple(i[start : start + size] for i in index)
        b_rows = matrices if b.dim() == 2 else matrices[chunk[:-1]]
        pieces.append(logsumexp(a[chunk].unsqueeze(-1) + b_rows, -2))
    return out.index_put(index, torch.cat(pieces))
