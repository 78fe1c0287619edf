"""Layers under test, masks of every pattern, and the expected results of each sentence.

The reference selects the kept positions by plain indexing, adds the start and end scores, and
passes the chain to the oracles or to the core.
"""

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

import bcrf
from bcrf import Bregman, ChainLayer, LinearChain, Structure
from tests import oracles

T = 3

LAYERS: dict[str, Callable[..., ChainLayer]] = {
    "exact": bcrf.ExactCRF,
    "bregman": bcrf.BregmanCRF,
    "mean field": bcrf.MeanFieldCRF,
    "softmax": bcrf.TokenSoftmax,
}

# Masks of sentences of seven positions; those that a loss keeps.
PATTERNS: dict[str, list[int]] = {
    "full": [1, 1, 1, 1, 1, 1, 1],
    "right padding": [1, 1, 1, 1, 0, 0, 0],
    "left padding": [0, 0, 1, 1, 1, 1, 1],
    "first masked": [0, 1, 1, 1, 1, 1, 0],
    "holes": [1, 0, 0, 1, 1, 0, 1],
    "first masked and holes": [0, 1, 0, 1, 0, 1, 0],
    "one": [0, 0, 0, 1, 0, 0, 0],
    "two apart": [1, 0, 0, 0, 0, 0, 1],
    "nothing": [0, 0, 0, 0, 0, 0, 0],
}
HOLES = torch.tensor(list(PATTERNS.values())).bool()

# Masks without holes. Their per-pair scores are those of adjacent positions.
PATTERNS_WITHOUT_HOLES = ("full", "right padding", "left padding", "first masked", "one", "nothing")


def make(name: str, num_tags: int = T, seed: int = 0, **options: object) -> ChainLayer:
    """Return a layer in float64 with random scores that are not zero."""
    layer = LAYERS[name](num_tags, **options).double()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_(generator=generator)
    return layer


def random_emissions(
    batch: int, n: int, num_tags: int = T, seed: int = 1, dtype: torch.dtype = torch.float64
) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, n, num_tags, generator=generator, dtype=torch.float64).to(dtype)


def random_tags(batch: int, n: int, num_tags: int = T, seed: int = 2) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(num_tags, (batch, n), generator=generator)


class Kept(NamedTuple):
    """One sentence of a batch without its removed positions."""

    row: int
    index: list[int]  # the caller's positions
    chain: LinearChain  # a batch of this sentence

    def arrays(self) -> oracles.Sentence:
        return oracles.sentence(self.chain.unary[0], self.chain.pair_scores)


def sentences(layer: ChainLayer, emissions: Tensor, keep: Tensor) -> Iterator[Kept]:
    """Yield the sentences of a batch, for a layer without per-pair transitions."""
    for row in range(len(emissions)):
        index = [i for i, kept in enumerate(keep[row].tolist()) if kept]
        unary = emissions[row, index].clone()
        start, end = layer.start_transitions, layer.end_transitions
        if index and start is not None and end is not None:
            unary = unary + at_position(start, len(index), 0) + at_position(end, len(index), -1)
        chain = LinearChain(unary.unsqueeze(0), layer.transitions)
        yield Kept(row, index, chain)


def at_position(scores: Tensor, n: int, place: int) -> Tensor:
    """Return [n, T]: `scores` [T] at one of n positions, and zeros elsewhere."""
    at = torch.zeros(n, 1, dtype=scores.dtype)
    at[place] = 1
    return at * scores


def converged(layer: ChainLayer) -> bcrf.Solver:
    """Return the layer's solver with enough iterations to converge."""
    if isinstance(layer.solver, Bregman):
        return Bregman(20000, tolerance=1e-13)
    return layer.solver


def close(found: Tensor, expected: Tensor, tolerance: float = 1e-9) -> None:
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


def bio() -> tuple[list[str], Structure]:
    labels = ["O", "B-X", "I-X"]
    return labels, Structure.from_labels(labels, "IOB2")


def penalised(scores: Tensor, allowed: Tensor, penalty: float | None) -> Tensor:
    """Return `scores` with a penalty on tags and transitions that are not allowed."""
    cost = math.inf if penalty is None else penalty
    worse = torch.where(allowed, 0.0, cost)
    return scores - worse.to(scores.dtype)
