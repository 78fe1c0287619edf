"""Mean field: a factorised approximation of the CRF by parallel updates (Wang et al. 2020)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..chain import LinearChain
from ..checks import check_count, check_number, checks_enabled, values_readable
from ..compat.caching import cached_result
from ..compat.graph_padding import pad_for_graph, remove_graph_padding
from ..compat.private_torch import in_function_transform, is_legacy_batched
from ..diagnosis import check_positions, check_scores, check_sums
from ..kernels.folded_chain import all_finite
from ..numerics.double_backward import differentiable_gradients
from ..numerics.logspace import log_softmax, matmul
from .solution import Solver
from .unstructured import FactorizedSolution, factor_scores

__all__ = ["MeanField"]

_Initial = Literal["unary", "uniform"]


@dataclass(frozen=True)
class MeanField(Solver):
    """Inference by mean field: k parallel updates of all positions,

        r_i <- softmax( unary[i] + E_{s ~ r_{i-1}} w[i-1, s, .] + E_{t ~ r_{i+1}} w[i, ., t] ),

    starting from `initial`. Gradients go through the updates. Tags that are removed from a position
    are absent. Removed transitions cannot be represented, because an expectation over -inf is
    meaningless. A removed transition has the score -`penalty` instead, and the most probable tags
    may use it.

    Args:
        iterations: number of updates, k.
        penalty: finite cost of a removed transition. With a large penalty, parallel updates
            oscillate between tags that exclude each other. A small penalty has little effect. The
            default was the best of nine values from 0 to 1000 on development data: a CRF for
            Chinese segmentation, decoded by 10 mean field updates.
        initial: the tag distributions before the first update: "unary", the softmax of the unary
            scores; or "uniform" over the tags of each position.
        keep_forbidden: whether a transition that only the chain's `structure` forbids keeps its own
            score, if the chain has one matrix per pair. A model can then learn these scores, which
            a constant penalty cannot replace. A transition with the score -inf costs `penalty`.

    Example:
        >>> import torch, bcrf
        >>> chain = bcrf.LinearChain(torch.tensor([[[3.0, 0.0], [0.0, 0.1]]]), 2 * torch.eye(2))
        >>> bcrf.MeanField(iterations=5)(chain).best_tags()
        tensor([[0, 0]])
    """

    iterations: int = 10
    penalty: float = 2.0
    initial: _Initial = "unary"
    keep_forbidden: bool = False

    def __post_init__(self) -> None:
        check_count("iterations", self.iterations)
        if self.initial not in get_args(_Initial):
            raise ValueError(f"initial must be one of {get_args(_Initial)}, got {self.initial!r}")
        check_number("penalty", self.penalty)
        if not 0 <= self.penalty < math.inf:
            raise ValueError(f"penalty must be finite and >= 0, got {self.penalty}")

    def __call__(self, chain: LinearChain) -> FactorizedSolution:
        if self.keep_forbidden and not chain.shared:
            chain = LinearChain._new(chain.unary, chain.raw_transitions, chain.lengths, chain.dtype)
        if torch.compiler.is_compiling() or in_function_transform():
            # Graphs and transforms must see every operation, and cannot handle all in-place ones.
            problem = pad_for_graph(chain)
            unary, pair = _finite_scores(problem, self.penalty)
            log_r = remove_graph_padding(
                _run_updates(unary, pair, problem.mask[:, 1:], self.iterations, self.initial)
            )
        else:
            finite = _finite_pairs(chain)
            if finite is None:
                check_scores(chain)
            pair = _penalised_pairs(chain, self.penalty) if finite is None else finite
            log_r = _Updates.apply(  # type: ignore[no-untyped-call]
                chain.unary, pair, chain, self.iterations, self.initial
            )
        return MeanFieldSolution(chain, self, log_r)


class MeanFieldSolution(FactorizedSolution):
    """The solution of `MeanField`; a removed transition costs the solver's `penalty`."""

    def __init__(self, chain: LinearChain, solver: MeanField, log_r: Tensor) -> None:
        super().__init__(chain, solver, log_r)
        self._penalty = solver.penalty

    @cached_result
    def value(self) -> Tensor:
        """<r, w> + H(r), a lower bound of A(w), where w has -`penalty` at removed transitions."""
        unary, pair = _finite_scores(self.chain, self._penalty)
        r = self.tag_probabilities()
        is_possible = self.log_r > -math.inf
        gain = torch.where(is_possible, unary, 0.0) - torch.where(is_possible, self.log_r, 0.0)
        pairs = (_expected(r[:, :-1], pair) * r[:, 1:]).sum(-1)
        pairs = torch.where(self.chain.mask[:, 1:], pairs, 0.0)
        return check_sums("value", (r * gain).sum((1, 2)) + pairs.sum(1))


def _finite_scores(chain: LinearChain, penalty: float) -> tuple[Tensor, Tensor]:
    """Return unary scores, and pair scores with -`penalty` at removed transitions.

    Both are 0 beyond the lengths. Raise for bad scores and positions without a tag.
    """
    unary, pair = factor_scores(chain)
    return unary, torch.where(pair == -math.inf, -penalty, pair)


def _initial_logits(unary: Tensor, initial: _Initial) -> Tensor:
    """Return scores whose softmax is the distribution before the first update."""
    if initial == "unary":
        return unary
    return torch.zeros_like(unary).masked_fill(unary == -math.inf, -math.inf)


def _run_updates(
    unary: Tensor, pair: Tensor, edges: Tensor, iterations: int, initial: _Initial
) -> Tensor:
    """Return log r [B, n, T] after the updates, in operations that autograd sees.

    Args:
        unary: [B, n, T], 0 beyond the lengths.
        pair: finite, [T, T] or [B, n-1, T, T].
        edges: bool [B, n-1], edges within the lengths.
        initial: see `MeanField`.
    """
    log_r = log_softmax(_initial_logits(unary, initial))
    for _ in range(iterations):
        log_r = log_softmax(unary + _messages(torch.exp(log_r), pair, edges))
    return log_r


def _check_gradients(gradients: Tensor) -> None:
    """Raise if the gradients [B, n, T] overflowed.

    Every update multiplies them by the transition scores.
    """
    batched = is_legacy_batched(gradients)  # has no readable values
    if checks_enabled(gradients) and not batched:
        bad = ~gradients.isfinite()
        if bool(bad.any()):
            sentence, position, _ = bad.nonzero()[0].tolist()
            kind = str(gradients.dtype).removeprefix("torch.")
            raise ValueError(
                f"sentence {sentence}, position {position}: the gradient of mean field overflows "
                f"{kind}, because the transition scores are too large; divide the scores, or use "
                "a wider dtype"
            )


def _messages(r: Tensor, pair: Tensor, edges: Tensor) -> Tensor:
    """Return the expected scores of the transitions to and from each tag, [B, n, T].

    The expectation is over the tags of both neighbours under their distributions `r`.
    """
    forward, backward = _expected(r[:, :-1], pair), _expected(r[:, 1:], pair.mT)
    edge = edges.unsqueeze(-1)
    end = torch.zeros_like(r[:, :1])
    from_left = torch.cat([end, torch.where(edge, forward, 0.0)], 1)
    from_right = torch.cat([torch.where(edge, backward, 0.0), end], 1)
    return from_left + from_right


def _expected(r: Tensor, pair: Tensor) -> Tensor:
    """Return sum_s r[e, s] pair[e, s, t], [B, m, T], for pair [T, T] or [B, m, T, T]."""
    if pair.dim() == 2:
        return matmul(r, pair)
    return matmul(r.unsqueeze(-2), pair).squeeze(-2)


# Updates in place


def _finite_pairs(chain: LinearChain) -> Tensor | None:
    """Return the pair scores if they are all finite, and no unary score is bad; else None.

    Pair scores beyond the lengths then need no mask: they are multiplied by rows of zeros. Masks
    with their gradients would take half of the time of a training step with one matrix per pair.
    """
    unary = chain.unary
    if chain.structure is not None or not values_readable(unary) or not unary.numel():
        return None
    pair = chain.pair_scores
    return pair if bool(unary.detach().amax() < math.inf) and all_finite(pair) else None


def _penalised_pairs(chain: LinearChain, penalty: float) -> Tensor:
    """Return finite pair scores, [T, T] or [B, n-1, T, T]: 0 beyond the lengths.

    A removed transition has the score -`penalty`.
    """
    pair, structure = chain.raw_transitions, chain.structure
    if pair is None:
        return chain.pair_scores
    if structure is not None:
        pair = torch.where(structure.follow, pair, -penalty)
    if not chain.finite:
        pair = torch.where(pair == -math.inf, -penalty, pair)
    if pair.dim() == 4:
        pair = torch.where(chain.mask[:, 1:, None, None], pair, 0.0)
    return pair


class _Updates(torch.autograd.Function):
    """The result of `_run_updates`, with a handwritten backward pass.

    Autograd would add two outer products [B, n-1, T, T] for each update, and would not allow
    products in place. Here an update and its gradient take five launches each, and the gradient by
    the pairs is one sum over all updates. On a CPU this takes 0.5 to 0.8 times as long.

    All sentences are one array of rows [N, T], N = B (n + 1). Each sentence has one row of zeros
    after its last position. Rows are zero beyond the lengths, too, so that messages between
    neighbouring rows never reach another sentence:

        row      0     1    ...    n-1     n    n+1  ...
                 | sentence 0       |   zeros   | sentence 1
    """

    @staticmethod
    def forward(
        ctx: Any,
        unary: Tensor,
        pair: Tensor,
        chain: LinearChain,
        iterations: int,
        initial: _Initial,
    ) -> Tensor:
        batch, n, tags = unary.shape
        position = torch.arange(n + 1, device=unary.device)
        inside = (position < chain.lengths.unsqueeze(1)).unsqueeze(-1)
        scores = unary.new_zeros(batch, n + 1, tags)
        scores[:, :n] = unary
        scores.masked_fill_(~inside, 0.0)
        lost = None
        if not (chain.finite and chain.structure is None):
            check_positions(scores)
            # The softmax of a position without a tag would be NaN.
            lost = (scores == -math.inf).all(-1, keepdim=True)
            scores.masked_fill_(lost, 0.0)
            inside = inside & ~lost
        scores, outside = scores.flatten(0, 1), ~inside.flatten(0, 1)
        matrices = _flat_pairs(pair, n)
        rs = scores.new_empty(iterations, *scores.shape)
        logits = _initial_logits(scores, initial)
        for r in rs:
            torch.softmax(logits, -1, out=r)
            r.masked_fill_(outside, 0.0)  # a product would keep NaN
            logits = scores.clone()
            _add_messages(logits, r, matrices)
        log_r = torch.log_softmax(logits, -1).view(batch, n + 1, tags)[:, :n]
        if lost is not None:
            log_r = log_r.masked_fill(lost[:, :n], -math.inf)
        ctx.save_for_backward(unary, pair, log_r, rs)
        ctx.chain, ctx.initial = chain, initial
        return log_r

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        unary, pair, log_r, rs = ctx.saved_tensors
        grad, needed = grads[0], ctx.needs_input_grad[:2]
        if torch.is_grad_enabled() or is_legacy_batched(grad):
            # Second derivatives are wanted, or the gradients cannot be changed in place.
            mask = ctx.chain.mask

            def recompute(unary: Tensor, pair: Tensor) -> Tensor:
                unary = torch.where(mask.unsqueeze(-1), unary, 0.0)
                return _run_updates(unary, pair, mask[:, 1:], len(rs), ctx.initial)

            with torch.enable_grad():
                found = differentiable_gradients(recompute, (unary, pair), needed, grad)
            return *found, None, None, None

        batch, n, tags = unary.shape
        # Gradients with respect to the logits before the first update and after each of them; the
        # rows between sentences are zero.
        by_logits = grad.new_zeros(len(rs) + 1, batch * (n + 1), tags)
        last = grad - torch.exp(log_r) * grad.sum(-1, keepdim=True)
        by_logits[-1].view(batch, n + 1, tags)[:, :n] = last
        matrices = _flat_pairs(pair, n)
        by_r = torch.zeros_like(by_logits[0])
        for k in range(len(rs) - 1, -1, -1):
            # The sum of messages is its own adjoint.
            _add_messages(by_r, by_logits[k + 1], matrices, replace=True)
            weighted = rs[k] * by_r
            mean = weighted.sum(-1, keepdim=True)
            torch.addcmul(weighted, rs[k], mean, value=-1, out=by_logits[k])
        by_unary = by_pair = None
        # A uniform distribution before the first update does not depend on the scores.
        reached = by_logits if ctx.initial == "unary" else by_logits[1:]
        total = reached.sum(0).view(batch, n + 1, tags)[:, :n]
        _check_gradients(total)
        if needed[0]:
            by_unary = total
        if needed[1]:
            by_pair = _sum_outer_products(rs, by_logits[1:], pair)
        return by_unary, by_pair, None, None, None


def _flat_pairs(pair: Tensor, n: int) -> Tensor:
    """Return the matrices [N - 1, T, T] between adjacent rows, or `pair` itself if it is shared."""
    if pair.dim() == 2:
        return pair
    return pad(pair, (0, 0, 0, 0, 0, n + 1 - pair.shape[1])).flatten(0, 1)[:-1]


def _add_messages(out: Tensor, r: Tensor, matrices: Tensor, replace: bool = False) -> None:
    """Add to the rows `out` [N, T] the expected scores of the transitions to and from each tag.

    The expectation is over the tags of both neighbours under their rows of `r`. The last row of
    `out` does not change.

    In-place products keep the precision of their operands under autocast.

    Args:
        replace: set the rows instead of adding to them.
    """
    before, after, beta = r[:-2], r[1:], 0 if replace else 1
    if matrices.dim() == 2:
        out[:-1].addmm_(after, matrices.mT, beta=beta)
        out[1:-1].addmm_(before, matrices)
        return
    out[:-1].unsqueeze(1).baddbmm_(after.unsqueeze(1), matrices.mT, beta=beta)
    out[1:-1].unsqueeze(1).baddbmm_(before.unsqueeze(1), matrices[:-1])


def _sum_outer_products(rs: Tensor, by_logits: Tensor, pair: Tensor) -> Tensor:
    """Return the gradient with respect to the pairs, in the shape of `pair`.

    It is the sum over updates k of r_k[i] g_k[i+1]' + g_k[i] r_k[i+1]', where r_k are the
    distributions before update k, and g_k the gradients with respect to its logits: `rs` and
    `by_logits`, both [k, N, T].
    """
    if pair.dim() == 2:
        # The last row of an update is zero, so we can treat all updates as one array of rows.
        r, g = rs.flatten(0, 1), by_logits.flatten(0, 1)
        return matmul(r[:-1].mT, g[1:]).addmm_(g[:-1].mT, r[1:])
    # Edge e of sentence b lies between the rows b (n + 1) + e and b (n + 1) + e + 1.
    r, g = rs.transpose(0, 1), by_logits.transpose(0, 1)  # [N, k, T]
    rows, tags = rs.shape[1:]
    found = rs.new_zeros(rows, tags, tags)
    found[:-1].baddbmm_(r[:-1].mT, g[1:]).baddbmm_(g[:-1].mT, r[1:])
    batch, edges = pair.shape[:2]
    return found.view(batch, rows // max(batch, 1), tags, tags)[:, :edges]
