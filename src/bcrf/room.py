"""Room beyond the lengths, which chains have while they are solved in a graph.

`torch.compile` and `torch.export` take a size of 0 or 1 for a case of its own, and so they would
sizes that follow from the length: the number of edges, or of positions of one parity. With a few
positions more than the longest sentence no such size is below 2, and a graph serves all lengths.
Outside a graph these functions do nothing.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import pad

from .chain import LinearChain
from .loops import in_graph

__all__ = ["roomy", "with_room", "without_room"]

_ROOM = 4


def roomy(chain: LinearChain) -> LinearChain:
    """`chain` with room: the same sentences, in longer tensors."""
    if not in_graph():
        return chain
    transitions = chain.transitions
    if transitions is not None and not chain.shared:
        more = chain.max_length + _ROOM - 1 - transitions.shape[1]
        transitions = pad(transitions, (0, 0, 0, 0, 0, more))
    return LinearChain._new(with_room(chain.unary), transitions, chain.lengths, chain.dtype)


def with_room(x: Tensor) -> Tensor:
    """`x` [B, n, ...] and zeros."""
    return pad(x, (0, 0) * (x.dim() - 2) + (0, _ROOM)) if in_graph() else x


def without_room(x: Tensor) -> Tensor:
    """What `x` holds of the positions, or edges, of the chain as it was given."""
    return x[:, :-_ROOM] if in_graph() else x
