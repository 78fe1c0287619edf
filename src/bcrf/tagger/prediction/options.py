"""What a tagger computes for sentences."""

from __future__ import annotations

from dataclasses import dataclass

from ..nn import check_decoder
from .decoding import check_repair

__all__ = ["TaggingOptions"]


@dataclass(frozen=True)
class TaggingOptions:
    """The choices of a call of `Tagger.tag`.

    Args:
        decoder: name of the decoder.
        repair: how ill-formed labels are repaired, see `REPAIRS`.
        probabilities: whether to compute the probability of each word's tag, and of each item (see
            `Task.items`).
        threshold: leave out tags with a lower probability; None: give all tags.
    """

    decoder: str
    repair: str
    probabilities: bool = False
    threshold: float | None = None

    def __post_init__(self) -> None:
        check_decoder(self.decoder)
        check_repair(self.repair)
        threshold = self.threshold
        if threshold is None:
            return
        if isinstance(threshold, bool) or not isinstance(threshold, int | float):
            raise TypeError(f"threshold must be a number from 0 to 1, got {threshold!r}")
        if not 0 <= threshold <= 1:
            raise ValueError(f"threshold must be a number from 0 to 1, got {threshold!r}")

    @property
    def needs_probabilities(self) -> bool:
        """Whether probabilities are needed: they were asked for, or there is a threshold."""
        return self.probabilities or self.threshold is not None
