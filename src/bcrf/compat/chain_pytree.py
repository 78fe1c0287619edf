"""Let chains be arguments and results of compiled and exported functions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from .private_torch import register_pytree_node

__all__ = ["register_chain"]

_Context = tuple[torch.dtype, bool]


def register_chain(cls: Any) -> None:
    """Register `cls`, the class `LinearChain`, as a pytree with its scores and lengths as leaves.

    The leaves do not include the structure. It is applied to the scores, which then hold -inf.
    """

    def flatten(chain: Any) -> tuple[list[Any], _Context]:
        finite = chain.finite and chain.structure is None
        return [chain.unary, chain.transitions, chain.lengths], (chain.dtype, finite)

    def unflatten(leaves: Iterable[Any], context: _Context) -> Any:
        unary, transitions, lengths = leaves
        dtype, finite = context
        return cls._new(unary, transitions, lengths, dtype, None, finite)

    register_pytree_node(
        cls,
        ("unary", "transitions", "lengths"),
        flatten,
        unflatten,
        to_dumpable_context=lambda context: [str(context[0]).removeprefix("torch."), context[1]],
        from_dumpable_context=lambda stored: (getattr(torch, stored[0]), stored[1]),
    )
