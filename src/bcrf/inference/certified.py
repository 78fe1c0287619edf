"""Certified decoding: parallel projections find a best sequence, and prove that it is one."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..chain import LinearChain
from ..checks import check_temperature, values_readable
from ..compat.graph_padding import pad_for_graph, remove_graph_padding
from ..diagnosis import check_sums
from ..kernels import BACKEND_MODULES, custom_ops, device_kernels, native, select_backend
from ..kernels.folded_chain import FoldedChain, fold
from ..numerics.logspace import widest_dtype
from .bregman import Bregman
from .compiled import check_on_device
from .viterbi import best_score, viterbi

__all__ = ["CertifiedTags", "certified_decode"]

# Maxima over [B, m, T, T] are computed in chunks of this many numbers, to bound the memory.
_CHUNK = 1 << 22


class CertifiedTags(NamedTuple):
    """The result of `certified_decode`.

    Args:
        tags: best tag sequences [B, n], -100 beyond the length.
        score: their scores [B].
        certified: bool [B], whether the projections proved that the sequence is a best one.

    Example:
        >>> import torch, bcrf
        >>> found = bcrf.certified_decode(bcrf.LinearChain(torch.tensor([[[0.0, 2.0]]])))
        >>> found.tags, found.certified
        (tensor([[1]]), tensor([True]))
    """

    tags: Tensor
    score: Tensor
    certified: Tensor


def certified_decode(
    chain: LinearChain, iterations: int = 10, temperature: float = 0.1, backend: str = "auto"
) -> CertifiedTags:
    """Return a best tag sequence of each sentence, found by parallel projections or by Viterbi.

    On each edge, take an arc that attains the maximum of q. If these arcs form a path, this path is
    a best sequence (docs/derivation.md): it is certified. Viterbi runs on the other sentences only.
    On a GPU, the host waits once for the device, to learn which sentences these are. In compiled
    code, where values cannot be read, Viterbi runs on all sentences. The native backend also tries
    the certificate before the last iteration, and stops once it holds.

    Use it on devices where Viterbi's loop over positions is slow. On a CPU `viterbi` alone takes
    less time (docs/benchmarks.md).

    Args:
        iterations: number of projections.
        temperature: the temperature of the projections. At convergence a lower one certifies more
            sentences, but it needs more iterations to converge.
        backend: "auto", or the name of a backend (see `bcrf.backends`).
    Returns:
        tags [B, n] (-100 beyond the length), always a best sequence, hence always well-formed;
        score [B], differentiable; certified [B] bool.

    Example:
        >>> import torch, bcrf
        >>> chain = bcrf.LinearChain(torch.tensor([[[1.0, 0.0], [0.0, 0.5]]]), torch.eye(2))
        >>> bcrf.certified_decode(chain)
        CertifiedTags(tags=tensor([[0, 0]]), score=tensor([2.]), certified=tensor([True]))
    """
    tau = check_temperature(temperature)
    solver = Bregman(iterations, backend=backend)
    selected = select_backend(backend, chain.unary)
    if selected in ("native", "custom_op") and not isinstance(tau, Tensor):
        arrays = (chain.unary, chain.pair_scores, chain.lengths)
        if selected == "native":
            found = native.certified(*arrays, solver.omegas, tau, in_float64=False)
        else:
            with torch.no_grad():
                finite = chain.known_finite
                found = custom_ops.certified(*arrays, solver.omegas, tau, backend, finite)
        if found is not None:
            tags, score, certified = found
            return CertifiedTags(tags, best_score(chain, tags, score), certified)
    kernels = device_kernels(selected)
    if kernels is not None:
        check_on_device(chain)
        with torch.no_grad():
            tags, certified = kernels.certified(chain.detach(), solver.omegas, tau)
            if tags.is_meta or type(tags) is not Tensor:
                # Meta and fake tensors have no values to choose sentences by: decode all of them.
                best = kernels.viterbi(chain.detach())[0]
                tags = torch.where(certified.unsqueeze(1), tags, best)
            else:
                rest = (~certified).nonzero().squeeze(1)  # the only time that the host has to wait
                if rest.shape[0]:
                    tags = tags.index_copy(0, rest, kernels.viterbi(chain.detach()[rest])[0])
        score = check_sums("score of the best sequence", chain.score(tags))
        return CertifiedTags(tags, score, certified)
    problem = pad_for_graph(chain)
    with torch.no_grad():
        folded = fold(problem)
        lam = solver.dual(folded / tau, selected) * tau
        tags, certified = _certify(folded, lam)
        if not values_readable(tags):
            best = BACKEND_MODULES[selected].best_paths(folded)
            tags = torch.where(certified.unsqueeze(1), tags, best)
        elif not bool(certified.all()):
            tags[~certified] = viterbi(problem[~certified], backend)[1]
    score = check_sums("score of the best sequence", problem.score(tags))
    return CertifiedTags(chain.pad(remove_graph_padding(tags)), score, certified)


def _certify(folded: FoldedChain, lam: Tensor) -> tuple[Tensor, Tensor]:
    """Return the tags [B, n] at which the best arcs of the edges start, and a certificate [B].

    The certificate holds if every arc between these tags attains the maximum of its edge. It is
    computed in float64 where the device has it, so that rounding does not decide it.
    """
    folded = folded.to(widest_dtype(lam.device))
    left, right = folded.reduced(lam.to(folded.left.dtype))
    from_tag = left + _row_maxima(folded, right)
    source = from_tag.argmax(-1)
    peak = from_tag.amax(-1)
    target = (folded.transitions.rows(source) + right).argmax(-1)
    # No edge starts at the last position: its tag is the target of the best arc before it.
    tags = torch.cat([source, folded.single_scores[:, :1].argmax(-1)], 1)
    arrived = torch.cat([folded.single_scores[:, :1].argmax(-1), target], 1)
    tags = torch.where(folded.last, arrived, tags)
    before, after = tags[:, :-1], tags[:, 1:].unsqueeze(-1)
    rest = (folded.transitions.rows(before) + right).gather(-1, after)
    score = (left.gather(-1, before.unsqueeze(-1)) + rest).squeeze(-1)
    return tags, ((score == peak) | ~folded.edge).all(1)


def _row_maxima(folded: FoldedChain, right: Tensor) -> Tensor:
    """Return max_t(transitions[e, s, t] + right[e, t]), [B, m, T], a few sentences at a time."""
    batch, edges, num_tags = right.shape
    scores = folded.transitions.scores
    if not values_readable(right):
        return (scores + right.unsqueeze(-2)).amax(-1)
    size = max(1, _CHUNK // max(1, edges * num_tags**2))
    maxima = [
        (
            (scores if folded.transitions.shared else scores[b : b + size])
            + right[b : b + size, :, None]
        ).amax(-1)
        for b in range(0, batch, size)
    ]
    return torch.cat(maxima) if maxima else right
