"""The hot functions in vectorised torch, for any device: the `torch` backend.

`project` and the scans have no loop over positions; the other messages and `best_paths` are
sequential by nature.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..arcs import Arcs, Pairs
from ..checks import values_visible
from ..flow import residual
from ..logspace import log_matmul, wide_dtype
from ..loops import Step, in_graph, knows, loop
from ..scan import suffix_products

__all__ = [
    "backward_messages",
    "best_paths",
    "forward_messages",
    "project",
    "scan_backward_messages",
    "scan_forward_messages",
]


def project(
    arcs: Arcs, lam: Tensor, omegas: Sequence[float], first: int, tolerance: float | None
) -> Tensor:
    """See `naive.project`. All positions of one parity at once: block coordinate descent on D."""
    lam = lam.clone()
    if tolerance is None:
        for k, omega in enumerate(omegas):
            _step(arcs, lam, first if k % 2 == 0 else 3 - first, omega)
        return lam
    relax = one = lam.new_ones(lam.shape[0], 1, 1)
    running = torch.ones_like(relax, dtype=torch.bool)
    for k, planned in enumerate(omegas):
        close = residual(arcs, lam).view(-1, 1, 1) <= tolerance
        running = running & ~(close & (relax == 1))
        if values_visible(lam) and not bool(running.any()):
            break
        finish = close if k < len(omegas) - 1 else torch.ones_like(close)
        relax = torch.where(finish, one, planned)
        _step(arcs, lam, first if k % 2 == 0 else 3 - first, torch.where(running, relax, 0.0))
    return lam


def _step(arcs: Arcs, lam: Tensor, first: int, omega: float | Tensor) -> None:
    """Project `lam` in place at positions first, first + 2, ...: lam += omega (new - lam).

    new = (beta - alpha) / 2, with alpha and beta the log mass that the arcs before and after a tag
    would have without its own lam. Constants per position change nothing; they are taken out, for
    precision.
    """
    n = lam.shape[1]
    here = slice(first, n - 1, 2)
    before, after = slice(first - 1, n - 2, 2), slice(first + 1, n, 2)
    if first > n - 2:
        return
    alpha = arcs.right[:, before] + arcs.pair[before].forward(arcs.left[:, before] - lam[:, before])
    beta = arcs.left[:, here] + arcs.pair[here].backward(arcs.right[:, here] + lam[:, after])
    free = arcs.free[:, here]
    new = torch.where(free, (beta - alpha) / 2, 0.0)
    mean = new.sum(-1, keepdim=True) / free.sum(-1, keepdim=True).clamp(min=1)
    old = lam[:, here]
    lam[:, here] = torch.where(free, old + omega * (new - mean - old), 0.0)


def backward_messages(arcs: Arcs) -> tuple[Tensor, Tensor]:
    """See `naive.backward_messages`. Each message is normalised; the scale adds up the maxima, in
    float64 where the device has it."""
    last = arcs.final_messages
    scale = last.new_zeros(last.shape[0], dtype=wide_dtype(last.device))
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
    (_, scale), messages = _over_edges(arcs, step, start, last[:, :-1], reverse=True)
    return torch.cat([messages, last[:, -1:]], 1), scale


def forward_messages(arcs: Arcs) -> Tensor:
    """See `naive.forward_messages`. Each message is normalised."""
    if not arcs.live.shape[1]:
        return arcs.alone
    first = _first_message(arcs)
    if arcs.live.shape[1] == 1:
        return first.unsqueeze(1)

    def step(carry: tuple[Tensor, ...], here: tuple[Any, ...]) -> Any:
        (message,), (pair, left, right, edge) = carry, here
        message = torch.where(edge, right + pair.forward(left + message), 0.0)
        peak = message.detach().amax(-1, keepdim=True)
        message = message - torch.where(peak == -math.inf, 0.0, peak)
        return (message,), message

    _, messages = _over_edges(arcs, step, (first,))
    return torch.cat([first.unsqueeze(1), messages], 1)


def _first_message(arcs: Arcs) -> Tensor:
    """[B, T]: nothing comes before position 0; -inf at dead tags."""
    return torch.zeros_like(arcs.alone[:, 0]).masked_fill(~arcs.live[:, 0], -math.inf)


def _over_edges(
    arcs: Arcs,
    step: Step,
    carry: tuple[Tensor, ...],
    *columns: Tensor,
    reverse: bool = False,
    exponentials: bool = True,
) -> tuple[tuple[Tensor, ...], Tensor]:
    """`loop` over the edges; a step is given pair, left [B, T], right [B, T], edge [B, 1] and what
    `columns` [B, m, ...] hold."""
    pair = arcs.pair
    columns = (arcs.left, arcs.right, arcs.edge.unsqueeze(-1), *columns)
    if not in_graph():
        pairs = pair.steps(arcs.left.shape[1], exponentials)
        return loop(step, carry, (pairs, *columns), reverse)
    if pair.shared:
        return loop(lambda carry, here: step(carry, (pair, *here)), carry, columns, reverse)
    columns = (pair.scores, *columns)
    return loop(
        lambda carry, here: step(carry, (Pairs(here[0]), *here[1:])), carry, columns, reverse
    )


def scan_backward_messages(arcs: Arcs) -> tuple[Tensor, Tensor]:
    """`backward_messages` by an associative scan over T x T matrices: depth log n, work n T^3.

    In a graph for all lengths, whose depth cannot depend on them, it is `backward_messages`.
    """
    last = arcs.final_messages
    if not knows(last.shape[1]):
        return backward_messages(arcs)
    if not last.shape[1]:
        return last, last.sum((1, 2)).to(wide_dtype(last.device))
    matrices, peak = _matrices(arcs)
    position = (arcs.lengths - 1).clamp(min=0).view(-1, 1, 1).expand(-1, 1, last.shape[-1])
    beta = _messages(matrices, last.gather(1, position).squeeze(1))
    beta = torch.where(arcs.inside.unsqueeze(-1), beta, 0.0)
    return beta, peak.flatten(1).sum(1, dtype=wide_dtype(last.device))


def scan_forward_messages(arcs: Arcs) -> Tensor:
    """`forward_messages` by the same scan, over the transposed matrices in reverse."""
    if not knows(arcs.live.shape[1]):
        return forward_messages(arcs)
    if not arcs.live.shape[1]:
        return arcs.alone
    matrices, _ = _matrices(arcs)
    return _messages(matrices.mT.flip(1), _first_message(arcs)).flip(1)


def _matrices(arcs: Arcs) -> tuple[Tensor, Tensor]:
    """All arcs, less the maximum of each edge; the identity, which passes messages on, beyond."""
    identity = torch.eye(arcs.live.shape[-1], dtype=torch.bool, device=arcs.live.device)
    edge = arcs.edge[..., None, None]
    scores = arcs.scores()
    scores = torch.where(edge, scores, torch.zeros_like(scores).masked_fill(~identity, -math.inf))
    peak = scores.detach().amax((-2, -1), keepdim=True)
    peak = torch.where(edge & (peak > -math.inf), peak, 0.0)
    return scores - peak, peak


def _messages(matrices: Tensor, end: Tensor) -> Tensor:
    return suffix_products(matrices, end, log_matmul, lambda m, v: Pairs(m).backward(v))


def best_paths(arcs: Arcs) -> Tensor:
    """See `naive.best_paths`. Sums in float64 where the device has it: ties and rounding of long
    float32 sums decide nothing."""
    last = arcs.final_messages.to(wide_dtype(arcs.left.device))
    if last.shape[1] < 2:
        return last.argmax(-1)

    def step(carry: tuple[Tensor, ...], here: tuple[Any, ...]) -> Any:
        (message,), (pair, left, right, edge, final) = carry, here
        ends = pair.scores.to(message.dtype) + (right + message).unsqueeze(1)
        # Not `max`, which opens a parallel region for every small tensor.
        choice = ends.argmax(-1, keepdim=True)
        best = ends.gather(-1, choice).squeeze(-1)
        return (torch.where(edge, left + best, final),), choice.squeeze(-1)

    def follow(carry: tuple[Tensor, ...], here: tuple[Any, ...]) -> Any:
        tag = here[0].gather(1, carry[0])
        return (tag,), tag.squeeze(1)

    start = (last[:, -1],)
    (message,), choices = _over_edges(
        arcs, step, start, last[:, :-1], reverse=True, exponentials=False
    )
    tag = message.argmax(-1, keepdim=True)
    return torch.cat([tag, loop(follow, (tag,), (choices,))[1]], 1)
