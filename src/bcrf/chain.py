"""The problem: scores of a batch of linear chains, and ways to make new problems from it."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, SupportsIndex

import torch
from torch import Tensor

from .checks import check_temperature, checks_enabled, values_visible
from .structure import Structure
from .torch_internals import register_pytree_node

__all__ = ["PAD", "LinearChain"]

PAD = -100
"""What tag tensors hold beyond a sentence's length (torch's `ignore_index`)."""

# What scores are kept in.
_WORKING = (torch.float32, torch.float64)


@dataclass(frozen=True, eq=False, repr=False, init=False)
class LinearChain:
    """Scores of B sentences over T tags; a tag sequence y of length L scores

        <w, y> = sum_i unary[i, y_i] + sum_e transitions[e, y_e, y_{e+1}].

    -inf removes a tag from a position or an arc from the problem, as if it had been deleted.

    Scores are kept in float32 at least (float64 stays); `dtype` remembers the caller's, in which
    marginals come back. Shapes are checked here; values (NaN, no path left) when it is solved.

    Args:
        unary: [B, n, T], score of each tag at each position (start and end scores included).
        transitions: [T, T], shared by all adjacent pairs, or [B, n-1, T, T], one matrix per
            adjacent pair; axes from -> to. None: all zero.
        lengths: [B] integers in 0..n; None: all n. What lies beyond a length is never read.
    """

    unary: Tensor
    transitions: Tensor | None
    given_lengths: Tensor | None  # None: all n
    dtype: torch.dtype

    def __init__(
        self,
        unary: Tensor,
        transitions: Tensor | None = None,
        lengths: Tensor | Sequence[int] | None = None,
    ) -> None:
        unary, transitions, dtype = _scores(unary, transitions)
        _check_shapes(unary, transitions)
        self._set(unary, transitions, _lengths(lengths, unary), dtype, None)

    # Shapes and masks

    @property
    def lengths(self) -> Tensor:
        """[B] integers."""
        if self.given_lengths is None:
            batch, n, _ = self.unary.shape
            lengths = torch.full((batch,), n, dtype=torch.int64, device=self.unary.device)
            object.__setattr__(self, "given_lengths", lengths)  # the dataclass is frozen
            return lengths
        return self.given_lengths

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
        """Whether any score does."""
        transitions, _ = self.free_transitions
        return self.unary.requires_grad or (transitions is not None and transitions.requires_grad)

    @property
    def shared(self) -> bool:
        """Whether one matrix serves all adjacent pairs."""
        transitions, _ = self.free_transitions
        return transitions is None or transitions.dim() == 2

    @property
    def free_transitions(self) -> tuple[Tensor | None, Tensor | None]:
        """The transitions before `constrain`, and which of them it allows: bool [T, T], None: all.

        For whoever can use both: a constrained copy of one matrix per pair takes memory and time,
        and is made when it is needed, as `transitions`.
        """
        if "_lazy" in self.__dict__:
            given, follow, _ = self.__dict__["_lazy"]
            return given, follow
        return self.transitions, None

    def __getattr__(self, name: str) -> Any:
        # Called for what is not there: the transitions of a constrained chain, the first time.
        if name != "transitions" or "_lazy" not in self.__dict__:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        given, follow, grad = self.__dict__["_lazy"]
        with torch.inference_mode(given.is_inference()), torch.set_grad_enabled(grad):
            transitions = _constrained(given, follow)
        object.__setattr__(self, "transitions", transitions)
        return transitions

    @property
    def pair_scores(self) -> Tensor:
        """The transitions, or zeros [T, T] where there are none."""
        if self.transitions is None:
            return self.unary.new_zeros(self.num_tags, self.num_tags)
        return self.transitions

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
        kind = "no" if self.transitions is None else "shared" if self.shared else "per-pair"
        return (
            f"LinearChain(batch_size={self.batch_size}, max_length={self.max_length}, "
            f"num_tags={self.num_tags}, transitions={kind}, dtype={self.dtype})"
        )

    # New problems from this one

    def to(self, *args: Any, **kwargs: Any) -> LinearChain:
        """`Tensor.to` on the scores; a dtype becomes the caller's, lengths follow to the device."""
        dtype = self.dtype
        for argument in (*args, *kwargs.values()):
            if isinstance(argument, torch.dtype):
                dtype = argument
            elif isinstance(argument, Tensor):
                dtype = argument.dtype
        if not dtype.is_floating_point:
            raise TypeError(f"a chain holds floating point scores, not {dtype}")
        working = torch.promote_types(dtype, torch.float32)
        moved = self._map(lambda scores: scores.to(*args, **kwargs).to(working), dtype)
        transitions, follow = moved.free_transitions
        lengths = self.lengths.to(moved.unary.device)
        return self._new(moved.unary, transitions, lengths, dtype, follow)

    def double(self) -> LinearChain:
        return self._map(torch.Tensor.double, torch.float64)

    def detach(self) -> LinearChain:
        return self._map(torch.Tensor.detach, self.dtype)

    def __truediv__(self, tau: float | Tensor) -> LinearChain:
        """The problem at temperature `tau` > 0: every score divided by it."""
        tau = check_temperature(tau)
        return self._map(lambda scores: scores / tau, self.dtype)

    def __getitem__(self, index: SupportsIndex | slice | list[int] | Tensor) -> LinearChain:
        """The sentences `index` of the batch; an int gives a batch of one. Padding is kept."""
        if isinstance(index, Tensor) and not index.dim() and index.dtype != torch.bool:
            index = int(index)
        elif hasattr(index, "__index__") and not isinstance(index, bool | Tensor):
            index = operator.index(index)
        if isinstance(index, int) and not isinstance(index, bool):
            if not -self.batch_size <= index < self.batch_size:
                raise IndexError(f"sentence {index} of a batch of {self.batch_size}")
            index %= self.batch_size
            index = slice(index, index + 1)
        if not isinstance(index, slice | list | Tensor):
            raise TypeError(f"sentences are chosen by int, slice, list or tensor, not {index!r}")
        lengths = self.lengths[index]
        if lengths.dim() != 1:
            raise IndexError("sentences are chosen along one axis")
        transitions, follow = self.free_transitions
        if transitions is not None and not self.shared:
            transitions = transitions[index]
        return self._new(self.unary[index], transitions, lengths, self.dtype, follow)

    def restrict(self, allowed: Tensor) -> LinearChain:
        """Remove the tags that `allowed` (bool [B, n, T]) forbids at a position: partial labels."""
        if not isinstance(allowed, Tensor) or allowed.dtype != torch.bool:
            kind = allowed.dtype if isinstance(allowed, Tensor) else type(allowed).__name__
            raise TypeError(f"allowed must be a bool tensor, got {kind}")
        if allowed.shape != self.unary.shape:
            raise ValueError(
                f"allowed must be [B, n, T] = {list(self.unary.shape)}, got {list(allowed.shape)}"
            )
        allowed = allowed.to(self.device)
        unary = torch.where(allowed, self.unary, -math.inf)
        transitions, follow = self.free_transitions
        return self._new(unary, transitions, self.lengths, self.dtype, follow)

    def constrain(self, structure: Structure) -> LinearChain:
        """Remove what `structure` forbids: tags at the start and the end, and transitions.

        These still have to be numbers, or -inf.
        """
        if not isinstance(structure, Structure):
            raise TypeError(f"structure must be a Structure, got {type(structure).__name__}")
        if structure.num_tags != self.num_tags:
            raise ValueError(
                f"the structure has {structure.num_tags} tags, the chain has {self.num_tags}"
            )
        structure = structure.to(self.device)
        first, last = self.first.unsqueeze(-1), self.last.unsqueeze(-1)
        allowed = (structure.start | ~first) & (structure.end | ~last)
        unary = torch.where(allowed, self.unary, -math.inf)
        transitions, follow = self.free_transitions
        follow = structure.follow if follow is None else structure.follow & follow
        if self.shared or not values_visible(self.unary):
            scores = self.pair_scores if transitions is None else transitions
            transitions, follow = _constrained(scores, follow), None
        return self._new(unary, transitions, self.lengths, self.dtype, follow)

    # Scores of sequences

    def score(self, tags: Tensor) -> Tensor:
        """<w, y> of given sequences, differentiable.

        Args:
            tags: [..., B, n] integers; beyond the lengths anything, -100 for instance.
        Returns:
            [..., B]; -inf where a sequence uses a removed tag or arc.
        """
        index = self.tag_index(tags)
        unary, transitions = self.path_scores(index)
        inside = self.mask
        total = torch.where(inside, unary, 0.0).sum(-1)
        return total + torch.where(inside[:, 1:], transitions, 0.0).sum(-1)

    def path_scores(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Unary [..., B, n] and transition [..., B, n-1] scores along `index` [..., B, n]."""
        lead = index.shape[:-2]
        scores = self.unary.expand(*lead, *self.unary.shape)
        unary = scores.gather(-1, index.unsqueeze(-1)).squeeze(-1)
        before, after = index[..., :-1], index[..., 1:]
        if self.transitions is None:
            return unary, unary.new_zeros(before.shape)
        if self.shared:
            return unary, self.transitions[before, after]
        sentence = torch.arange(self.batch_size, device=self.device).unsqueeze(1)
        edge = torch.arange(before.shape[-1], device=self.device)
        return unary, self.transitions[sentence, edge, before, after]

    def tag_index(self, tags: Tensor) -> Tensor:
        """`tags` [..., B, n] as valid indices: 0 beyond the lengths; bad tags are an error."""
        if not isinstance(tags, Tensor):
            raise TypeError(f"tags must be a tensor, got {type(tags).__name__}")
        expected = self.unary.shape[:2]
        if tags.shape[-2:] != expected:
            raise ValueError(f"tags must be [..., B, n] = {list(expected)}, got {list(tags.shape)}")
        if tags.dtype == torch.bool or tags.is_floating_point() or tags.is_complex():
            raise TypeError(f"tags must be integers, got {tags.dtype}")
        tags = tags.to(self.device, torch.int64)
        index = torch.where(self.mask, tags, 0)
        if checks_enabled(self.unary):
            bad = (index < 0) | (index >= self.num_tags)
            if bool(bad.any()):
                *_, sentence, position = bad.nonzero()[0].tolist()
                tag = int(index[tuple(bad.nonzero()[0])])
                raise ValueError(
                    f"sentence {sentence}, position {position}: tag {tag} "
                    f"is not in 0..{self.num_tags - 1}"
                )
        return index

    def pad(self, tags: Tensor) -> Tensor:
        """`tags` [..., B, n] with -100 beyond the lengths."""
        return torch.where(self.mask, tags, PAD)

    # How copies are made: without checking again, and without losing the caller's dtype

    def _map(self, function: Any, dtype: torch.dtype) -> LinearChain:
        unary, (transitions, follow) = function(self.unary), self.free_transitions
        transitions = None if transitions is None else function(transitions)
        follow = None if follow is None else follow.to(unary.device)
        return self._new(unary, transitions, self.given_lengths, dtype, follow)

    @staticmethod
    def _new(
        unary: Any, transitions: Any, lengths: Any, dtype: torch.dtype, follow: Any = None
    ) -> LinearChain:
        chain = object.__new__(LinearChain)
        chain._set(unary, transitions, lengths, dtype, follow)
        return chain

    def _set(
        self, unary: Any, transitions: Any, lengths: Any, dtype: torch.dtype, follow: Any
    ) -> None:
        assign = object.__setattr__  # because the dataclass is frozen
        assign(self, "unary", unary)
        if follow is None:
            assign(self, "transitions", transitions)
        else:
            assign(self, "_lazy", (transitions, follow, torch.is_grad_enabled()))
        assign(self, "given_lengths", lengths)
        assign(self, "dtype", dtype)


def _constrained(transitions: Tensor, follow: Tensor) -> Tensor:
    """`transitions` with -inf where `follow` [T, T] is False.

    A sum, because its gradient takes no memory of its own.
    """
    removal = transitions.new_zeros(follow.shape).masked_fill_(~follow, -math.inf)
    return transitions + removal


def _scores(unary: Tensor, transitions: Tensor | None) -> tuple[Tensor, Tensor | None, torch.dtype]:
    """Scores in one dtype of at least float32, and the dtype the caller works in."""
    for name, scores in (("unary", unary), ("transitions", transitions)):
        if scores is None:
            continue
        if not isinstance(scores, Tensor):
            raise TypeError(f"{name} must be a tensor, got {type(scores).__name__}")
        if not scores.is_floating_point():
            raise TypeError(f"{name} must be floating point, got {scores.dtype}")
    dtype = unary.dtype
    if transitions is not None and transitions.device != unary.device:
        raise ValueError(f"unary is on {unary.device}, transitions on {transitions.device}")
    if dtype in _WORKING and (transitions is None or transitions.dtype is dtype):
        return unary, transitions, dtype  # nearly always: nothing to convert
    if transitions is not None:
        dtype = torch.promote_types(dtype, transitions.dtype)
    working = torch.promote_types(dtype, torch.float32)
    return unary.to(working), None if transitions is None else transitions.to(working), dtype


def _check_shapes(unary: Tensor, transitions: Tensor | None) -> None:
    if unary.dim() != 3:
        raise ValueError(f"unary must be [B, n, T], got {list(unary.shape)}")
    batch, n, tags = unary.shape
    if tags == 0:
        raise ValueError("unary must have at least one tag, got T = 0")
    if transitions is None:
        return
    pairs = (batch, max(n - 1, 0), tags, tags)
    # One comparison, of equally many sizes: a graph remembers what was compared.
    if transitions.shape != ((tags, tags) if transitions.dim() == 2 else pairs):
        raise ValueError(
            f"transitions must be [T, T] = {[tags, tags]} or [B, n-1, T, T] = {list(pairs)}, "
            f"got {list(transitions.shape)}"
        )


def _lengths(lengths: Tensor | Sequence[int] | None, unary: Tensor) -> Tensor | None:
    if lengths is None:
        return None
    batch, n, _ = unary.shape
    if not isinstance(lengths, Tensor):
        try:
            lengths = torch.tensor(lengths, device=unary.device)
        except (TypeError, ValueError, RuntimeError) as error:
            raise TypeError(f"lengths must be integers [B], got {lengths!r}") from error
        if not lengths.numel():
            lengths = lengths.long()  # an empty list has no type
    if lengths.dtype == torch.bool or lengths.is_floating_point() or lengths.is_complex():
        raise TypeError(f"lengths must be integers, got {lengths.dtype}")
    if list(lengths.shape) != [batch]:
        raise ValueError(f"lengths must be [B] = {[batch]}, got {list(lengths.shape)}")
    lengths = lengths.to(unary.device, torch.int64, copy=True)
    if checks_enabled(unary):
        bad = (lengths < 0) | (lengths > n)
        if bool(bad.any()):
            sentence = int(bad.nonzero()[0])
            raise ValueError(
                f"lengths[{sentence}] = {int(lengths[sentence])} is not in 0..n = 0..{n}"
            )
    return lengths


def _flatten(chain: LinearChain) -> tuple[list[Any], torch.dtype]:
    return [chain.unary, chain.transitions, chain.lengths], chain.dtype


def _unflatten(leaves: Iterable[Any], dtype: torch.dtype) -> LinearChain:
    unary, transitions, lengths = leaves
    return LinearChain._new(unary, transitions, lengths, dtype)


register_pytree_node(
    LinearChain,
    ("unary", "transitions", "lengths"),
    _flatten,
    _unflatten,
    to_dumpable_context=lambda dtype: str(dtype).removeprefix("torch."),
    from_dumpable_context=lambda name: getattr(torch, name),
)
