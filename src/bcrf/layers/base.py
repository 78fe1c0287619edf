"""The one interface of all layers: emissions in, a loss to minimise or tags out."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor

from ..inference import Solver
from ..losses import loss, partial_loss
from ..structure import Structure
from .decoders import Decoder, best_tags, check_decoder
from .diagnosis import Posed
from .probabilities import Probabilities

__all__ = ["ChainLayer", "Reduction"]

Reduction = Literal["none", "sum", "mean", "token_mean"]
_REDUCTIONS = ("none", "sum", "mean", "token_mean")


class ChainLayer(Probabilities):
    """A structured output for a network that scores tags, with any solver and any decoder.

    Emissions are [B, n, T]; unless `batch_first`, these two axes are swapped here and in everything
    else that has them. A mask [B, n] may have any pattern and any type that holds 0 and 1. Masked
    positions are removed: what stands before and after them become neighbours. In a loss, a tag of
    -100 removes its position too. Lists hold the kept positions only; tensors hold -100 in the
    place of the others.

    `transitions`, where a method takes them, are scores of this batch: [B, n-1, T, T] for adjacent
    positions, or [T, T]. The layer's own transitions, if it has any, are added to them. Positions
    that have become neighbours have no such scores; that is an error (see `bcrf.layers.compact`).

    Args:
        num_tags: T.
        solver: what losses and probabilities come from.
        batch_first: whether the batch is the first axis.
        constraints: what may start a sentence, end it and follow each other, always.
        penalty: None: what the constraints forbid is not in the model, and a gold tag that uses it
            is an error. A number: it costs so much, in the loss and in decoding.
        decoder: "map" (a best sequence, by the method that is faster on the device), "viterbi" or
            "certified" (a best sequence, by this method); "mbr" (the most probable tags of
            `solver`), "constrained_mbr" (the sequence with the most expected hits among those that
            the constraints allow), or another solver (its most probable tags).
        temperature: of the last three; the paper decodes with `Bregman(10)` at 0.1.
        shared_transitions: whether there is a parameter `transitions` [T, T].
        start_end: whether there are parameters `start_transitions` and `end_transitions` [T].
    """

    def __init__(
        self,
        num_tags: int,
        solver: Solver,
        *,
        batch_first: bool = True,
        constraints: Structure | None = None,
        penalty: float | None = None,
        decoder: Decoder = "map",
        temperature: float = 1.0,
        shared_transitions: bool = True,
        start_end: bool = True,
    ) -> None:
        check_decoder(decoder, temperature)
        super().__init__(
            num_tags, solver, batch_first, constraints, penalty, shared_transitions, start_end
        )
        self.decoder = decoder
        self.temperature = temperature

    def extra_repr(self) -> str:
        settings = {
            "num_tags": self.num_tags,
            "solver": self.solver,
            "batch_first": self.batch_first,
            "constraints": self.constraints,
            "penalty": self.penalty,
            "decoder": self.decoder,
            "temperature": self.temperature,
            "shared_transitions": self.transitions is not None,
            "start_end": self.start_transitions is not None,
        }
        return ", ".join(
            f"{name}={value!r}"
            for name, value in settings.items()
            if name not in self._usual or value != self._usual[name]
        )

    # Settings that are not worth printing.
    _usual: ClassVar[dict[str, object]] = {
        "batch_first": True,
        "constraints": None,
        "penalty": None,
        "decoder": "map",
        "temperature": 1.0,
        "shared_transitions": True,
        "start_end": True,
    }

    def forward(
        self,
        emissions: Tensor,
        tags: Tensor | None = None,
        mask: Tensor | None = None,
        reduction: Reduction = "sum",
        *,
        allowed: Tensor | None = None,
        transitions: Tensor | None = None,
    ) -> Tensor:
        """Minus `loss`: the log-likelihood of an exact CRF."""
        return -self.loss(
            emissions, tags, mask, reduction, allowed=allowed, transitions=transitions
        )

    def loss(
        self,
        emissions: Tensor,
        tags: Tensor | None = None,
        mask: Tensor | None = None,
        reduction: Reduction = "sum",
        *,
        allowed: Tensor | None = None,
        transitions: Tensor | None = None,
    ) -> Tensor:
        """What to minimise, >= 0, in float32 at least: `bcrf.loss`, or `bcrf.partial_loss`.

        Args:
            tags: [B, n] integers, -100 at positions to remove.
            allowed: bool [B, n, T], sets of possible tags, instead of `tags`.
            reduction: "none" ([B]), "sum", "mean" over all sentences, or "token_mean", the sum
                divided by the number of kept positions. "sum" is what pytorch-crf does.
        """
        if reduction not in _REDUCTIONS:
            raise ValueError(f"reduction must be one of {_REDUCTIONS}, got {reduction!r}")
        if (tags is None) == (allowed is None):
            found = "neither" if tags is None else "both"
            raise ValueError(f"expected tags or allowed, got {found}")
        posed = self._pose(emissions, mask, transitions, tags, allowed)
        losses = self._ask(self._losses, posed)
        if reduction == "none":
            return losses
        total = losses.sum()
        if reduction == "mean":
            return total / max(losses.shape[0], 1)
        if reduction == "token_mean":
            return total / posed.chain.lengths.sum().clamp(min=1)
        return total

    nll = loss

    def _losses(self, posed: Posed) -> Tensor:
        if posed.tags is not None:
            return loss(self.solver, posed.chain, posed.tags)
        assert posed.allowed is not None
        return partial_loss(self.solver, posed.chain, posed.allowed)

    def decode(
        self, emissions: Tensor, mask: Tensor | None = None, *, transitions: Tensor | None = None
    ) -> list[list[int]]:
        """The tags of the kept positions of each sentence."""
        posed, tags = self._decoded(emissions, mask, transitions)
        return posed.layout.lists(tags)

    def decode_tensor(
        self, emissions: Tensor, mask: Tensor | None = None, *, transitions: Tensor | None = None
    ) -> Tensor:
        """The same as a tensor [B, n], -100 at removed positions: this one can be exported."""
        posed, tags = self._decoded(emissions, mask, transitions)
        return self._turned(posed.layout.restore_tags(tags))

    @torch.no_grad()
    def _decoded(
        self, emissions: Tensor, mask: Tensor | None, transitions: Tensor | None
    ) -> tuple[Posed, Tensor]:
        posed = self._pose(emissions, mask, transitions)
        decoder, rules = self.decoder, None
        if decoder == "constrained_mbr":
            rules = self.constraints
            if rules is None and transitions is None:
                decoder = "mbr"  # parameters are finite: nothing is removed

        def find(posed: Posed) -> Tensor:
            return best_tags(decoder, posed.chain, self.solver, self.temperature, rules)

        return posed, self._ask(find, posed)
