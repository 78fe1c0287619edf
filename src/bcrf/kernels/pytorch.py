"""The "torch" backend: the functions of `reference` in vectorised torch code, for any device.

`project` and the `scan_` functions have no loop over positions. `backward_messages`,
`forward_messages` and `best_paths` loop over positions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..checks import values_readable
from ..compat.control_flow import Step, is_exporting, is_static, is_tracing, loop, stored
from ..numerics.associative_scan import suffix_products
from ..numerics.logspace import log_matmul, widest_dtype
from . import exported
from .dual import residual
from .folded_chain import FoldedChain, Transitions

__all__ = [
    "backward_messages",
    "best_paths",
    "forward_messages",
    "project",
    "scan_backward_messages",
    "scan_forward_messages",
]


def project(
    folded: FoldedChain, lam: Tensor, omegas: Sequence[float], first: int, tolerance: float | None
) -> Tensor:
    """Return lam after block coordinate descent on the dual D (see `dual`).

    Each step updates all interior positions of one parity at once. See `reference.project` for the
    arguments and the result.
    """
    if tolerance is None and is_exporting():
        return exported.project(folded, lam, omegas, first)
    if tolerance is None and torch.compiler.is_compiling() and is_static(lam.shape[1]):
        return _project_by_parity(folded, lam, omegas, first)
    lam = lam.clone()
    if tolerance is None:
        for k, omega in enumerate(omegas):
            _step(folded, lam, first if k % 2 == 0 else 3 - first, omega)
        return lam
    relax = one = lam.new_ones(lam.shape[0], 1, 1)
    running = torch.ones_like(relax, dtype=torch.bool)
    for k, planned in enumerate(omegas):
        close = residual(folded, lam).view(-1, 1, 1) <= tolerance
        running = running & ~(close & (relax == 1))
        if values_readable(lam) and not bool(running.any()):
            break
        finish = close if k < len(omegas) - 1 else torch.ones_like(close)
        relax = torch.where(finish, one, planned)
        _step(folded, lam, first if k % 2 == 0 else 3 - first, torch.where(running, relax, 0.0))
    return lam


def _step(folded: FoldedChain, lam: Tensor, first: int, omega: float | Tensor) -> None:
    """Project `lam` in place at positions first, first + 2, ...: lam += omega (new - lam).

    Here new = (beta - alpha) / 2. alpha and beta are the log mass of the arcs that enter and leave
    a tag, without the term lam of this tag. lam is defined up to a constant per position;
    subtracting the mean keeps the numbers small and precise.
    """
    n = lam.shape[1]
    here = slice(first, n - 1, 2)
    before, after = slice(first - 1, n - 2, 2), slice(first + 1, n, 2)
    if first > n - 2:
        return
    alpha = folded.right[:, before] + folded.transitions[before].forward(
        folded.left[:, before] - lam[:, before]
    )
    beta = folded.left[:, here] + folded.transitions[here].backward(
        folded.right[:, here] + lam[:, after]
    )
    free = folded.interior_live[:, here]
    new = torch.where(free, (beta - alpha) / 2, 0.0)
    mean = new.sum(-1, keepdim=True) / free.sum(-1, keepdim=True).clamp(min=1)
    old = lam[:, here]
    lam[:, here] = torch.where(free, old + omega * (new - mean - old), 0.0)


def _project_by_parity(
    folded: FoldedChain, lam: Tensor, omegas: Sequence[float], first: int
) -> Tensor:
    """Return the result of `project`, in operations that a compiler fuses to few kernels.

    The length must be static: with a symbolic one, even and odd lengths would need two graphs.

    Interior positions 1, 3, ... and 2, 4, ... are two tensors, so that a projection writes one
    tensor as a whole; a slice of `lam` would be one more kernel. A constant per position has no
    effect (see `_step`). We subtract it after every few projections only, because it is a sum over
    the tags of the result, and so ends a fused kernel.
    """
    n = lam.shape[1]
    left, right = stored(folded.left, folded.right)
    live = folded.interior_live
    size = {1: (n - 1) // 2, 2: (n - 2) // 2}
    free = {p: live[:, p : n - 1 : 2] for p in (1, 2)}
    state = {p: lam[:, p : n - 1 : 2] for p in (1, 2)}
    for k, omega in enumerate(omegas):
        p = first if k % 2 == 0 else 3 - first
        before, after = _neighbours(state[3 - p], p, size[p])
        alpha = folded.transitions[p - 1 : n - 2 : 2].forward(left[:, p - 1 : n - 2 : 2] - before)
        beta = folded.transitions[p : n - 1 : 2].backward(right[:, p : n - 1 : 2] + after)
        new = (left[:, p : n - 1 : 2] + beta - right[:, p - 1 : n - 2 : 2] - alpha) / 2
        new = torch.where(free[p], new, 0.0)
        if (k + 1) % _CENTRE_EVERY == 0:
            new = _centred(new, free[p])
        state[p] = torch.where(free[p], state[p] + omega * (new - state[p]), 0.0)
    odd, even = state[1], _resized(state[2], size[1])
    interior = _resized(torch.stack([odd, even], 2).flatten(1, 2), n - 2)
    return _centred(pad(interior, (0, 0, 1, 1)), live)


# Between two such projections the constants grow by a few scores.
_CENTRE_EVERY = 16


def _neighbours(lam: Tensor, parity: int, size: int) -> tuple[Tensor, Tensor]:
    """Return lam before and after the `size` interior positions of a parity, 1 or 2.

    `lam` holds the interior positions of the other parity; it is 0 at the first and the last
    position of the chain.
    """
    if parity == 1:  # positions 1, 3, ... lie between 0, 2, ... and 2, 4, ...
        return _resized(pad(lam, (0, 0, 1, 0)), size), _resized(lam, size)
    return _resized(lam, size), _resized(lam[:, 1:], size)


def _resized(x: Tensor, size: int) -> Tensor:
    """Return `x` [B, h, T] with `size` positions: at most one of zeros is appended."""
    return pad(x, (0, 0, 0, 1))[:, :size]


def _centred(lam: Tensor, free: Tensor) -> Tensor:
    """Return `lam` minus its mean over the free tags of each position; 0 at the other tags."""
    lam = torch.where(free, lam, 0.0)
    mean = lam.sum(-1, keepdim=True) / free.sum(-1, keepdim=True).clamp(min=1)
    return torch.where(free, lam - mean, 0.0)


def backward_messages(folded: FoldedChain) -> tuple[Tensor, Tensor]:
    """Return backward messages and their log scale: see `reference.backward_messages`.

    We subtract the maximum from each message. The scale is the sum of these maxima, in float64
    where the device has it.
    """
    last = folded.final_messages
    scale = last.new_zeros(last.shape[0], dtype=widest_dtype(last.device))
    if last.shape[1] < 2:
        return last, scale

    def step(carry: tuple[Tensor, ...], here: tuple[Any, ...]) -> Any:
        (message, scale), (pair, left, right, edge, final) = carry, here
        message = torch.where(edge, left + pair.backward(right + message), final)
        peak = message.detach().amax(-1, keepdim=True)
        peak = torch.where(edge & (peak > -math.inf), peak, 0.0)
        message = message - peak
        return (message, scale + peak.squeeze(-1)), message

    start = (last[:, -1], scale)
    (_, scale), messages = _over_edges(folded, step, start, last[:, :-1], reverse=True)
    return torch.cat([messages, last[:, -1:]], 1), scale


def forward_messages(folded: FoldedChain) -> Tensor:
    """Return normalised forward messages: see `reference.forward_messages`."""
    if not folded.live.shape[1]:
        return folded.single_scores
    first = _first_message(folded)
    if folded.live.shape[1] == 1:
        return first.unsqueeze(1)

    def step(carry: tuple[Tensor, ...], here: tuple[Any, ...]) -> Any:
        (message,), (pair, left, right, edge) = carry, here
        message = torch.where(edge, right + pair.forward(left + message), 0.0)
        peak = message.detach().amax(-1, keepdim=True)
        message = message - torch.where(peak == -math.inf, 0.0, peak)
        return (message,), message

    _, messages = _over_edges(folded, step, (first,))
    return torch.cat([first.unsqueeze(1), messages], 1)


def _first_message(folded: FoldedChain) -> Tensor:
    """Return the forward message of position 0, [B, T]: 0, and -inf at dead tags."""
    return torch.zeros_like(folded.single_scores[:, 0]).masked_fill(~folded.live[:, 0], -math.inf)


def _over_edges(
    folded: FoldedChain,
    step: Step,
    carry: tuple[Tensor, ...],
    *columns: Tensor,
    reverse: bool = False,
    exponentials: bool = True,
) -> tuple[tuple[Tensor, ...], Tensor]:
    """Run `loop` over the edges, and return its result.

    Each step gets the transitions of its edge, left [B, T], right [B, T], edge [B, 1], and its
    entries of `columns` [B, m, ...].
    """
    pair = folded.transitions
    columns = (folded.left, folded.right, folded.edge.unsqueeze(-1), *columns)
    if not is_tracing():
        pairs = pair.steps(folded.left.shape[1], exponentials)
        return loop(step, carry, (pairs, *columns), reverse)
    if pair.shared:
        return loop(lambda carry, here: step(carry, (pair, *here)), carry, columns, reverse)
    columns = (pair.scores, *columns)
    return loop(
        lambda carry, here: step(carry, (Transitions(here[0]), *here[1:])), carry, columns, reverse
    )


def scan_backward_messages(folded: FoldedChain) -> tuple[Tensor, Tensor]:
    """Return `backward_messages` by an associative scan over matrices: depth log n, work n T^3.

    The depth of a graph that serves all lengths cannot depend on the length. Such a graph runs
    `backward_messages` instead.
    """
    last = folded.final_messages
    if not is_static(last.shape[1]):
        return backward_messages(folded)
    if not last.shape[1]:
        return last, last.sum((1, 2)).to(widest_dtype(last.device))
    matrices, peak = _matrices(folded)
    position = (folded.lengths - 1).clamp(min=0).view(-1, 1, 1).expand(-1, 1, last.shape[-1])
    beta = _messages(matrices, last.gather(1, position).squeeze(1))
    beta = torch.where(folded.inside.unsqueeze(-1), beta, 0.0)
    return beta, peak.flatten(1).sum(1, dtype=widest_dtype(last.device))


def scan_forward_messages(folded: FoldedChain) -> Tensor:
    """Return `forward_messages` by the same scan, over the transposed matrices in reverse."""
    if not is_static(folded.live.shape[1]):
        return forward_messages(folded)
    if not folded.live.shape[1]:
        return folded.single_scores
    matrices, _ = _matrices(folded)
    return _messages(matrices.mT.flip(1), _first_message(folded)).flip(1)


def _matrices(folded: FoldedChain) -> tuple[Tensor, Tensor]:
    """Return the arc scores minus the maximum of each edge, and these maxima.

    Beyond the length the matrices are the identity, which passes messages on unchanged.
    """
    identity = torch.eye(folded.live.shape[-1], dtype=torch.bool, device=folded.live.device)
    edge = folded.edge[..., None, None]
    scores = folded.scores()
    scores = torch.where(edge, scores, torch.zeros_like(scores).masked_fill(~identity, -math.inf))
    peak = scores.detach().amax((-2, -1), keepdim=True)
    peak = torch.where(edge & (peak > -math.inf), peak, 0.0)
    return scores - peak, peak


def _messages(matrices: Tensor, end: Tensor) -> Tensor:
    return suffix_products(matrices, end, log_matmul, lambda m, v: Transitions(m).backward(v))


def best_paths(folded: FoldedChain) -> Tensor:
    """Return the tags of a best path: see `reference.best_paths`.

    Scores are added in float64 where the device has it, so that the rounding of long float32 sums
    does not decide between paths.
    """
    last = folded.final_messages.to(widest_dtype(folded.left.device))
    if last.shape[1] < 2:
        return last.argmax(-1)

    def step(carry: tuple[Tensor, ...], here: tuple[Any, ...]) -> Any:
        (message,), (pair, left, right, edge, final) = carry, here
        ends = pair.scores.to(message.dtype) + (right + message).unsqueeze(1)
        # Not `max`: it starts a parallel region even for small tensors.
        choice = ends.argmax(-1, keepdim=True)
        best = ends.gather(-1, choice).squeeze(-1)
        return (torch.where(edge, left + best, final),), choice.squeeze(-1)

    def follow(carry: tuple[Tensor, ...], here: tuple[Any, ...]) -> Any:
        tag = here[0].gather(1, carry[0])
        return (tag,), tag.squeeze(1)

    start = (last[:, -1],)
    (message,), choices = _over_edges(
        folded, step, start, last[:, :-1], reverse=True, exponentials=False
    )
    tag = message.argmax(-1, keepdim=True)
    return torch.cat([tag, loop(follow, (tag,), (choices,))[1]], 1)
