"""Padding that lets one graph serve all lengths.

`torch.compile` and `torch.export` compile a special case for each size that is 0 or 1. Sizes that
are computed from the length n can be this small: the number of edges, or the number of positions of
one parity. With a few positions of padding all of these sizes are at least 2. Outside a graph these
functions do nothing.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import pad

from ..chain import LinearChain
from .control_flow import is_tracing

__all__ = ["pad_for_graph", "pad_tensor_for_graph", "remove_graph_padding"]

_PADDING = 4


def pad_for_graph(chain: LinearChain) -> LinearChain:
    """Return `chain` with a few positions of padding: the same sentences in longer tensors."""
    if not is_tracing():
        return chain
    transitions = chain.raw_transitions
    if transitions is not None and not chain.shared:
        more = chain.max_length + _PADDING - 1 - transitions.shape[1]
        transitions = pad(transitions, (0, 0, 0, 0, 0, more))
    return chain._with_scores(pad_tensor_for_graph(chain.unary), transitions)


def pad_tensor_for_graph(x: Tensor) -> Tensor:
    """Return `x` [B, n, ...] with positions of zeros appended."""
    return pad(x, (0, 0) * (x.dim() - 2) + (0, _PADDING)) if is_tracing() else x


def remove_graph_padding(x: Tensor) -> Tensor:
    """Return `x` [B, n, ...] without the padding of its second axis (positions or edges)."""
    return x[:, :-_PADDING] if is_tracing() else x
