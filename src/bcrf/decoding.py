"""From a chain to tags: minimum Bayes risk, and certified maximum a posteriori."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from . import kernels
from .arcs import Arcs, fold
from .chain import LinearChain
from .checks import check_sums, check_temperature, values_visible
from .inference import Bregman, Solver, viterbi
from .inference.viterbi import best_score
from .kernels import native, ops
from .logspace import wide_dtype
from .room import roomy, without_room

__all__ = ["CertifiedTags", "certified_decode", "decode", "map_decode"]

# The [B, m, T, T] maxima of shared transitions are taken in pieces of so many numbers.
_CHUNK = 1 << 22


def decode(solver: Solver, chain: LinearChain, temperature: float = 1.0) -> Tensor:
    """The most probable tag of each position (minimum Bayes risk), [B, n], -100 beyond the length.

    With `Bregman` at a low temperature (the paper: 0.1) this approximates the best sequence. Tags
    are chosen one by one: the sequence may use removed transitions.
    """
    fused = getattr(solver, "fused_decode", None)
    with torch.no_grad():
        if fused is not None and not isinstance(temperature, Tensor):
            tags: Tensor | None = fused(chain, float(check_temperature(temperature)))
            if tags is not None:
                return tags
        return solver(chain.detach() / temperature).best_tags()


class CertifiedTags(NamedTuple):
    """Best tag sequences [B, n], their scores [B], and where a certificate spared Viterbi [B]."""

    tags: Tensor
    score: Tensor
    certified: Tensor


def certified_decode(
    chain: LinearChain, iterations: int = 10, temperature: float = 0.1, backend: str = "auto"
) -> CertifiedTags:
    """A best tag sequence of each sentence, by parallel projections wherever these can prove it.

    If arcs that attain the maximum of q on every edge join up to a path, that path is a Viterbi
    solution (docs/derivation.md). Viterbi runs on the other sentences only; where values cannot be
    looked at (compiled code, other devices) it runs on all, and the results are selected. The
    native kernel tries the certificate before the last iteration too, and stops once it holds.

    It is meant for where a loop over positions is slow; on a CPU `viterbi` alone takes less time
    (docs/benchmarks.md). `map_decode` chooses between the two.

    Returns:
        tags [B, n] (-100 beyond the length), always a best sequence, hence always well-formed;
        score [B], differentiable; certified [B] bool.
    """
    tau = check_temperature(temperature)
    solver = Bregman(iterations, backend=backend)
    how = kernels.route(backend, chain.unary)
    if how is not None and not isinstance(tau, Tensor):
        if how == "native":
            arrays = (chain.unary, chain.pair_scores, chain.given_lengths)
            found = native.certified(*arrays, solver.omegas, tau, wide=False)
        else:
            with torch.no_grad():
                arrays = (chain.unary, chain.pair_scores, chain.lengths)
                found = ops.certified(*arrays, solver.omegas, tau)
        if found is not None:
            tags, score, certified = found
            return CertifiedTags(tags, best_score(chain, tags, score), certified)
    problem = roomy(chain)
    with torch.no_grad():
        arcs = fold(problem)
        lam = solver.dual(arcs / tau) * tau
        tags, certified = _joined_maxima(arcs, lam)
        if not values_visible(tags):
            best = kernels.get(backend, chain.unary).best_paths(arcs)
            tags = torch.where(certified.unsqueeze(1), tags, best)
        elif not bool(certified.all()):
            tags[~certified] = viterbi(problem[~certified], backend)[1]
    score = check_sums("score of the best sequence", problem.score(tags))
    return CertifiedTags(chain.pad(without_room(tags)), score, certified)


def map_decode(
    chain: LinearChain,
    method: Literal["auto", "viterbi", "certified"] = "auto",
    backend: str = "auto",
) -> tuple[Tensor, Tensor]:
    """A best tag sequence of each sentence, by the method that is faster where the scores are.

    "auto" is `viterbi` on a CPU, and `certified_decode`, which has no loop over positions but for
    the sentences it cannot prove, on other devices.

    Returns:
        score [B], differentiable, and tags [B, n], -100 beyond the length.
    """
    if method not in ("auto", "viterbi", "certified"):
        raise ValueError(f"method must be 'auto', 'viterbi' or 'certified', got {method!r}")
    if method == "viterbi" or (method == "auto" and chain.device.type == "cpu"):
        return viterbi(chain, backend)
    best = certified_decode(chain, backend=backend)
    return best.score, best.tags


def _joined_maxima(arcs: Arcs, lam: Tensor) -> tuple[Tensor, Tensor]:
    """Tags [B, n] at which the best arc of each edge leaves, and whether (bool [B]) they join up:
    every arc between them attains the maximum of its edge.

    In float64 where the device has it: the proof should not hang on rounding.
    """
    arcs = arcs.to(wide_dtype(lam.device))
    left, right = arcs.reduced(lam.to(arcs.left.dtype))
    from_tag = left + _row_maxima(arcs, right)
    source = from_tag.argmax(-1)
    peak = from_tag.amax(-1)
    target = (arcs.pair.rows(source) + right).argmax(-1)
    # The last position is where the last edge's best arc arrives; it has no edge of its own.
    tags = torch.cat([source, arcs.alone[:, :1].argmax(-1)], 1)
    arrived = torch.cat([arcs.alone[:, :1].argmax(-1), target], 1)
    tags = torch.where(arcs.last, arrived, tags)
    before, after = tags[:, :-1], tags[:, 1:].unsqueeze(-1)
    rest = (arcs.pair.rows(before) + right).gather(-1, after)
    score = (left.gather(-1, before.unsqueeze(-1)) + rest).squeeze(-1)
    return tags, ((score == peak) | ~arcs.edge).all(1)


def _row_maxima(arcs: Arcs, right: Tensor) -> Tensor:
    """max_t(pair[e, s, t] + right[e, t]), [B, m, T], a few sentences at a time where possible."""
    batch, edges, num_tags = right.shape
    scores = arcs.pair.scores
    if not values_visible(right):
        return (scores + right.unsqueeze(-2)).amax(-1)
    size = max(1, _CHUNK // max(1, edges * num_tags**2))
    maxima = [
        (
            (scores if arcs.pair.shared else scores[b : b + size]) + right[b : b + size, :, None]
        ).amax(-1)
        for b in range(0, batch, size)
    ]
    return torch.cat(maxima) if maxima else right
