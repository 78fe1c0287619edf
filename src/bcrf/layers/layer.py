"""`ChainLayer`, the interface of all layers: from emissions to a loss, tags or probabilities."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

import torch
from torch import Tensor, nn

from ..chain import LinearChain
from ..checks import NO_TEMPERATURE, check_count, check_temperature
from ..decoding import DecoderChoice, check_layer_decoder, decode_for_layer
from ..inference import SolverLike
from ..inference.compiled import CompiledSolver
from ..losses import loss, partial_loss
from ..structure import Structure
from . import probability_methods
from .initialisation import fill_missing_parameters
from .masks import PreparedBatch, prepare_batch, raise_located
from .tag_frequencies import log_frequencies
from .transitions import (
    ConstraintScores,
    agreed_constraints,
    check_constraints,
    check_penalty,
    promote_to_working,
    register_transition_parameters,
)

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["ChainLayer", "Reduction"]

Reduction = Literal["none", "sum", "mean", "token_mean"]
_REDUCTIONS = get_args(Reduction)
_PARAMETERS = ("start_transitions", "end_transitions", "transitions")
_PLAIN_SETTINGS = (
    "batch_first", "constraints", "penalty", "decoder", "temperature", "train_temperature",
    "finite_emissions",
)  # fmt: skip


class ChainLayer(nn.Module):
    """A structured output layer for a network that scores tags, with any solver and any decoder.

    Emissions are [B, n, T]. With `batch_first=False` the first two axes are swapped in all
    arguments and results that have both. A mask [B, n] may have any pattern, and any dtype that
    holds 0 and 1. Positions with 0 in the mask are removed: the positions before and after them
    become neighbours. In a loss, a tag of -100 removes its position, too. Lists hold the tags of
    the kept positions only; tensors hold -100 at removed positions.

    The parameters have the names and axes of pytorch-crf and AllenNLP, so that their state dicts
    load. Constraints are settings: a state dict does not hold them.

    Most methods have an argument `transitions`: scores of this batch, [B, n-1, T, T] for adjacent
    positions, or [T, T]. They are added to the layer's own transition scores. The form
    [B, n-1, T, T] has no scores for positions that become neighbours by a mask, so such a mask is
    an error (see `bcrf.layers.compact`).

    Args:
        num_tags: T.
        solver: computes losses and probabilities.
        batch_first: whether the batch is the first axis.
        constraints: which tags may start a sentence, end it and follow each other.
        penalty: None: forbidden tags and transitions are removed from the model, and gold tags that
            use them are an error. A number: the cost of each use, in the loss and in decoding.
        decoder: "map" or "viterbi" (a best sequence, by Viterbi), "certified" (a best sequence, by
            certified decoding); "mbr" (the most probable tag of each
            position, by `solver`), "constrained_mbr" (among the sequences that the constraints
            allow, the one with the highest expected number of correct tags), or another solver (the
            most probable tag of each position, by that solver).
        temperature: of the decoders "mbr" and "constrained_mbr", and of another solver; the paper
            decodes with `Bregman.paper(10)` at 0.1.
        train_temperature: tau > 0. The layer then models the scores w / tau instead of w: its loss
            is `bcrf.loss(..., temperature=tau)`, and its probabilities and decoders use w / tau,
            too. A temperature below 1 makes the first steps of training larger; see the guide to
            training.
        shared_transitions: whether there is a parameter `transitions` [T, T].
        start_end: whether there are parameters `start_transitions` and `end_transitions` [T].
        finite_emissions: whether all emissions of kept positions, all `transitions` of a batch and
            all parameters of the layer are known to be finite, so that only the constraints remove
            tags. On a GPU this saves kernel launches, and keeps a loop over the positions out of
            compiled graphs. If one of them is -inf all the same, results have no meaning.

    Attributes:
        start_transitions, end_transitions: parameters [T], or None.
        transitions: parameter [T, T], axes from -> to, or None.

    Example:
        >>> import torch
        >>> from bcrf import Bregman, ChainLayer
        >>> layer = ChainLayer(5, Bregman.paper(10), decoder=Bregman.paper(10), temperature=0.1)
        >>> emissions = torch.randn(2, 7, 5, requires_grad=True)
        >>> tags = torch.randint(5, (2, 7))
        >>> layer.loss(emissions, tags).backward()
        >>> [len(sentence) for sentence in layer.decode(emissions)]
        [7, 7]
    """

    start_transitions: nn.Parameter | None
    end_transitions: nn.Parameter | None
    transitions: nn.Parameter | None

    # Settings that `repr` leaves out where they have these values.
    _defaults: ClassVar[dict[str, object]] = {
        "batch_first": True,
        "constraints": None,
        "penalty": None,
        "decoder": "map",
        "temperature": 1.0,
        "train_temperature": 1.0,
        "shared_transitions": True,
        "start_end": True,
        "finite_emissions": False,
    }
    # Whether a mask that removes the first position of a sentence is an error.
    _first_required: ClassVar[bool] = False

    def __init__(
        self,
        num_tags: int,
        solver: SolverLike,
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
        """Create a layer; its class describes the arguments."""
        if not callable(solver):
            raise TypeError(f"solver must be a solver such as bcrf.Bregman(10), got {solver!r}")
        check_layer_decoder(decoder, temperature)
        check_temperature(train_temperature)
        check_count("num_tags", num_tags, least=1)
        super().__init__()
        self.num_tags = num_tags
        self._constraint_scores: ConstraintScores | None = None
        self.penalty = penalty
        self.constraints = constraints
        register_transition_parameters(self, num_tags, _PARAMETERS, start_end, shared_transitions)
        self.reset_parameters()
        self._built_on_meta = any(parameter.is_meta for parameter in self.parameters(recurse=False))
        self._parameters_checked = False
        self.solver = solver
        self.batch_first = batch_first
        self.decoder = decoder
        self.temperature = NO_TEMPERATURE if temperature == 1 else temperature
        self.train_temperature = NO_TEMPERATURE if train_temperature == 1 else train_temperature
        self.finite_emissions = bool(finite_emissions)

    def extra_repr(self) -> str:
        """Return the settings for `repr`, without those that have their defaults."""
        settings = {
            **{name: getattr(self, name) for name in ("num_tags", "solver", *_PLAIN_SETTINGS)},
            "shared_transitions": self.transitions is not None,
            "start_end": self.start_transitions is not None,
        }
        return ", ".join(
            f"{name}={value!r}"
            for name, value in settings.items()
            if name not in self._defaults or value != self._defaults[name]
        )

    # Parameters and constraints

    @property
    def constraints(self) -> Structure | None:
        """Which tags may start a sentence, end it and follow each other; None: all. Can be set."""
        scores = self._constraint_scores
        return None if scores is None else scores.structure

    @constraints.setter
    def constraints(self, structure: Structure | None) -> None:
        if structure is None:
            self._constraint_scores = None
            return
        check_constraints(structure, self.num_tags)
        self._constraint_scores = ConstraintScores(structure, self._penalty)

    @property
    def penalty(self) -> float | None:
        """The cost of a forbidden tag or transition; None: it is removed. Can be set."""
        return self._penalty

    @penalty.setter
    def penalty(self, penalty: float | None) -> None:
        check_penalty(penalty)
        self._penalty = penalty
        if self._constraint_scores is not None:
            self._constraint_scores = ConstraintScores(self._constraint_scores.structure, penalty)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move the constraints with the parameters, for `to`, `double` and the like."""
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if self._constraint_scores is not None:
            moved = fn(torch.zeros(1, device="cpu"))
            self._constraint_scores.place(moved.device, promote_to_working(moved.dtype))
        return self

    def reset_parameters(self) -> None:
        """Draw the parameters from the uniform distribution on -0.1..0.1.

        Example:
            >>> import bcrf
            >>> layer = bcrf.ExactCRF(3)
            >>> layer.reset_parameters()
            >>> bool(layer.transitions.abs().max() <= 0.1)
            True
        """
        for parameter in (self.start_transitions, self.end_transitions, self.transitions):
            if parameter is not None:
                nn.init.uniform_(parameter, -0.1, 0.1)

    @property
    def _is_hf_initialized(self) -> bool:
        """Whether transformers has visited this layer; setting it draws missing parameters."""
        return bool(self.__dict__.get("_visited_by_transformers", False))

    @_is_hf_initialized.setter
    def _is_hf_initialized(self, value: bool) -> None:
        if value and self._built_on_meta:
            fill_missing_parameters(list(self.parameters(recurse=False)))
        self.__dict__["_visited_by_transformers"] = value

    def init_from_counts(
        self, tag_sequences: Iterable[Sequence[int] | Tensor] | Tensor, smoothing: float = 1.0
    ) -> None:
        """Set the parameters to smoothed log frequencies of the tags of a corpus.

        With emissions of zero, the layer is then the Markov chain of these tags. So training starts
        from the frequencies of adjacent tags.

        Args:
            tag_sequences: the tags of each sentence, as lists or tensors; -100 is skipped.
            smoothing: a number > 0 that is added to every count.

        Example:
            >>> import bcrf
            >>> layer = bcrf.ExactCRF(3)
            >>> layer.init_from_counts([[0, 1, 2], [0, 0, 1]])
            >>> bool(layer.transitions[0, 1] > layer.transitions[0, 2])
            True
        """
        if self.transitions is None and self.start_transitions is None:
            raise ValueError(
                "this layer has no transitions to initialise; start_end=True and "
                "shared_transitions=True give a ChainLayer such parameters"
            )
        found = log_frequencies(tag_sequences, self.num_tags, smoothing)
        with torch.no_grad():
            for parameter, scores in (
                (self.start_transitions, found.start),
                (self.transitions, found.follow),
                (self.end_transitions, found.end),
            ):
                if parameter is not None:
                    parameter.copy_(scores)

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *arguments: Any
    ) -> None:
        """Load the state dict; take constraints from AllenNLP's `_constraint_mask`, if it has one.

        If the layer has constraints already, they must agree with the mask.
        """
        mask = state_dict.pop(f"{prefix}_constraint_mask", None)
        if mask is not None:
            try:
                self.constraints = agreed_constraints(self.constraints, mask, self.num_tags)
            except ValueError as error:
                *_, error_messages = arguments
                error_messages.append(f"{prefix}_constraint_mask: {error}")
        super()._load_from_state_dict(state_dict, prefix, *arguments)

    # From emissions to a chain

    def chain(
        self, emissions: Tensor, mask: Tensor | None = None, *, transitions: Tensor | None = None
    ) -> LinearChain:
        """Return the problem that the layer solves, as a chain of compact sentences.

        Example:
            >>> import torch, bcrf
            >>> chain = bcrf.BregmanCRF(3).chain(torch.zeros(2, 4, 3))
            >>> bcrf.entropy(chain).shape
            torch.Size([2])
        """
        return prepare_batch(self, emissions, mask, transitions).chain

    def _swap_axes(self, x: Tensor, dim: int = 0) -> Tensor:
        """Swap axes `dim` and `dim` + 1 unless the caller's batch axis is the first."""
        return x if self.batch_first else x.transpose(dim, dim + 1)

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
        """Return minus `loss`: the log-likelihood of an exact CRF.

        Example:
            >>> import torch, bcrf
            >>> bcrf.TokenSoftmax(2)(torch.zeros(1, 3, 2), torch.tensor([[0, 1, 1]]))  # 3 log 0.5
            tensor(-2.0794)
        """
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
        """Return the loss to minimise: `bcrf.loss` of `tags`, or `bcrf.partial_loss` of `allowed`.

        It is >= 0, in float32 or float64.

        Args:
            tags: [B, n] integers, -100 at positions to remove.
            allowed: bool [B, n, T], the allowed tags of each position, instead of `tags`.
            reduction: "none" ([B]), "sum", "mean" over all sentences, or "token_mean", the sum
                divided by the number of kept positions. "sum" is the default of pytorch-crf.

        Example:
            >>> import torch, bcrf
            >>> layer = bcrf.BregmanCRF(3)
            >>> emissions = torch.randn(2, 4, 3)
            >>> tags = torch.tensor([[0, 1, 2, 0], [1, 1, -100, -100]])
            >>> layer.loss(emissions, tags, reduction="none").shape
            torch.Size([2])
        """
        if reduction not in _REDUCTIONS:
            raise ValueError(f"reduction must be one of {_REDUCTIONS}, got {reduction!r}")
        if (tags is None) == (allowed is None):
            found = "neither" if tags is None else "both"
            raise ValueError(f"expected tags or allowed, got {found}")
        solver = self.solver
        compiled = tags is not None and isinstance(solver, CompiledSolver)
        batch = prepare_batch(self, emissions, mask, transitions, tags, allowed, compiled)
        chain = batch.chain
        try:
            if batch.tags is None:
                assert batch.allowed is not None
                losses = partial_loss(solver, chain, batch.allowed)
            elif isinstance(solver, CompiledSolver):
                losses = solver.loss(chain, batch.tags, batch.start_end)
            else:
                losses = loss(solver, chain, batch.tags)
        except ValueError as error:
            raise_located(error, batch)
        if self.train_temperature != 1:
            losses = losses * self.train_temperature
        if reduction in ("none", "sum"):
            return losses if reduction == "none" else losses.sum()
        count = losses.shape[0] if reduction == "mean" else chain.lengths.sum()
        return losses.sum() / (max(count, 1) if isinstance(count, int) else count.clamp(min=1))

    nll = loss

    def decode(
        self, emissions: Tensor, mask: Tensor | None = None, *, transitions: Tensor | None = None
    ) -> list[list[int]]:
        """Return the tags that the decoder chooses: one list per sentence, kept positions only.

        Example:
            >>> import torch, bcrf
            >>> layer = bcrf.ExactCRF(2, start_end=False, shared_transitions=False)
            >>> emissions = torch.tensor([[[0.0, 1.0], [1.0, 0.0], [0.0, 1.0]]])
            >>> layer.decode(emissions, torch.tensor([[1, 1, 0]]))
            [[1, 0]]
        """
        batch, tags = self._decode(emissions, mask, transitions)
        return batch.layout.lists(tags)

    def decode_tensor(
        self, emissions: Tensor, mask: Tensor | None = None, *, transitions: Tensor | None = None
    ) -> Tensor:
        """Return the tags of `decode` as a tensor [B, n], -100 at removed positions.

        Unlike `decode`, it can be compiled and exported.

        Example:
            >>> import torch, bcrf
            >>> emissions = torch.tensor([[[0.0, 1.0], [1.0, 0.0], [0.0, 1.0]]])
            >>> bcrf.TokenSoftmax(2).decode_tensor(emissions, torch.tensor([[1, 1, 0]]))
            tensor([[   1,    0, -100]])
        """
        batch, tags = self._decode(emissions, mask, transitions)
        return self._swap_axes(batch.layout.restore_tags(tags))

    @torch.no_grad()
    def _decode(
        self, emissions: Tensor, mask: Tensor | None, transitions: Tensor | None
    ) -> tuple[PreparedBatch, Tensor]:
        """Return the batch, and the tags [B, n] of its chain."""
        batch = prepare_batch(self, emissions, mask, transitions)
        decoder, rules = self.decoder, None
        if decoder == "constrained_mbr":
            rules = self.constraints
            if rules is None and transitions is None:
                decoder = "mbr"  # parameters are finite: nothing is removed
        try:
            tags = decode_for_layer(decoder, batch.chain, self.solver, self.temperature, rules)
        except ValueError as error:
            raise_located(error, batch)
        return batch, tags

    # These methods are in a file of their own.
    marginals = probability_methods.marginals
    top_tags = probability_methods.top_tags
    sequence_probability = probability_methods.sequence_probability
    span_probability = probability_methods.span_probability
    k_best = probability_methods.k_best
    sample = probability_methods.sample
