"""The families as layers: to exchange one for another is to change one word."""

from __future__ import annotations

from typing import Any

from ..inference import Bregman, ForwardBackward, MeanField, Unstructured
from ..structure import Structure
from .base import ChainLayer
from .decoders import Decoder

__all__ = ["BregmanCRF", "ExactCRF", "MeanFieldCRF", "TokenSoftmax"]


class ExactCRF(ChainLayer):
    """A linear-chain CRF by forward-backward; the loss is the negative log-likelihood.

    Args:
        num_tags: T.
        options: of `ChainLayer`.
    """

    def __init__(self, num_tags: int, **options: Any) -> None:
        super().__init__(num_tags, ForwardBackward(), **options)


class BregmanCRF(ChainLayer):
    """A Bregman CRF by iterative projections, parallel over positions; Fenchel-Young loss.

    Args:
        num_tags: T.
        iterations: number of projections in a loss. For other settings give a solver, such as
            `Bregman.paper(10)`, to `ChainLayer`.
        options: of `ChainLayer`.
    """

    def __init__(self, num_tags: int, iterations: int = 10, **options: Any) -> None:
        super().__init__(num_tags, Bregman(iterations), **options)


class MeanFieldCRF(ChainLayer):
    """Mean field, k parallel updates; the loss is the cross-entropy of the last.

    It cannot represent a forbidden transition: in its updates one costs 2, or `penalty`. Its tags
    are independent of each other: so are those of its samples and of its best sequences.

    Args:
        num_tags: T.
        iterations: number of updates.
        options: of `ChainLayer`.
    """

    def __init__(
        self,
        num_tags: int,
        iterations: int = 10,
        *,
        decoder: Decoder = "constrained_mbr",
        **options: Any,
    ) -> None:
        super().__init__(num_tags, MeanField(iterations), decoder=decoder, **options)


class TokenSoftmax(ChainLayer):
    """No structure in training: a softmax for each position, and cross-entropy.

    It has no parameters. Transitions and constraints between tags play no part in the loss and the
    probabilities, but they do in decoders that look at sequences.

    Args:
        num_tags: T.
        options: of `ChainLayer`.
    """

    def __init__(
        self,
        num_tags: int,
        *,
        batch_first: bool = True,
        constraints: Structure | None = None,
        penalty: float | None = None,
        decoder: Decoder = "constrained_mbr",
        temperature: float = 1.0,
    ) -> None:
        super().__init__(
            num_tags,
            Unstructured(),
            batch_first=batch_first,
            constraints=constraints,
            penalty=penalty,
            decoder=decoder,
            temperature=temperature,
            shared_transitions=False,
            start_end=False,
        )
