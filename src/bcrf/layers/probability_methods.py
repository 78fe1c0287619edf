"""The methods of `ChainLayer` that return probabilities, and the sequences that these choose.

With `ForwardBackward` the distribution is p(y) = exp(<w, y> - A(w)). With other solvers it is the
Markov chain of their marginals (see `probabilities.distribution`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..chain import PAD
from ..checks import check_count
from ..inference import sample as sample_sequences
from .masks import prepare_batch, raise_located
from .probabilities import (
    Span,
    converged_solution,
    distribution,
    locate_spans,
    log_probabilities,
    most_probable_sequences,
    span_probabilities,
)

if TYPE_CHECKING:
    from .layer import ChainLayer

__all__ = [
    "k_best",
    "marginals",
    "sample",
    "sequence_probability",
    "span_probability",
    "top_tags",
]


def marginals(
    layer: ChainLayer,
    emissions: Tensor,
    mask: Tensor | None = None,
    *,
    transitions: Tensor | None = None,
    converge: bool | None = None,
) -> Tensor:
    """Return the probability [B, n, T] of each tag at each position, differentiable.

    Args:
        converge: only for `Bregman` solvers. True: run projections until convergence (where
            values cannot be read, such as on a GPU: at least 50 projections). False: run as
            many as in training, which is faster and approximate. None: True in eager
            mode, and False in compiled and exported programs, whose size grows with the number
            of projections.

    Example:
        >>> import torch, bcrf
        >>> bcrf.TokenSoftmax(2).marginals(torch.zeros(1, 3, 2), torch.tensor([[1, 1, 0]]))
        tensor([[[0.5000, 0.5000],
                 [0.5000, 0.5000],
                 [0.0000, 0.0000]]])
    """
    if converge is None:
        converge = not torch.compiler.is_compiling()
    batch = prepare_batch(layer, emissions, mask, transitions)
    try:
        solver, chain = layer.solver, batch.chain
        solution = converged_solution(solver, chain) if converge else solver(chain)
        found = solution.tag_probabilities().to(batch.dtype)
    except ValueError as error:
        raise_located(error, batch)
    return layer._swap_axes(batch.layout.restore(found))


def top_tags(
    layer: ChainLayer,
    emissions: Tensor,
    k: int = 2,
    mask: Tensor | None = None,
    *,
    transitions: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the k most probable tags of each position, best first.

    Returns:
        probabilities and tags, [B, n, k]; 0 and -100 where fewer than k tags are possible.

    Example:
        >>> import torch, bcrf
        >>> bcrf.TokenSoftmax(3).top_tags(torch.tensor([[[2.0, 0.0, 1.0]]]), k=2)
        (tensor([[[0.6652, 0.2447]]]), tensor([[[0, 2]]]))
    """
    check_count("k", k, least=1)
    if k > layer.num_tags:
        raise ValueError(f"k must be at most the number of tags, {layer.num_tags}, got {k}")
    found, tags = layer.marginals(emissions, mask, transitions=transitions).topk(k, -1)
    return found, torch.where(found > 0, tags, PAD)


def sequence_probability(
    layer: ChainLayer,
    emissions: Tensor,
    tags: Tensor,
    mask: Tensor | None = None,
    *,
    transitions: Tensor | None = None,
    log: bool = False,
) -> Tensor:
    """Return the probability [B] of whole tag sequences, or its logarithm.

    It is 0 for sequences that the constraints forbid. A tag of -100 removes its position, as
    in `loss`.

    Example:
        >>> import torch, bcrf
        >>> layer = bcrf.TokenSoftmax(2)
        >>> layer.sequence_probability(torch.zeros(1, 3, 2), torch.tensor([[0, 1, -100]]))
        tensor([0.2500])
    """
    batch = prepare_batch(layer, emissions, mask, transitions, tags)
    assert batch.tags is not None
    try:
        found = log_probabilities(distribution(layer.solver, batch.chain), batch.tags)
    except ValueError as error:
        raise_located(error, batch)
    found = found.to(batch.chain.unary.dtype)
    return found if log else torch.exp(found)


def span_probability(
    layer: ChainLayer,
    emissions: Tensor,
    spans: Sequence[Span],
    mask: Tensor | None = None,
    *,
    transitions: Tensor | None = None,
) -> Tensor:
    """Return the probability [S] that the positions of each span have the given tags.

    Args:
        spans: (sentence, position, tags) of each span. The first entry of `tags` is for this
            position, the next ones are for the kept positions after it. An entry is a tag, or a
            collection of alternative tags: [B, I, others] is a mention of exactly two words.

    Example:
        >>> import torch, bcrf
        >>> spans = [(0, 0, [1]), (0, 1, [1, [0, 1]])]  # in sentence 0, at positions 0 and 1
        >>> bcrf.TokenSoftmax(2).span_probability(torch.zeros(1, 3, 2), spans)
        tensor([0.5000, 0.5000])
    """
    batch = prepare_batch(layer, emissions, mask, transitions)
    if not len(spans):
        return batch.chain.unary.new_zeros(0)
    located = locate_spans(spans, batch.chain, batch.layout)
    try:
        found = span_probabilities(distribution(layer.solver, batch.chain), *located)
    except ValueError as error:
        raise_located(error, batch)
    return found.to(batch.chain.unary.dtype)


def k_best(
    layer: ChainLayer,
    emissions: Tensor,
    k: int,
    mask: Tensor | None = None,
    *,
    transitions: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the k most probable tag sequences, best first.

    Returns:
        log probabilities [B, k] and tags [B, k, n] (the batch always first); -inf and -100
        where a sentence has fewer than k sequences.

    Example:
        >>> import torch, bcrf
        >>> layer = bcrf.ExactCRF(2, start_end=False, shared_transitions=False)
        >>> log_probabilities, tags = layer.k_best(torch.tensor([[[0.0, 2.0], [1.0, 0.0]]]), k=2)
        >>> tags
        tensor([[[1, 0],
                 [1, 1]]])
    """
    batch = prepare_batch(layer, emissions, mask, transitions)
    try:
        found, tags = most_probable_sequences(distribution(layer.solver, batch.chain), k)
    except ValueError as error:
        raise_located(error, batch)
    tags = batch.layout.restore_tags(tags.transpose(0, 1)).transpose(0, 1)
    return found.to(batch.chain.unary.dtype), tags


def sample(
    layer: ChainLayer,
    emissions: Tensor,
    num_samples: int,
    mask: Tensor | None = None,
    *,
    transitions: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Return independent tag sequences [S, B, n] drawn from the model.

    Example:
        >>> import torch, bcrf
        >>> generator = torch.Generator().manual_seed(0)
        >>> bcrf.ExactCRF(3).sample(torch.zeros(2, 5, 3), 4, generator=generator).shape
        torch.Size([4, 2, 5])
    """
    batch = prepare_batch(layer, emissions, mask, transitions)
    try:
        tags = sample_sequences(distribution(layer.solver, batch.chain), num_samples, generator)
    except ValueError as error:
        raise_located(error, batch)
    return layer._swap_axes(batch.layout.restore_tags(tags), 1)
