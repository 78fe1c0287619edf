"""The trainable scores of a layer, and constraints as data beside them."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..checks import check_number
from ..structure import Structure
from .counts import log_frequencies

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["ChainScores"]


class ChainScores(nn.Module):
    """Scores of the first tag, the last tag and of adjacent tags; which of these are allowed.

    The parameters have the names and axes that pytorch-crf and AllenNLP use, so that their state
    dicts load; each may be absent (None). Constraints are settings, like the number of tags: no
    parameters, nor buffers, which loaders that create modules on the meta device would lose.

    Attributes:
        start_transitions, end_transitions: [T].
        transitions: [T, T], axes from -> to.
        penalty: cost of what the constraints forbid; None: it is removed.
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
        if isinstance(num_tags, bool) or not isinstance(num_tags, int):
            raise TypeError(f"num_tags must be an int, got {num_tags!r}")
        if num_tags <= 0:
            raise ValueError(f"num_tags must be at least 1, got {num_tags}")
        if penalty is not None:
            check_number("penalty", penalty)
            if not 0 <= penalty < math.inf:
                raise ValueError(f"penalty must be finite and >= 0, or None, got {penalty}")
        super().__init__()
        self.num_tags = num_tags
        self.penalty = penalty
        for name, present, dims in (
            ("start_transitions", start_end, 1),
            ("end_transitions", start_end, 1),
            ("transitions", shared_transitions, 2),
        ):
            scores = nn.Parameter(torch.empty((num_tags,) * dims)) if present else None
            self.register_parameter(name, scores)
        self.constraints = constraints
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Uniform in -0.1..0.1."""
        for parameter in (self.start_transitions, self.end_transitions, self.transitions):
            if parameter is not None:
                nn.init.uniform_(parameter, -0.1, 0.1)

    @property
    def constraints(self) -> Structure | None:
        """Which tags may start, end and follow each other; None: all may. It can be replaced."""
        return self._constraints

    @constraints.setter
    def constraints(self, structure: Structure | None) -> None:
        if structure is not None and not isinstance(structure, Structure):
            raise TypeError(f"constraints must be a Structure, got {type(structure).__name__}")
        if structure is not None and structure.num_tags != self.num_tags:
            raise ValueError(
                f"the constraints have {structure.num_tags} tags, the layer has {self.num_tags}"
            )
        self._constraints = None if structure is None else structure.to("cpu")
        self._placed = self._constraints

    def _rules(self, device: torch.device) -> Structure | None:
        """The constraints on `device`; the copy is kept, for the next call."""
        if self._constraints is None or self._placed is None:
            return None
        if self._placed.start.device == device:
            return self._placed
        placed = self._constraints.to(device)
        if not torch.compiler.is_compiling():
            self._placed = placed
        return placed

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Where the parameters go, the constraints go."""
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if self._constraints is not None:
            self._rules(fn(self._constraints.start).device)
        return self

    def own_scores(
        self, like: Tensor, given: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Scores of the first tag [T], the last tag [T] and adjacent tags ([T, T] or [B, m, T, T]),
        constraints included; None: all 0.

        Args:
            like: of the device and dtype that are wanted, before anything is added.
            given: scores of adjacent tags to add to the parameter's.
        """
        wanted = (self.start_transitions, self.end_transitions, self.transitions)
        start, end, pairs = (None if x is None else x.to(like.dtype) for x in wanted)
        if given is not None:
            given = given.to(like.dtype)
            pairs = given if pairs is None else pairs + given
        rules = self._rules(like.device)
        if rules is None:
            return start, end, pairs
        return (
            self._ruled(start, rules.start, like),
            self._ruled(end, rules.end, like),
            self._ruled(pairs, rules.follow, like),
        )

    def _ruled(self, scores: Tensor | None, allowed: Tensor, like: Tensor) -> Tensor:
        """`scores` less what the constraints take away."""
        if scores is None:
            scores = like.new_zeros(allowed.shape)
        worse = -math.inf if self.penalty is None else scores - self.penalty
        return torch.where(allowed, scores, worse)

    def common_dtype(self, *scores: Tensor | None) -> torch.dtype:
        """That of `scores` and the parameters together."""
        given = [x.dtype for x in (*scores, *self.parameters(recurse=False)) if x is not None]
        return functools.reduce(torch.promote_types, given)

    def init_from_counts(
        self, tag_sequences: Iterable[Sequence[int] | Tensor] | Tensor, smoothing: float = 1.0
    ) -> None:
        """Set the parameters to smoothed log frequencies of the training data's tags.

        Then the layer alone, with emissions of zero, is the Markov chain of these tags: the
        network starts from what tags say about their neighbours.

        Args:
            tag_sequences: the tags of each sentence, as lists or tensors; -100 is left out.
            smoothing: added to every count, > 0.
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
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        """AllenNLP's `_constraint_mask` becomes the constraints, unless there are some already."""
        mask = state_dict.pop(f"{prefix}_constraint_mask", None)
        if mask is not None:
            try:
                self._adopt(_allennlp_structure(mask, self.num_tags))
            except ValueError as error:
                error_msgs.append(f"{prefix}_constraint_mask: {error}")
        super()._load_from_state_dict(
            state_dict,
            prefix,
            local_metadata,
            strict,
            missing_keys,
            unexpected_keys,
            error_msgs,
        )

    def _adopt(self, found: Structure | None) -> None:
        if found is None:
            return
        own = self.constraints
        if own is None:
            self.constraints = found
            return
        for name in ("start", "end", "follow"):
            if not torch.equal(getattr(own, name), getattr(found, name)):
                raise ValueError(
                    f"it disagrees with this layer's constraints ({name}); leave one of them out"
                )


def _allennlp_structure(mask: Tensor, num_tags: int) -> Structure | None:
    """AllenNLP's 0/1 matrix [T+2, T+2], whose last two tags are start and end; None: all may."""
    size = num_tags + 2
    if tuple(mask.shape) != (size, size):
        raise ValueError(f"expected shape [T+2, T+2] = {[size, size]}, got {list(mask.shape)}")
    allowed = mask != 0
    start, end = allowed[num_tags, :num_tags], allowed[:num_tags, num_tags + 1]
    follow = allowed[:num_tags, :num_tags]
    if bool(start.all() and end.all() and follow.all()):
        return None
    return Structure(start, end, follow).to("cpu")
