"""`LinearChain`: the scores of a batch of sentences, which are the input of every solver."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, SupportsIndex, overload

import torch
from torch import Tensor

from .checks import (
    check_allowed,
    check_shapes,
    check_tags,
    check_temperature,
    checked_lengths,
    checks_enabled,
    sentence_index,
    tag_out_of_range,
    target_dtype,
    working_scores,
)
from .compat.chain_pytree import register_chain
from .numerics.path_scores import path_scores
from .structure import Structure

__all__ = ["PAD", "LinearChain"]

PAD = -100
"""The value of tag tensors beyond the length of a sentence (torch's `ignore_index`)."""


@dataclass(frozen=True, eq=False, repr=False, init=False)
class LinearChain:
    """A batch of problems: scores of B sentences of up to n positions over T tags.

    A tag sequence y of length L scores

        <w, y> = sum_i unary[i, y_i] + sum_e transitions[e, y_e, y_{e+1}].

    A score of -inf removes a tag from a position, or a transition from the problem, as if it had
    been deleted. Scores are kept in float32 or float64. `dtype` is the dtype of the caller's
    scores; marginals are returned in this dtype. The constructor checks types and shapes. Solvers
    check the values (NaN, sentences without a path).

    Args:
        unary: [B, n, T], score of each tag at each position (start and end scores included).
        transitions: [T, T], shared by all adjacent positions, or [B, n-1, T, T], one matrix per
            pair of adjacent positions; axes from -> to. None: all zero.
        lengths: [B] integers in 0..n; None: all n. Scores beyond a length are never read.
        structure: the tags and transitions that are allowed (see `constrain`); None: all.
        finite: whether all scores within the lengths are known to be finite, so that only
            `structure` removes tags and transitions. This saves kernel launches on a GPU, where
            looking for -inf would mean waiting. If a score is -inf all the same, results have no
            meaning.

    Attributes:
        raw_transitions: the transition scores as compiled kernels take them. A shared matrix holds
            -inf where `structure` forbids a transition. With one matrix per pair, these are the
            caller's scores: the forbidden ones are not replaced, and kernels consult `structure`.
        structure: all rules that were given to `constrain`; None: everything is allowed.

    Example:
        >>> import torch
        >>> from bcrf import LinearChain
        >>> chain = LinearChain(torch.zeros(2, 5, 3), torch.zeros(3, 3), lengths=[5, 2])
        >>> chain
        LinearChain(batch_size=2, max_length=5, num_tags=3, transitions=shared, dtype=torch.float32)
        >>> chain.score(torch.zeros(2, 5, dtype=torch.int64))
        tensor([0., 0.])
    """

    unary: Tensor
    raw_transitions: Tensor | None
    lengths: Tensor
    dtype: torch.dtype
    structure: Structure | None
    finite: bool

    def __init__(
        self,
        unary: Tensor,
        transitions: Tensor | None = None,
        lengths: Tensor | Sequence[int] | None = None,
        *,
        structure: Structure | None = None,
        finite: bool = False,
    ) -> None:
        unary, transitions, dtype = working_scores(unary, transitions)
        check_shapes(unary, transitions)
        fields = (unary, transitions, checked_lengths(lengths, unary), dtype, None, bool(finite))
        if structure is not None:
            fields = self._new(*fields)._constrained_fields(structure)
        assign = object.__setattr__  # the dataclass is frozen; a loop over the names takes longer
        assign(self, "unary", fields[0])
        assign(self, "raw_transitions", fields[1])
        assign(self, "lengths", fields[2])
        assign(self, "dtype", fields[3])
        assign(self, "structure", fields[4])
        assign(self, "finite", fields[5])

    # Shapes and masks

    @property
    def batch_size(self) -> int:
        return self.unary.shape[0]

    @property
    def max_length(self) -> int:
        return self.unary.shape[1]

    @property
    def num_tags(self) -> int:
        return self.unary.shape[2]

    @property
    def device(self) -> torch.device:
        return self.unary.device

    @property
    def requires_grad(self) -> bool:
        """Whether any score requires a gradient."""
        transitions = self.raw_transitions
        return self.unary.requires_grad or (transitions is not None and transitions.requires_grad)

    @property
    def shared(self) -> bool:
        """Whether one matrix of transitions serves all adjacent positions."""
        return self.raw_transitions is None or self.raw_transitions.dim() == 2

    @property
    def transitions(self) -> Tensor | None:
        """The transition scores with -inf where `structure` forbids a transition; None: all zero.

        Each read may compute a new tensor: see `constrained_transitions`.
        """
        return self.constrained_transitions()

    def constrained_transitions(self) -> Tensor | None:
        """Return the transition scores, with -inf where `structure` forbids a transition.

        None means that all scores are zero. A constrained chain with one matrix per pair makes a
        new tensor [B, n-1, T, T] at each call. The gradient of this tensor reaches the caller's
        scores if gradients were enabled when `constrain` was called.
        """
        transitions, structure = self.raw_transitions, self.structure
        if structure is None or transitions is None or transitions.dim() == 2:
            return transitions
        removal = structure.removal_scores(transitions.dtype)[1]
        if torch.compiler.is_compiling() or not transitions.requires_grad:
            return transitions + removal
        with torch.inference_mode(False), torch.enable_grad():
            return transitions + removal

    @property
    def known_finite(self) -> bool:
        """Whether it is known that no tag or transition is removed, by a score or by a rule."""
        return self.finite and self.structure is None

    @property
    def pair_scores(self) -> Tensor:
        """`transitions`, or zeros [T, T] if there are none."""
        transitions = self.constrained_transitions()
        if transitions is None:
            return self.unary.new_zeros(self.num_tags, self.num_tags)
        return transitions

    @property
    def mask(self) -> Tensor:
        """bool [B, n]: positions within the lengths."""
        return self._positions < self.lengths.unsqueeze(1)

    @property
    def first(self) -> Tensor:
        """bool [1, n]: the first position."""
        return self._positions == 0

    @property
    def last(self) -> Tensor:
        """bool [B, n]: the last position of each sentence."""
        return self._positions == self.lengths.unsqueeze(1) - 1

    @property
    def _positions(self) -> Tensor:
        return torch.arange(self.max_length, device=self.device).unsqueeze(0)

    def __len__(self) -> int:
        return self.batch_size

    def __repr__(self) -> str:
        kind = "no" if self.raw_transitions is None else "shared" if self.shared else "per-pair"
        rules = "" if self.structure is None else f", structure={self.structure!r}"
        return (
            f"LinearChain(batch_size={self.batch_size}, max_length={self.max_length}, "
            f"num_tags={self.num_tags}, transitions={kind}, dtype={self.dtype}{rules})"
        )

    # New problems from this one

    @overload
    def to(self, dtype: torch.dtype, non_blocking: bool = ..., copy: bool = ...) -> LinearChain: ...

    @overload
    def to(
        self,
        device: torch.device | str | int | None = ...,
        dtype: torch.dtype | None = ...,
        non_blocking: bool = ...,
        copy: bool = ...,
    ) -> LinearChain: ...

    @overload
    def to(self, other: Tensor, non_blocking: bool = ..., copy: bool = ...) -> LinearChain: ...

    def to(self, *args: Any, **kwargs: Any) -> LinearChain:
        """Return the chain on another device or in another dtype; arguments as in `Tensor.to`.

        The dtype becomes the dtype of the marginals. Scores stay in float32 or float64.

        Example:
            >>> import torch, bcrf
            >>> chain = bcrf.LinearChain(torch.zeros(1, 2, 3)).to(torch.bfloat16)
            >>> chain.dtype, chain.unary.dtype
            (torch.bfloat16, torch.float32)
        """
        dtype = target_dtype(self.dtype, (*args, *kwargs.values()))
        working = torch.promote_types(dtype, torch.float32)
        return self._map(lambda scores: scores.to(*args, **kwargs).to(working), dtype)

    def double(self) -> LinearChain:
        """Return the chain with scores in float64.

        Example:
            >>> import torch, bcrf
            >>> bcrf.LinearChain(torch.zeros(1, 2, 3)).double().unary.dtype
            torch.float64
        """
        return self._map(torch.Tensor.double, torch.float64)

    def detach(self) -> LinearChain:
        """Return the chain without gradients; it shares the memory of the scores.

        Example:
            >>> import torch, bcrf
            >>> chain = bcrf.LinearChain(torch.zeros(1, 2, 3, requires_grad=True))
            >>> chain.detach().requires_grad
            False
        """
        return self._map(torch.Tensor.detach, self.dtype)

    def __truediv__(self, tau: float | Tensor) -> LinearChain:
        """Return the problem at temperature `tau` > 0: every score divided by it."""
        tau = check_temperature(tau)
        return self._map(lambda scores: scores / tau, self.dtype)

    def __getitem__(self, index: SupportsIndex | slice | list[int] | Tensor) -> LinearChain:
        """Return the chain of the sentences `index`, with their padding.

        An int selects a batch of one sentence.
        """
        index = sentence_index(index, self.batch_size)
        lengths = self.lengths[index]
        if lengths.dim() != 1:
            raise IndexError(
                f"an index of sentences has one axis; the given one has {lengths.dim()}"
            )
        transitions = self.raw_transitions
        if transitions is not None and not self.shared:
            transitions = transitions[index]
        rest = (self.dtype, self.structure, self.finite)
        return self._new(self.unary[index], transitions, lengths, *rest)

    def restrict(self, allowed: Tensor) -> LinearChain:
        """Return the problem without the tags for which `allowed` (bool [B, n, T]) is False.

        Partial labels have this form: one set of allowed tags per position.

        Example:
            >>> import torch, bcrf
            >>> chain = bcrf.LinearChain(torch.tensor([[[0.0, 3.0, 1.0]]]))
            >>> bcrf.viterbi(chain.restrict(torch.tensor([[[True, False, True]]])))[1]
            tensor([[2]])
        """
        check_allowed(allowed, self.unary.shape)
        unary = torch.where(allowed.to(self.device), self.unary, -math.inf)
        return self._new(unary, self.raw_transitions, self.lengths, self.dtype, self.structure)

    def constrain(self, structure: Structure) -> LinearChain:
        """Return the problem without the tags and transitions that `structure` forbids.

        Tags that may not start or end a sentence are removed from `unary`, forbidden transitions
        from `transitions`. The scores that are removed must be finite or -inf, too.

        Example:
            >>> import torch
            >>> from bcrf import LinearChain, Structure, viterbi
            >>> rules = Structure.from_labels(["O", "B", "I"], "BIO")
            >>> unary = torch.tensor([[[0.0, 0.0, 3.0], [0.0, 1.0, 2.0]]])
            >>> viterbi(LinearChain(unary))[1]
            tensor([[2, 2]])
            >>> viterbi(LinearChain(unary).constrain(rules))[1]
            tensor([[1, 2]])
        """
        return self._new(*self._constrained_fields(structure))

    def _constrained_fields(self, structure: Structure) -> tuple[Any, ...]:
        """Return the fields of this chain under its own rules and those of `structure`."""
        if not isinstance(structure, Structure):
            raise TypeError(f"structure must be a Structure, got {type(structure).__name__}")
        if structure.num_tags != self.num_tags:
            raise ValueError(
                f"the structure has {structure.num_tags} tags, the chain has {self.num_tags}"
            )
        structure = structure.to(self.device)
        start_end, follow = structure.removal_scores(self.unary.dtype)
        unary = self._add_start_end(start_end).unary
        if self.structure is not None:
            structure = structure.intersect(self.structure)
        transitions = self.raw_transitions
        if transitions is None or transitions.dim() == 2:
            # We add -inf instead of selecting: the gradient of a sum allocates nothing.
            transitions = follow if transitions is None else transitions + follow
        elif not torch.is_grad_enabled():
            transitions = transitions.detach()  # under no_grad a result has no gradient
        return unary, transitions, self.lengths, self.dtype, structure, self.finite

    def _add_start_end(self, start_end: Tensor, full: bool = False) -> LinearChain:
        """Return the problem with the scores [2T] of start tags and end tags added to `unary`.

        Start scores are added at the first position, and end scores at the last position of each
        sentence. The scores of position 0 of an empty sentence change, too, but they are never
        read.

        Args:
            start_end: in the dtype of `unary`. It is not [2, T], because `torch.compile` with
                dynamic shapes would confuse an axis of size 2 with the axis of a batch of 2.
            full: whether all lengths are known to be n > 0, in eager mode on the CPU.
        """
        unary = self.unary
        batch, n, num_tags = unary.shape
        if not n:
            return self
        added = start_end.view(2, num_tags).expand(batch, 2, num_tags)
        if full:
            # One index for all sentences: half the time of the general case.
            unary = unary.index_add(1, torch.tensor([0, n - 1], device=unary.device), added)
        else:
            last = (self.lengths - 1).clamp(min=0)
            index = torch.stack([torch.zeros_like(last), last], 1).unsqueeze(-1)
            unary = unary.scatter_add(1, index.expand_as(added), added)
        return self._with_scores(unary, self.raw_transitions)

    def _with_scores(self, unary: Tensor, transitions: Tensor | None) -> LinearChain:
        """Return the chain with other scores, which remove the same tags and transitions."""
        rest = (self.lengths, self.dtype, self.structure, self.finite)
        return self._new(unary, transitions, *rest)

    # Scores of sequences

    def score(self, tags: Tensor) -> Tensor:
        """Return the scores <w, y> of tag sequences, differentiable.

        Args:
            tags: [..., B, n] integers; any values beyond the lengths, -100 for instance.
        Returns:
            [..., B]; -inf where a sequence uses a removed tag or transition.

        Example:
            >>> import torch, bcrf
            >>> chain = bcrf.LinearChain(torch.tensor([[[1.0, 0.0], [0.0, 2.0]]]), torch.eye(2))
            >>> chain.score(torch.tensor([[1, 1]]))  # 0 + 2 + 1
            tensor([3.])
        """
        index = self.tag_index(tags)
        unary, transitions = self.path_scores(index)
        inside = self.mask
        total = torch.where(inside, unary, 0.0).sum(-1)
        return total + torch.where(inside[:, 1:], transitions, 0.0).sum(-1)

    def path_scores(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Return unary [..., B, n] and transition [..., B, n-1] scores along tags [..., B, n]."""
        return path_scores(self.unary, self.constrained_transitions(), index)

    def tag_index(self, tags: Tensor) -> Tensor:
        """Return `tags` [..., B, n] as int64 indices, 0 beyond the lengths.

        Raise if `tags` are no integers, have the wrong shape, or are out of range.
        """
        check_tags(tags, self.unary.shape[:2])
        tags = tags.to(self.device, torch.int64)
        index = torch.where(self.mask, tags, 0)
        if checks_enabled(self.unary):
            defect = tag_out_of_range(index, self.num_tags)
            if defect is not None:
                raise ValueError(defect.message)
        return index

    def pad(self, tags: Tensor) -> Tensor:
        """Return `tags` [..., B, n] with -100 beyond the lengths.

        Example:
            >>> import torch, bcrf
            >>> bcrf.LinearChain(torch.zeros(1, 3, 2), lengths=[2]).pad(torch.tensor([[0, 1, 1]]))
            tensor([[   0,    1, -100]])
        """
        return torch.where(self.mask, tags, PAD)

    # Copies: they skip the checks of the constructor, and keep the caller's dtype

    def _map(self, function: Callable[[Tensor], Tensor], dtype: torch.dtype) -> LinearChain:
        unary, transitions, structure = self.unary, self.raw_transitions, self.structure
        unary = function(unary)
        transitions = None if transitions is None else function(transitions)
        lengths = self.lengths
        if lengths.device != unary.device:
            lengths = lengths.to(unary.device)
            structure = None if structure is None else structure.to(unary.device)
        return self._new(unary, transitions, lengths, dtype, structure, self.finite)

    @staticmethod
    def _new(
        unary: Any,
        transitions: Any,
        lengths: Any,
        dtype: torch.dtype,
        structure: Structure | None = None,
        finite: bool = False,
    ) -> LinearChain:
        """Return a chain of valid fields, without checks.

        `structure` must already be applied to the scores: tags that may not start or end a sentence
        are -inf in `unary`, and a shared matrix holds -inf at forbidden transitions.
        """
        chain = object.__new__(LinearChain)
        assign = object.__setattr__  # the dataclass is frozen, and this is a constructor
        assign(chain, "unary", unary)
        assign(chain, "raw_transitions", transitions)
        assign(chain, "lengths", lengths)
        assign(chain, "dtype", dtype)
        assign(chain, "structure", structure)
        assign(chain, "finite", finite)
        return chain


register_chain(LinearChain)
