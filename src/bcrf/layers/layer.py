"""`ChainLayer`, the interface of all layers: from emissions to a loss, tags or probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor

from ..chain import PAD, LinearChain
from ..checks import check_count, check_temperature
from ..decoding import DecoderChoice, check_layer_decoder, decode_for_layer
from ..inference import SolverLike, sample
from ..inference.compiled import CompiledSolver
from ..losses import loss, partial_loss
from ..structure import Structure
from .masks import PreparedBatch, prepare_batch, raise_located
from .probabilities import (
    Span,
    converged_solution,
    distribution,
    locate_spans,
    log_probabilities,
    most_probable_sequences,
    span_probabilities,
)
from .transitions import TransitionParameters

__all__ = ["ChainLayer", "Reduction"]

Reduction = Literal["none", "sum", "mean", "token_mean"]
_REDUCTIONS = get_args(Reduction)
_PLAIN_SETTINGS = (
    "batch_first", "constraints", "penalty", "decoder", "temperature", "train_temperature",
    "finite_emissions",
)  # fmt: skip


class ChainLayer(TransitionParameters):
    """A structured output layer for a network that scores tags, with any solver and any decoder.

    Emissions are [B, n, T]. With `batch_first=False` the first two axes are swapped in all
    arguments and results that have both. A mask [B, n] may have any pattern, and any dtype that
    holds 0 and 1. Positions with 0 in the mask are removed: the positions before and after them
    become neighbours. In a loss, a tag of -100 removes its position, too. Lists hold the tags of
    the kept positions only; tensors hold -100 at removed positions.

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
        temperature: of the last three decoders; the paper decodes with
            `Bregman.paper(10)` at 0.1.
        train_temperature: tau > 0. The layer then models the scores w / tau instead of w: its loss
            is `bcrf.loss(..., temperature=tau)`, and its probabilities and decoders use w / tau,
            too. A temperature below 1 makes the first steps of training larger; see the guide to
            training.
        shared_transitions: whether there is a parameter `transitions` [T, T].
        start_end: whether there are parameters `start_transitions` and `end_transitions` [T].
        finite_emissions: whether all emissions of kept positions, all `transitions` of a batch and
            all parameters of the layer are known to be finite, so that only the constraints remove
            tags. On a GPU this saves kernel launches, and keeps a loop over the positions out of
            compiled graphs. With an -inf, results then have no meaning.

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
        if not callable(solver):
            raise TypeError(f"solver must be a solver such as bcrf.Bregman(10), got {solver!r}")
        check_layer_decoder(decoder, temperature)
        check_temperature(train_temperature)
        super().__init__(num_tags, constraints, penalty, shared_transitions, start_end)
        self.solver = solver
        self.batch_first = batch_first
        self.decoder = decoder
        self.temperature = temperature
        self.train_temperature = train_temperature
        self.finite_emissions = bool(finite_emissions)

    def extra_repr(self) -> str:
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
        """Return minus `loss`: the log-likelihood of an exact CRF."""
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

    # Probabilities. With `ForwardBackward` the distribution is p(y) = exp(<w, y> - A(w)). With
    # other solvers it is the Markov chain of their marginals (see `probabilities.distribution`).

    def marginals(
        self,
        emissions: Tensor,
        mask: Tensor | None = None,
        *,
        transitions: Tensor | None = None,
        converge: bool | None = None,
    ) -> Tensor:
        """Return the probability [B, n, T] of each tag at each position, differentiable.

        Args:
            converge: only for `Bregman` solvers. True: run projections until convergence (where
                values cannot be read, such as on a GPU: at least 50 projections). False: run as
                many as in training, which is faster and approximate. None: True in eager
                mode, and False in compiled and exported programs, whose size grows with the number
                of projections.

        Example:
            >>> import torch, bcrf
            >>> bcrf.TokenSoftmax(2).marginals(torch.zeros(1, 3, 2), torch.tensor([[1, 1, 0]]))
            tensor([[[0.5000, 0.5000],
                     [0.5000, 0.5000],
                     [0.0000, 0.0000]]])
        """
        if converge is None:
            converge = not torch.compiler.is_compiling()
        batch = prepare_batch(self, emissions, mask, transitions)
        try:
            solver, chain = self.solver, batch.chain
            solution = converged_solution(solver, chain) if converge else solver(chain)
            found = solution.tag_probabilities().to(batch.dtype)
        except ValueError as error:
            raise_located(error, batch)
        return self._swap_axes(batch.layout.restore(found))

    def top_tags(
        self,
        emissions: Tensor,
        k: int = 2,
        mask: Tensor | None = None,
        *,
        transitions: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return the k most probable tags of each position, best first.

        Returns:
            probabilities and tags, [B, n, k]; 0 and -100 where fewer than k tags are possible.
        """
        check_count("k", k, least=1)
        if k > self.num_tags:
            raise ValueError(f"k must be at most the number of tags, {self.num_tags}, got {k}")
        found, tags = self.marginals(emissions, mask, transitions=transitions).topk(k, -1)
        return found, torch.where(found > 0, tags, PAD)

    def sequence_probability(
        self,
        emissions: Tensor,
        tags: Tensor,
        mask: Tensor | None = None,
        *,
        transitions: Tensor | None = None,
        log: bool = False,
    ) -> Tensor:
        """Return the probability [B] of whole tag sequences, or its logarithm.

        It is 0 for sequences that the constraints forbid. A tag of -100 removes its position, as
        in `loss`.
        """
        batch = prepare_batch(self, emissions, mask, transitions, tags)
        assert batch.tags is not None
        try:
            found = log_probabilities(distribution(self.solver, batch.chain), batch.tags)
        except ValueError as error:
            raise_located(error, batch)
        found = found.to(batch.chain.unary.dtype)
        return found if log else torch.exp(found)

    def span_probability(
        self,
        emissions: Tensor,
        spans: Sequence[Span],
        mask: Tensor | None = None,
        *,
        transitions: Tensor | None = None,
    ) -> Tensor:
        """Return the probability [S] that the positions of each span have the given tags.

        Args:
            spans: (sentence, position, tags) of each span. The first entry of `tags` is for this
                position, the next ones are for the kept positions after it. An entry is a tag, or a
                collection of alternative tags: [B, I, others] is a mention of exactly two words.
        """
        batch = prepare_batch(self, emissions, mask, transitions)
        if not len(spans):
            return batch.chain.unary.new_zeros(0)
        located = locate_spans(spans, batch.chain, batch.layout)
        try:
            found = span_probabilities(distribution(self.solver, batch.chain), *located)
        except ValueError as error:
            raise_located(error, batch)
        return found.to(batch.chain.unary.dtype)

    def k_best(
        self,
        emissions: Tensor,
        k: int,
        mask: Tensor | None = None,
        *,
        transitions: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return the k most probable tag sequences, best first.

        Returns:
            log probabilities [B, k] and tags [B, k, n] (the batch always first); -inf and -100
            where a sentence has fewer than k sequences.
        """
        batch = prepare_batch(self, emissions, mask, transitions)
        try:
            found, tags = most_probable_sequences(distribution(self.solver, batch.chain), k)
        except ValueError as error:
            raise_located(error, batch)
        tags = batch.layout.restore_tags(tags.transpose(0, 1)).transpose(0, 1)
        return found.to(batch.chain.unary.dtype), tags

    def sample(
        self,
        emissions: Tensor,
        num_samples: int,
        mask: Tensor | None = None,
        *,
        transitions: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Return independent tag sequences [S, B, n] drawn from the model."""
        batch = prepare_batch(self, emissions, mask, transitions)
        try:
            tags = sample(distribution(self.solver, batch.chain), num_samples, generator)
        except ValueError as error:
            raise_located(error, batch)
        return self._swap_axes(batch.layout.restore_tags(tags), 1)
