"""The CRF under the name and with the habits that code written for pytorch-crf expects."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..checks import checks_enabled
from ..inference import ForwardBackward
from .families import ExactCRF

__all__ = ["CRF"]


class CRF(ExactCRF):
    """`ExactCRF` for code that was written for pytorch-crf.

    What differs from `ExactCRF`: the batch is the second axis by default, and a mask that removes
    the first position of a sentence is an error. What differs from pytorch-crf: holes in a mask
    are removed from the sequence, -100 is a label to ignore, and there is `nll`, the loss.

    Args:
        num_tags: T.
        batch_first: whether the batch is the first axis.
        options: of `ChainLayer`.
    """

    def __init__(self, num_tags: int, batch_first: bool = False, **options: Any) -> None:
        super().__init__(num_tags, batch_first=batch_first, **options)

    _usual = ExactCRF._usual | {"solver": ForwardBackward(), "batch_first": False}

    def _check_mask(self, mask: Tensor) -> None:
        along = 1 if self.batch_first else 0
        if mask.dim() != 2 or not mask.shape[along] or not checks_enabled(mask):
            return
        first = mask.select(along, 0)
        if not bool(first.all()):
            sentence = int((first == 0).nonzero()[0])
            raise ValueError(
                f"sentence {sentence}: the mask removes the first position, which pytorch-crf does "
                f"not accept; bcrf.ExactCRF does"
            )
