"""What the tests of the Triton kernels share."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import bcrf
from bcrf import LinearChain, Structure
from bcrf.kernels import triton_support
from tests.strategies import Pairs
from tests.subjects import ragged_chain

unavailable = bcrf.backends()["triton"]
needs_triton = pytest.mark.skipif(
    unavailable is not None or not triton_support.INTERPRETED,
    reason=f"no interpreter: {unavailable}",
)

BIES = Structure.from_labels(["B", "I", "E", "S"], "BIES")


def kernels() -> Any:
    """Import the kernels; without a usable Triton this raises."""
    from bcrf.kernels import triton

    return triton


def bies_chain(kind: Pairs, lengths: list[int], dtype: torch.dtype = torch.float64) -> LinearChain:
    """A random chain under the rules of BIES."""
    return ragged_chain(3, lengths, 4, pairs=kind).to(dtype).constrain(BIES)


def with_garbage(chain: LinearChain, garbage: float) -> LinearChain:
    """The chain with `garbage` in all scores beyond the lengths."""
    beyond = ~chain.mask
    unary = chain.unary.masked_fill(beyond.unsqueeze(-1), garbage)
    transitions = chain.raw_transitions
    if transitions is not None and transitions.dim() == 4:
        transitions = transitions.masked_fill(beyond[:, 1:, None, None], garbage)
    return LinearChain(unary, transitions, chain.lengths)


def strided(x: Tensor) -> Tensor:
    """The same numbers in another layout: the last axis is not the innermost one."""
    return x.movedim(-1, 0).contiguous().movedim(0, -1)
