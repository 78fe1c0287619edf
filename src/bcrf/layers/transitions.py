"""Scores of the first tag, the last tag and adjacent tags, with constraints on them.

Layers and the tagger's scorer share these functions. The names of their parameters differ.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from ..checks import check_count, check_number
from ..compat.private_torch import in_transform
from ..structure import Structure
from .tag_frequencies import log_frequencies

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = [
    "ConstraintScores",
    "TransitionParameters",
    "allennlp_structure",
    "transition_scores",
]


class _PlacedScores(NamedTuple):
    """Constraint scores on one device, in one dtype.

    Args:
        start_end: [2T], the scores of start tags, then of end tags; None: all tags are allowed.
        transitions: [T, T]; None: all transitions are allowed.
        structure: the constraints, if they remove tags or transitions.
    """

    device: torch.device
    dtype: torch.dtype
    start_end: Tensor | None
    transitions: Tensor | None
    structure: Structure | None


class ConstraintScores:
    """Constraints as scores to add: 0 if allowed, and -inf or minus a penalty if forbidden.

    These scores are settings of a module, like the number of tags. They are not buffers, because
    loaders that create modules on the meta device lose the values of buffers that are not saved.

    Args:
        structure: which tags may start a sentence, end it and follow each other.
        penalty: the cost of a forbidden tag or transition; None: it is removed (-inf).
    """

    def __init__(self, structure: Structure, penalty: float | None = None) -> None:
        self.structure = structure.to("cpu")
        self.penalty = penalty
        start_end = torch.cat([self.structure.start, self.structure.end])
        # The masks that become scores; None where everything is allowed.
        self._masks = [
            None if bool(allowed.all()) else allowed
            for allowed in (start_end, self.structure.follow)
        ]
        # We compute the scores on the default device now. If `_placed` changed later, torch.compile
        # would compile the function again.
        default = torch.empty(0)
        self._placed = self._scores(default.device, promote_to_working(default.dtype))

    def place(self, device: torch.device, dtype: torch.dtype) -> _PlacedScores:
        """Return the scores on `device` in `dtype`, and store them for the next call."""
        placed = self._placed
        if placed.dtype is dtype and placed.device == device:
            return placed
        if torch.compiler.is_compiling() or in_transform():
            return self._scores(device, dtype)  # a tensor of a graph must not outlive it
        with torch.inference_mode(False):  # training may use the kept scores later
            placed = self._scores(device, dtype)
        self._placed = placed  # another thread may replace it, so we return the local variable
        return placed

    def _scores(self, device: torch.device, dtype: torch.dtype) -> _PlacedScores:
        cost = -math.inf if self.penalty is None else -self.penalty
        start_end, transitions = (
            None
            if allowed is None
            else torch.zeros(allowed.shape, dtype=dtype, device=device).masked_fill(
                ~allowed.to(device), cost
            )
            for allowed in self._masks
        )
        removes = self.penalty is None and (start_end is not None or transitions is not None)
        structure = self.structure.to(device) if removes else None
        return _PlacedScores(device, dtype, start_end, transitions, structure)


def promote_to_working(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype for computations with scores of `dtype`: float32 or float64."""
    return torch.promote_types(dtype, torch.float32)


def transition_scores(
    like: Tensor,
    start: Tensor | None,
    end: Tensor | None,
    transitions: Tensor | None,
    batch_transitions: Tensor | None = None,
    constraints: ConstraintScores | None = None,
    declared: bool = False,
) -> tuple[Tensor | None, Tensor | None]:
    """Return the scores of start and end tags [2T] and of transitions; None: all zero.

    Args:
        like: a tensor with the device and the dtype of the result.
        start, end: [T], both or neither.
        transitions: [T, T], axes from -> to.
        batch_transitions: [T, T] or [B, n-1, T, T], added to `transitions`.
        constraints: their scores are added.
        declared: whether the constraints are the structure of the chain. Then its kernels remove
            transitions from scores [B, n-1, T, T], and we add nothing to these.
    """
    dtype = like.dtype
    start_end = None
    if start is not None and end is not None:
        start_end = torch.cat([start, end])
        if start_end.dtype is not dtype:
            start_end = start_end.to(dtype)
    if transitions is not None and transitions.dtype is not dtype:
        transitions = transitions.to(dtype)
    if constraints is not None:
        costs = constraints.place(like.device, dtype)
        if costs.start_end is not None:
            start_end = costs.start_end if start_end is None else start_end + costs.start_end
        per_pair = batch_transitions is not None and batch_transitions.dim() == 4
        # We add the constraints to the shared [T, T] first: `batch_transitions` may be much larger.
        if costs.transitions is not None and not (declared and costs.structure and per_pair):
            cost = costs.transitions
            transitions = cost if transitions is None else transitions + cost
    if batch_transitions is not None:
        batch_transitions = batch_transitions.to(dtype)
        transitions = batch_transitions if transitions is None else batch_transitions + transitions
    return start_end, transitions


class TransitionParameters(nn.Module):
    """Trainable scores of the first tag, the last tag and adjacent tags, with constraints.

    The parameters have the names and axes of pytorch-crf and AllenNLP, so that their state dicts
    load. Constraints are settings: a state dict does not hold them.

    Args:
        num_tags: T.
        constraints: which tags may start a sentence, end it and follow each other; None: all.
        penalty: the cost of a forbidden tag or transition; None: it is removed.
        shared_transitions: whether there is a parameter `transitions`.
        start_end: whether there are parameters `start_transitions` and `end_transitions`.

    Attributes:
        start_transitions, end_transitions: [T], or None.
        transitions: [T, T], axes from -> to, or None.
    """

    start_transitions: nn.Parameter | None
    end_transitions: nn.Parameter | None
    transitions: nn.Parameter | None

    def __init__(
        self,
        num_tags: int,
        constraints: Structure | None,
        penalty: float | None,
        shared_transitions: bool,
        start_end: bool,
    ) -> None:
        check_count("num_tags", num_tags, least=1)
        super().__init__()
        self.num_tags = num_tags
        self._constraint_scores: ConstraintScores | None = None
        self.penalty = penalty
        self.constraints = constraints
        for name, present, dims in (
            ("start_transitions", start_end, 1),
            ("end_transitions", start_end, 1),
            ("transitions", shared_transitions, 2),
        ):
            scores = nn.Parameter(torch.empty((num_tags,) * dims)) if present else None
            self.register_parameter(name, scores)
        self.reset_parameters()

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
        if not isinstance(structure, Structure):
            raise TypeError(f"constraints must be a Structure, got {type(structure).__name__}")
        if structure.num_tags != self.num_tags:
            raise ValueError(
                f"the constraints have {structure.num_tags} tags, the layer has {self.num_tags}"
            )
        self._constraint_scores = ConstraintScores(structure, self._penalty)

    @property
    def penalty(self) -> float | None:
        """The cost of a forbidden tag or transition; None: it is removed. Can be set."""
        return self._penalty

    @penalty.setter
    def penalty(self, penalty: float | None) -> None:
        if penalty is not None:
            check_number("penalty", penalty)
            if not 0 <= penalty < math.inf:
                raise ValueError(f"penalty must be finite and >= 0, or None, got {penalty}")
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
        """Draw the parameters from the uniform distribution on -0.1..0.1."""
        for parameter in (self.start_transitions, self.end_transitions, self.transitions):
            if parameter is not None:
                nn.init.uniform_(parameter, -0.1, 0.1)

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
            raise ValueError("this layer has no transitions to initialise")
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
                self._adopt_constraints(allennlp_structure(mask, self.num_tags))
            except ValueError as error:
                *_, error_messages = arguments
                error_messages.append(f"{prefix}_constraint_mask: {error}")
        super()._load_from_state_dict(state_dict, prefix, *arguments)

    def _adopt_constraints(self, found: Structure | None) -> None:
        own = self.constraints
        if found is None or own is None:
            self.constraints = own if found is None else found
            return
        for name in ("start", "end", "follow"):
            if not torch.equal(getattr(own, name), getattr(found, name)):
                raise ValueError(
                    f"it disagrees with this layer's constraints ({name}); leave one of them out"
                )


def allennlp_structure(mask: Tensor, num_tags: int) -> Structure | None:
    """Return the structure of AllenNLP's `_constraint_mask`; None: it allows everything.

    Args:
        mask: 0/1 [T+2, T+2], axes from -> to; the last two tags stand for start and end.
    """
    size = num_tags + 2
    if tuple(mask.shape) != (size, size):
        raise ValueError(f"expected shape [T+2, T+2] = {[size, size]}, got {list(mask.shape)}")
    allowed = mask != 0
    start, end = allowed[num_tags, :num_tags], allowed[:num_tags, num_tags + 1]
    follow = allowed[:num_tags, :num_tags]
    if bool(start.all() and end.all() and follow.all()):
        return None
    return Structure(start, end, follow).to("cpu")
