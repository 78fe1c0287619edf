"""Loops over positions: Python loops in eager mode, the operator `scan` in a graph.

`torch.compile` and `torch.export` unroll a Python loop, so each length would need its own graph. In
a graph `loop` calls torch's higher-order operator `scan` instead. One graph then serves all
lengths, and an ONNX export contains `Scan`. Before torch 2.13 the loops are unrolled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .private_torch import HAS_LOOPS, has_static_value, may_be_exporting, scan

__all__ = ["Step", "is_exporting", "is_static", "is_tracing", "loop", "stored"]

Columns = Sequence[Any]
Step = Callable[[tuple[Tensor, ...], tuple[Any, ...]], tuple[tuple[Tensor, ...], Tensor]]


def is_tracing() -> bool:
    """Whether torch.compile or torch.export traces this call and supports loop operators."""
    return HAS_LOOPS and torch.compiler.is_compiling()


def is_exporting() -> bool:
    """Whether torch.export traces this call and supports loop operators."""
    return is_tracing() and may_be_exporting()


def is_static(size: int) -> bool:
    """Whether `size` is a known number, not the symbolic size of a graph."""
    return not is_tracing() or has_static_value(size)


def stored(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Return `tensors`, of one shape and without gradients, stored in memory by a compiled graph.

    Otherwise Inductor computes a tensor again in each kernel that reads it. If the tensor has many
    inputs, Inductor instead stores the larger tensors that are computed from it, and each of them
    takes one more kernel.
    """
    if not torch.compiler.is_compiling() or may_be_exporting():
        return tensors
    packed = torch.stack(tensors)
    # Inductor stores what `as_strided` reads. We call `as_strided` on a new contiguous tensor only:
    # on a view, it would read the memory of the base tensor.
    return packed.as_strided(packed.shape, packed.stride()).unbind(0)


def loop(
    step: Step, carry: tuple[Tensor, ...], columns: Columns, reverse: bool = False
) -> tuple[tuple[Tensor, ...], Tensor]:
    """Call `step` at every position in turn, and return the last carry and all outputs.

    Args:
        step: (carry, entries of the columns at a position) -> (next carry, output). The output must
            be a new tensor.
        carry: the carry of the first call. Later carries have the same shapes and dtypes.
        columns: tensors [B, m, ...], m > 0; in eager mode also sequences of m objects.
        reverse: start at position m - 1.
    Returns:
        The last carry, and the outputs [B, m, ...] in the order of the positions.
    """
    if is_tracing():
        return _scan(step, carry, columns, reverse)
    rows = list(zip(*(x.unbind(1) if isinstance(x, Tensor) else x for x in columns), strict=True))
    outputs = []
    for row in reversed(rows) if reverse else rows:
        carry, output = step(carry, row)
        outputs.append(output)
    return carry, torch.stack(outputs[::-1] if reverse else outputs, 1)


def _scan(
    step: Step, carry: tuple[Tensor, ...], columns: Columns, reverse: bool
) -> tuple[tuple[Tensor, ...], Tensor]:
    """Return the result of `loop`, computed by the operator `scan` of the graph.

    The operator requires that the carry keeps its strides, and that outputs share no memory with
    the carry.
    """
    first = columns[0]
    positions = torch.arange(first.shape[1], device=first.device)

    def contiguous(carry: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return tuple(x.contiguous() for x in carry)

    def body(carry: tuple[Tensor, ...], row: tuple[Any, ...]) -> Any:
        # Inductor needs the trip count as a symbolic size, also if it is a sum such as n + 3.
        # Reading a size in the body exposes it.
        positions.size(0)
        carry, output = step(carry, row)
        return contiguous(carry), output.clone()

    found: tuple[tuple[Tensor, ...], Tensor]
    found = scan(body, contiguous(carry), tuple(columns), dim=1, reverse=reverse)
    return found
