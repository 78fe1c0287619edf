"""One layer class per solver; all layers have the interface of `ChainLayer`."""

from __future__ import annotations

from ..decoding import DecoderChoice
from ..inference import Bregman, ForwardBackward, MeanField, Unstructured
from ..structure import Structure
from .layer import ChainLayer

__all__ = ["BregmanCRF", "ExactCRF", "MeanFieldCRF", "TokenSoftmax"]


class ExactCRF(ChainLayer):
    """A linear-chain CRF, solved exactly by forward-backward.

    The loss is the negative log-likelihood.

    Args:
        num_tags: T.
        batch_first, constraints, penalty, decoder, temperature: see `ChainLayer`.
        train_temperature, shared_transitions, start_end, finite_emissions: see `ChainLayer`.

    Example:
        >>> import torch, bcrf
        >>> layer = bcrf.ExactCRF(num_tags=5)
        >>> emissions, tags = torch.randn(2, 7, 5), torch.randint(5, (2, 7))
        >>> mask = torch.tensor([[1, 1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0, 0]])
        >>> layer.loss(emissions, tags, mask).backward()
        >>> [len(sentence) for sentence in layer.decode(emissions, mask)]
        [7, 3]
    """

    def __init__(
        self,
        num_tags: int,
        *,
        batch_first: bool = True,
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
            ForwardBackward(),
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


class BregmanCRF(ChainLayer):
    """A Bregman CRF, solved by iterative projections that are parallel over positions.

    The loss is the Fenchel-Young loss B(w) - <w, y>.

    Args:
        num_tags: T.
        iterations: number of projections in a loss. For other settings use `ChainLayer` with a
            solver such as `Bregman.paper(10)`.
        batch_first, constraints, penalty, decoder, temperature: see `ChainLayer`.
        train_temperature, shared_transitions, start_end, finite_emissions: see `ChainLayer`.

    Example:
        >>> import torch, bcrf
        >>> rules = bcrf.Structure.from_labels(["O", "B", "I"], "BIO")
        >>> layer = bcrf.BregmanCRF(num_tags=3, constraints=rules)
        >>> emissions = torch.tensor([[[0.0, 0.0, 3.0], [0.0, 0.0, 3.0]]])
        >>> layer.decode(emissions)
        [[1, 2]]
    """

    def __init__(
        self,
        num_tags: int,
        iterations: int = 10,
        *,
        batch_first: bool = True,
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
            Bregman(iterations),
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


class MeanFieldCRF(ChainLayer):
    """Mean field: k parallel updates of independent tag distributions.

    The loss is the cross-entropy of the distributions after the last update. Mean field cannot
    represent a forbidden transition: in its updates a forbidden transition costs 2, or `penalty` if
    given. In `sample` and `k_best` the tags of different positions are independent of each other.

    Args:
        num_tags: T.
        iterations: number of updates.
        batch_first, constraints, penalty, decoder, temperature: see `ChainLayer`.
        train_temperature, shared_transitions, start_end, finite_emissions: see `ChainLayer`.

    Example:
        >>> import torch, bcrf
        >>> layer = bcrf.MeanFieldCRF(num_tags=3, iterations=5)
        >>> layer.marginals(torch.zeros(2, 4, 3)).shape
        torch.Size([2, 4, 3])
    """

    def __init__(
        self,
        num_tags: int,
        iterations: int = 10,
        *,
        batch_first: bool = True,
        constraints: Structure | None = None,
        penalty: float | None = None,
        decoder: DecoderChoice = "constrained_mbr",
        temperature: float = 1.0,
        train_temperature: float = 1.0,
        shared_transitions: bool = True,
        start_end: bool = True,
        finite_emissions: bool = False,
    ) -> None:
        super().__init__(
            num_tags,
            MeanField(iterations),
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


class TokenSoftmax(ChainLayer):
    """No structure in training: a softmax for each position, and cross-entropy.

    The layer has no parameters. Transitions and constraints do not change the loss or the
    probabilities. They only change the tags of decoders that choose a whole sequence.

    Args:
        num_tags: T.
        batch_first, constraints, penalty, decoder, temperature: see `ChainLayer`.
        train_temperature, finite_emissions: see `ChainLayer`.

    Example:
        >>> import torch, bcrf
        >>> layer = bcrf.TokenSoftmax(num_tags=2)
        >>> layer.decode(torch.tensor([[[0.0, 1.0], [1.0, 0.0]]]))
        [[1, 0]]
    """

    def __init__(
        self,
        num_tags: int,
        *,
        batch_first: bool = True,
        constraints: Structure | None = None,
        penalty: float | None = None,
        decoder: DecoderChoice = "constrained_mbr",
        temperature: float = 1.0,
        train_temperature: float = 1.0,
        finite_emissions: bool = False,
    ) -> None:
        super().__init__(
            num_tags,
            Unstructured(),
            batch_first=batch_first,
            constraints=constraints,
            penalty=penalty,
            decoder=decoder,
            temperature=temperature,
            train_temperature=train_temperature,
            shared_transitions=False,
            start_end=False,
            finite_emissions=finite_emissions,
        )
