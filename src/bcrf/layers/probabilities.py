"""Probabilities of tags, spans and sequences under the distribution of a solver.

The exact CRF is a distribution over tag sequences. The other solvers give marginals only. Their
distribution is the Markov chain prod_e q_e / prod_i q_i of these marginals (docs/derivation.md).
This Markov chain is a CRF, too.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Collection, Sequence
from typing import SupportsIndex

import torch
from torch import Tensor

from ..chain import LinearChain
from ..checks import checks_enabled, values_readable
from ..inference import Bregman, ForwardBackward, Solution, SolverLike, k_best
from ..numerics.logspace import widest_dtype
from .masks import Layout

__all__ = [
    "Span",
    "TagSet",
    "converged_solution",
    "distribution",
    "locate_spans",
    "log_probabilities",
    "most_probable_sequences",
    "span_probabilities",
]

TagSet = SupportsIndex | Collection[int]
"""A tag, or a collection of alternative tags."""

Span = tuple[int, int, Sequence[TagSet]]
"""Sentence, first position, and the tags of this position and of the positions after it."""

# Fifty relaxed projections leave an error of about 1e-12 on ordinary chains. Where values can be
# read, projections stop at the tolerance; only very hard chains reach the maximum number.
_ITERATIONS = 50
_MAX_ITERATIONS = 2000
_TOLERANCE = 1e-9
_WARN_ABOVE = 1e-4


def converged_solution(solver: SolverLike, chain: LinearChain) -> Solution:
    """Return the solution of `chain`; `Bregman` runs until convergence.

    Other solvers run unchanged. Mean field does, too: k updates are a model of their own.
    """
    if not isinstance(solver, Bregman):
        return solver(chain)
    if not values_readable(chain.unary):
        iterations = max(solver.iterations, _ITERATIONS)
        return Bregman(iterations, backend=solver.backend)(chain)
    chain = chain.to(widest_dtype(chain.device))
    solution = Bregman(_MAX_ITERATIONS, tolerance=_TOLERANCE, backend=solver.backend)(chain)
    if checks_enabled(chain.unary) and bool((solution.residual > _WARN_ABOVE).any()):
        worst = int(solution.residual.argmax())
        warnings.warn(
            f"sentence {worst}: marginals are inexact: those of adjacent edges differ by "
            f"{float(solution.residual[worst]):.1e} after {_MAX_ITERATIONS} projections",
            RuntimeWarning,
            stacklevel=2,
        )
    return solution


def distribution(solver: SolverLike, chain: LinearChain) -> LinearChain:
    """Return the chain whose CRF is the model's distribution over tag sequences.

    Its scores are in float64 where the device has it, and need not be normalised.
    """
    chain = chain.to(widest_dtype(chain.device))
    if isinstance(solver, ForwardBackward):
        return chain
    return converged_solution(solver, chain).as_chain()


def log_probabilities(model: LinearChain, tags: Tensor) -> Tensor:
    """Return the log probability [B] of the sequences `tags` [B, n] under the CRF `model`."""
    return (model.score(tags) - ForwardBackward()(model).value).clamp(max=0.0)


def most_probable_sequences(model: LinearChain, k: int) -> tuple[Tensor, Tensor]:
    """Return log probabilities [B, k] and tags [B, k, n] of the k best sequences of a CRF."""
    scores, tags = k_best(model, k)
    return (scores - ForwardBackward()(model).value.unsqueeze(1)).clamp(max=0.0), tags


def span_probabilities(model: LinearChain, sets: Tensor, sentence: Tensor, first: Tensor) -> Tensor:
    """Return the probability [S] under the CRF `model` that the tags of each span are in its sets.

    This is p(y_i in A_0, y_{i+1} in A_1, ...) for the sets A_0, A_1, ... of a span that begins at
    position i. A forward recursion over the positions of the span computes it.

    Args:
        sets: bool [S, L, T]; shorter spans are padded with sets of all tags.
        sentence, first: int64 [S], the sentence and the first position of each span.
    """
    solution = ForwardBackward()(model)
    reached = solution.tag_probabilities()[sentence, first] * sets[:, 0]
    _, conditionals = solution.log_conditionals()
    edges = conditionals.shape[1]
    # Without edges, all sentences have length one, and only padding of the sets is left.
    for step in range(1, sets.shape[1] if edges else 1):
        edge = first + step - 1
        beyond = edge + 1 >= model.lengths[sentence]  # only padding of the sets is left
        following = torch.exp(conditionals[sentence, edge.clamp(max=edges - 1)])
        onward = torch.bmm(reached.unsqueeze(1), following).squeeze(1) * sets[:, step]
        reached = torch.where(beyond.unsqueeze(1), reached, onward)
    return reached.sum(1).clamp(max=1.0)


def locate_spans(
    spans: Sequence[Span], chain: LinearChain, layout: Layout
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the sets bool [S, L, T], sentences [S] and compact first positions [S] of spans.

    There must be at least one span. These are the arguments of `span_probabilities`.
    """
    located = [_located_span(number, *span, chain, layout) for number, span in enumerate(spans)]
    places, chosen = zip(*located, strict=True)
    sets = torch.ones(len(chosen), max(map(len, chosen)), chain.num_tags, dtype=torch.bool)
    for row, one in zip(sets, chosen, strict=True):
        row[: len(one)] = one
    sentence, first = torch.tensor(places, device=chain.device).unbind(1)
    return sets.to(chain.device), sentence, first


def _located_span(
    number: int,
    sentence: int,
    position: int,
    tags: Sequence[TagSet],
    chain: LinearChain,
    layout: Layout,
) -> tuple[tuple[int, int], Tensor]:
    """Return sentence and compact position of one span, and its sets bool [L, T]."""
    name, num_tags = f"spans[{number}]", chain.num_tags
    if not 0 <= sentence < chain.batch_size:
        raise ValueError(f"{name}: sentence {sentence} is not in 0..{chain.batch_size - 1}")
    first = layout.compact_position(sentence, position)
    length = int(chain.lengths[sentence])
    if first is None or not 0 <= first < length:
        raise ValueError(f"{name}: sentence {sentence} keeps no position {position}")
    if not 0 < len(tags) <= length - first:
        raise ValueError(
            f"{name}: {len(tags)} tags; sentence {sentence} has {length - first} positions "
            f"from position {position} on"
        )
    sets = torch.zeros(len(tags), num_tags, dtype=torch.bool)
    for row, entry in zip(sets, tags, strict=True):
        for tag in _tags_of(entry):
            if not 0 <= tag < num_tags:
                raise ValueError(f"{name}: tag {tag} is not in 0..{num_tags - 1}")
            row[tag] = True
    return (sentence, first), sets


def _tags_of(entry: TagSet) -> list[int]:
    try:
        return [operator.index(entry)]  # type: ignore[arg-type]
    except TypeError:  # a collection
        return [operator.index(tag) for tag in entry]  # type: ignore[union-attr]
