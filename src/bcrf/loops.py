"""Loops whose number of rounds depends on the problem: in Python, or as operators of a graph.

`torch.compile` and `torch.export` unroll a Python loop over positions, so that every length needs
a graph of its own. In a graph these loops are torch's higher-order operators instead: one graph
serves all lengths, and ONNX has them as `Scan` and `Loop`. Before torch 2.13 they are unrolled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .torch_internals import HAS_LOOPS, has_static_value, scan, while_loop

__all__ = ["Step", "fixpoint", "in_graph", "knows", "loop"]

Columns = Sequence[Any]
Step = Callable[[tuple[Tensor, ...], tuple[Any, ...]], tuple[tuple[Tensor, ...], Tensor]]


def in_graph() -> bool:
    """Whether a graph is being made, by torch.compile or torch.export, that can have loops."""
    return HAS_LOOPS and torch.compiler.is_compiling()


def knows(size: int) -> bool:
    """Whether a size is a number here: in a graph it may be a symbol that stands for all."""
    return not in_graph() or has_static_value(size)


def loop(
    step: Step, carry: tuple[Tensor, ...], columns: Columns, reverse: bool = False
) -> tuple[tuple[Tensor, ...], Tensor]:
    """Call `step` for every position in turn, from the first or from the last one.

    Args:
        step: (carry, what the columns hold at a position) -> (next carry, output), new tensors.
        carry: what the first call gets; shapes and dtypes stay.
        columns: tensors [B, m, ...], m > 0; in eager mode also sequences of m objects.
        reverse: start with position m - 1.
    Returns:
        The last carry, and the outputs [B, m, ...], in the order of the positions.
    """
    if in_graph():
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
    """`loop` as an operator. It wants a carry that keeps its strides, and outputs that share no
    memory with the carry."""
    first = columns[0]
    places = torch.arange(first.shape[1], device=first.device)

    def plain(carry: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return tuple(x.contiguous() for x in carry)

    def body(carry: tuple[Tensor, ...], row: tuple[Any, ...]) -> Any:
        # Inductor wants to know what the number of rounds is made of, if that is a sum such as
        # n + 3; it does if the body asks for a size like that.
        places.size(0)
        carry, output = step(carry, row)
        return plain(carry), output.clone()

    found: tuple[tuple[Tensor, ...], Tensor]
    found = scan(body, plain(carry), tuple(columns), dim=1, reverse=reverse)
    return found


def fixpoint(step: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """`step` again and again until it changes nothing, in a graph: the graph looks, not Python."""

    def changing(_: Tensor, changed: Tensor) -> Tensor:
        return changed.clone()

    def advance(before: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
        after = step(before)
        return after, (after != before).any()

    changed = torch.ones((), dtype=torch.bool, device=x.device)
    start = (x.clone(), changed)
    settled: Tensor = while_loop(changing, advance, start)[0]
    return settled
