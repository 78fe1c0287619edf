"""The projections in an exported graph, which other runtimes run operation by operation.

A runtime such as onnxruntime does not fuse operations as a compiler does, so their number and the
size of their results decide the time. Two forms differ from those of `pytorch`:

- Positions 0, 2, ... and 1, 3, ... are two tensors for the whole run. Updating a strided slice of
  one tensor would copy the tensor in each step.
- A product with shared transitions is a matrix product of exponentials (`wide_log_matmul`), not a
  sum over a tensor [B, m, T, T].
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..numerics.logspace import widest_dtype
from .folded_chain import FoldedChain, Transitions

__all__ = ["project"]

# Positions after the last one; edges have one more, because there is one edge less.
_PADDING = 4

# Between two such projections the constants per position grow by a few scores.
_CENTRE_EVERY = 16


def project(folded: FoldedChain, lam: Tensor, omegas: Sequence[float], first: int) -> Tensor:
    """Return lam [B, n, T] after the projections; see `pytorch.project`.

    The layout of the tensors, for n = 5 (followed by padding):

        position    0   1   2   3   4
        lam        e0  o0  e1  o1  e2          even[j] is position 2j, odd[j] is position 2j + 1
        edge          0   1   2   3            edge 2j: e_j -> o_j;  edge 2j + 1: o_j -> e_{j+1}
    """
    n, dtype = lam.shape[1], lam.dtype
    if folded.transitions.shared:  # the products are in float64, so conversions would only cost
        wide = widest_dtype(lam.device)
        folded, lam = folded.to(wide), lam.to(wide)
    even_left, odd_left = _halves(folded.left, _PADDING + 1)
    even_right, odd_right = _halves(folded.right, _PADDING + 1)
    even_free, odd_free = _halves(folded.interior_live, _PADDING)
    even_lam, odd_lam = _halves(lam, _PADDING)
    even_pairs = odd_pairs = before_pairs = folded.transitions
    if not folded.transitions.shared:
        even_scores, odd_scores = _halves(folded.transitions.scores, _PADDING + 1)
        even_pairs, odd_pairs = Transitions(even_scores), Transitions(odd_scores)
        before_pairs = Transitions(_shifted(odd_scores))
    # The edge before an even position, o_{j-1} -> e_j.
    before_left, before_right = _shifted(odd_left), _shifted(odd_right)
    for k, omega in enumerate(omegas):
        centre = (k + 1) % _CENTRE_EVERY == 0
        if (first if k % 2 == 0 else 3 - first) == 1:
            after = pad(even_lam[:, 1:], (0, 0, 0, 1))
            alpha = even_right + even_pairs.forward(even_left - even_lam)
            beta = odd_left + odd_pairs.backward(odd_right + after)
            odd_lam = _step(odd_lam, alpha, beta, odd_free, omega, centre)
        else:
            before = _shifted(odd_lam)
            alpha = before_right + before_pairs.forward(before_left - before)
            beta = even_left + even_pairs.backward(even_right + odd_lam)
            even_lam = _step(even_lam, alpha, beta, even_free, omega, centre)
    # Not stacked and cut to n positions: torch cannot prove that there are so many.
    position = torch.arange(n, device=lam.device)
    pair, is_even = position // 2, (position % 2 == 0).unsqueeze(-1)
    merged = torch.where(is_even, even_lam[:, pair], odd_lam[:, pair])
    return _centred(merged, folded.interior_live).to(dtype)


def _halves(x: Tensor, padding: int) -> tuple[Tensor, Tensor]:
    """Return the entries 0, 2, ... and 1, 3, ... of x [B, m, ...] after `padding` entries of 0.

    Both are [B, h, ...] with h = (m + padding) // 2. torch treats the sizes 0 and 1 as special
    cases, so h must be at least 2 for all m.
    """
    padded = torch.cat([x, x.new_zeros(x.shape[0], padding, *x.shape[2:])], 1)
    return padded[:, 0:-1:2], padded[:, 1::2]


def _shifted(x: Tensor) -> Tensor:
    """Return x [B, h, ...] moved by one position to the right, with 0 in the first."""
    return torch.cat([torch.zeros_like(x[:, :1]), x[:, :-1]], 1)


def _step(
    lam: Tensor, alpha: Tensor, beta: Tensor, free: Tensor, omega: float, centre: bool
) -> Tensor:
    """Return lam + omega (new - lam) at free tags, and 0 elsewhere, with new = (beta - alpha) / 2.

    alpha and beta have no meaning at other tags.
    """
    new = (beta - alpha) / 2
    if centre:
        new = _centred(new, free)
    return torch.where(free, lam + omega * (new - lam), 0.0)


def _centred(lam: Tensor, free: Tensor) -> Tensor:
    """Return `lam` minus its mean over the free tags of each position; 0 at the other tags."""
    lam = torch.where(free, lam, 0.0)
    mean = lam.sum(-1, keepdim=True) / free.sum(-1, keepdim=True).clamp(min=1)
    return torch.where(free, lam - mean, 0.0)
