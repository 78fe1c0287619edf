"""`CRF`: the exact CRF with the name, the defaults and the errors of pytorch-crf."""

from __future__ import annotations

from ..decoding import DecoderChoice
from ..inference import ForwardBackward
from ..structure import Structure
from .families import ExactCRF

__all__ = ["CRF"]


class CRF(ExactCRF):
    """`ExactCRF` for code that was written for pytorch-crf.

    Differences from `ExactCRF`: the batch is the second axis by default, and a mask that removes
    the first position of a sentence is an error. Differences from pytorch-crf: a mask can remove
    positions in the middle of a sentence, a tag of -100 removes its position, and the method `nll`
    returns the loss.

    Args:
        num_tags: T.
        batch_first: whether the batch is the first axis.
        constraints, penalty, decoder, temperature, train_temperature: see `ChainLayer`.
        shared_transitions, start_end, finite_emissions: see `ChainLayer`.

    Example:
        >>> import torch, bcrf
        >>> layer = bcrf.CRF(num_tags=5, batch_first=True)
        >>> emissions, tags = torch.randn(2, 7, 5), torch.randint(5, (2, 7))
        >>> log_likelihood = layer(emissions, tags)
        >>> bool(log_likelihood == -layer.nll(emissions, tags))
        True
    """

    _defaults = ExactCRF._defaults | {"solver": ForwardBackward(), "batch_first": False}
    _first_required = True

    def __init__(
        self,
        num_tags: int,
        batch_first: bool = False,
        *,
        constraints: Structure | None = None,
        penalty: float | None = None,
        decoder: DecoderChoice = "map",
        temperature: float = 1.0,
        train_temperature: float = 1.0,
        shared_transitions: bool = True,
        start_end: bool = True,
        finite_emissions: bool = False,
    ) -> None:
        super().__init__(
            num_tags,
            batch_first=batch_first,
            constraints=constraints,
            penalty=penalty,
            decoder=decoder,
            temperature=temperature,
            train_temperature=train_temperature,
            shared_transitions=shared_transitions,
            start_end=start_end,
            finite_emissions=finite_emissions,
        )
