"""Probabilities of a model: of tags, spans and sequences.

The CRF is a distribution over sequences. The other families give marginals only; the distribution
that goes with these is the Markov chain prod_e q_e / prod_i q_i (docs/derivation.md), a CRF too.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Sequence
from typing import SupportsIndex

import torch
from torch import Tensor

from ..chain import LinearChain
from ..checks import checks_enabled, values_visible
from ..inference import Bregman, ForwardBackward, Solution, Solver
from ..logspace import wide_dtype

__all__ = ["Span", "TagSet", "converged", "distribution", "span_probabilities"]

TagSet = SupportsIndex | Collection[int]
"""A tag, or tags of which any will do."""

Span = tuple[int, int, Sequence[TagSet]]
"""Sentence, first position, and what stands there and after it."""

# Fifty relaxed projections leave an error around 1e-12 on ordinary chains. Where values can be
# looked at there is a tolerance; then the maximum is for chains that are very hard.
_ITERATIONS = 50
_MAX_ITERATIONS = 2000
_TOLERANCE = 1e-9
_SUSPICIOUS = 1e-4


def converged(solver: Solver, chain: LinearChain) -> Solution:
    """What `solver` says of `chain` in the limit of many iterations.

    That is a matter of the Bregman family; k updates of mean field are a model of their own.
    """
    if not isinstance(solver, Bregman):
        return solver(chain)
    if not values_visible(chain.unary):
        iterations = max(solver.iterations, _ITERATIONS)
        return Bregman(iterations, backend=solver.backend)(chain)
    chain = chain.to(wide_dtype(chain.device))
    solution = Bregman(_MAX_ITERATIONS, tolerance=_TOLERANCE, backend=solver.backend)(chain)
    if checks_enabled(chain.unary) and bool((solution.residual > _SUSPICIOUS).any()):
        worst = int(solution.residual.argmax())
        warnings.warn(
            f"sentence {worst}: marginals are inexact, they disagree by "
            f"{float(solution.residual[worst]):.1e} after {_MAX_ITERATIONS} projections",
            RuntimeWarning,
            stacklevel=2,
        )
    return solution


def distribution(solver: Solver, chain: LinearChain) -> LinearChain:
    """The chain whose CRF is the model's distribution over tag sequences, in float64 where the
    device has it; it need not be normalised."""
    chain = chain.to(wide_dtype(chain.device))
    if isinstance(solver, ForwardBackward):
        return chain
    return converged(solver, chain).as_chain()


def span_probabilities(model: LinearChain, sets: Tensor, sentence: Tensor, first: Tensor) -> Tensor:
    """Probability [S] under the CRF `model` that the tags of each span are in their sets.

    p(y_i in A_0, y_{i+1} in A_1, ...): a forward recursion over the span alone.

    Args:
        sets: bool [S, L, T]; a shorter span has sets of all tags at its end.
        sentence, first: int64 [S]; within the length, where the sets are smaller than all.
    """
    solution = ForwardBackward()(model)
    reached = solution.tag_probabilities()[sentence, first] * sets[:, 0]
    _, conditionals = solution.log_conditionals()
    edges = conditionals.shape[1]
    for step in range(1, sets.shape[1]):
        edge = first + step - 1
        beyond = edge + 1 >= model.lengths[sentence]  # nothing but padding of the sets
        following = torch.exp(conditionals[sentence, edge.clamp(max=edges - 1)])
        onward = torch.bmm(reached.unsqueeze(1), following).squeeze(1) * sets[:, step]
        reached = torch.where(beyond.unsqueeze(1), reached, onward)
    return reached.sum(1).clamp(max=1.0)
