"""Scores of the first tag, the last tag and adjacent tags, with constraints on them.

Layers and the tagger's scorer share these functions. The names of their parameters differ.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..checks import check_number
from ..compat.private_torch import in_transform
from ..structure import Structure

__all__ = [
    "ConstraintScores",
    "agreed_constraints",
    "allennlp_structure",
    "check_constraints",
    "check_penalty",
    "promote_to_working",
    "register_transition_parameters",
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


def register_transition_parameters(
    module: nn.Module, num_tags: int, names: tuple[str, str, str], start_end: bool, shared: bool
) -> None:
    """Register the scores of start tags [T], end tags [T] and transitions [T, T], all of them zero.

    Args:
        names: the names of the three parameters in `module`.
        start_end: whether the first two are parameters; otherwise they are None.
        shared: whether the third is a parameter.
    """
    for name, learned, dims in zip(names, (start_end, start_end, shared), (1, 1, 2), strict=True):
        scores = nn.Parameter(torch.zeros((num_tags,) * dims)) if learned else None
        module.register_parameter(name, scores)


def check_constraints(structure: Structure, num_tags: int) -> None:
    """Raise unless `structure` is a structure of `num_tags` tags."""
    if not isinstance(structure, Structure):
        raise TypeError(f"constraints must be a Structure, got {type(structure).__name__}")
    if structure.num_tags != num_tags:
        raise ValueError(
            f"the constraints have {structure.num_tags} tags, the layer has {num_tags}"
        )


def check_penalty(penalty: float | None) -> None:
    """Raise unless `penalty` is None or a finite number >= 0."""
    if penalty is not None:
        check_number("penalty", penalty)
        if not 0 <= penalty < math.inf:
            raise ValueError(f"penalty must be finite and >= 0, or None, got {penalty}")


def agreed_constraints(own: Structure | None, mask: Tensor, num_tags: int) -> Structure | None:
    """Return the constraints of AllenNLP's `_constraint_mask`; raise if a layer's own ones differ.

    A mask that allows everything agrees with all constraints.

    Args:
        own: the constraints of the layer that loads the mask.
        mask: see `allennlp_structure`.
    """
    found = allennlp_structure(mask, num_tags)
    if found is None or own is None:
        return own if found is None else found
    for name in ("start", "end", "follow"):
        if not torch.equal(getattr(own, name), getattr(found, name)):
            raise ValueError(
                f"it disagrees with this layer's constraints ({name}); leave one of them out"
            )
    return own


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
