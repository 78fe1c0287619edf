"""Masks: conversion of the caller's batch to compact sentences, and of results and errors back.

A mask keeps some positions of a sentence and removes the others. The kept positions on both sides
of a removed position become neighbours. Solvers take *compact* sentences: the kept positions come
first, and padding follows. Most masks have this form already; then nothing is moved.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, NoReturn

import torch
from torch import Tensor, nn

from ..chain import PAD, LinearChain
from ..checks import Defect, check_allowed, checks_enabled, values_readable
from ..compat.private_torch import must_stay_in_torch
from ..diagnosis import find_defect
from ..kernels import native
from ..structure import Structure
from .initialisation import warn_of_absurd_parameters
from .transitions import transition_scores

if TYPE_CHECKING:
    from .layer import ChainLayer

__all__ = [
    "Layout",
    "PreparedBatch",
    "batch_layout",
    "check_arguments",
    "compact",
    "kept_positions",
    "prepare_batch",
    "raise_located",
]


@dataclass(frozen=True, eq=False)
class Layout:
    """The map between the caller's positions and compact positions, for B sentences.

    Attributes:
        keep: bool [B, n], the kept positions; None: every position is kept.
        lengths: int64 [B], the number of kept positions; None: all n.
        order: int64 [B, n], the caller's position of each compact position, with the removed
            positions last; None if the kept positions come first already.
    """

    keep: Tensor | None = None
    lengths: Tensor | None = None
    order: Tensor | None = None

    @staticmethod
    def of(keep: Tensor | None, readable: bool) -> Layout:
        """Return the layout that keeps the positions `keep` (bool [B, n]); None: all.

        Args:
            readable: whether Python can read values without a cost (see `values_readable`).
        """
        if keep is None:
            return _FULL
        if readable:
            if bool(keep.all()):
                return _FULL
            lengths = keep.sum(1)
            if not bool((keep[:, 1:] > keep[:, :-1]).any()):
                return Layout(keep, lengths)
        else:
            lengths = keep.sum(1)
        # We compute the permutation from running counts. This needs no sort, and no shape depends
        # on a value.
        count = keep.cumsum(1)
        position = torch.arange(keep.shape[1], device=keep.device).expand_as(count)
        slot = torch.where(keep, count - 1, lengths.unsqueeze(1) + position - count)
        return Layout(keep, lengths, torch.zeros_like(slot).scatter(1, slot, position))

    def compact(self, x: Tensor) -> Tensor:
        """Return `x` [B, n, ...] with its kept positions first."""
        return x if self.order is None else _take_rows(x, self.order)

    def compact_pairs(self, pairs: Tensor) -> Tensor:
        """Return the scores of adjacent compact positions, from the caller's [B, n-1, T, T].

        If a removed position lies between two neighbours, they have no scores. This is an error
        that names both positions. If checks are disabled, we use the scores of the caller's pair
        that ends at the second position.
        """
        if self.order is None or self.lengths is None or not pairs.shape[1]:
            return pairs
        before, after = self.order[:, :-1], self.order[:, 1:]
        if checks_enabled(pairs):
            inside = torch.arange(1, self.order.shape[1], device=pairs.device)
            gap = (inside < self.lengths.unsqueeze(1)) & (after != before + 1)
            if bool(gap.any()):
                sentence, edge = gap.nonzero()[0].tolist()
                i, j = int(before[sentence, edge]), int(after[sentence, edge])
                raise ValueError(
                    f"sentence {sentence}: positions {i} and {j} become neighbours, because the "
                    f"positions between them are removed, but transitions [B, n-1, T, T] score "
                    f"pairs of adjacent positions only; remove the positions first "
                    f"(bcrf.layers.compact), and compute emissions and transitions from the result"
                )
        return _take_rows(pairs, (after - 1).clamp(min=0))

    def restore_tags(self, tags: Tensor) -> Tensor:
        """Return compact `tags` [..., B, n] at the caller's positions, -100 where removed."""
        if self.order is None or self.keep is None:
            return tags  # beyond the lengths they are -100 already
        found = tags.gather(-1, _compact_positions(self.keep).expand_as(tags))
        return torch.where(self.keep, found, PAD)

    def restore(self, x: Tensor) -> Tensor:
        """Return compact `x` [B, n, K] at the caller's positions, 0 where removed."""
        if self.order is None or self.keep is None:
            return x  # beyond the lengths it is 0 already
        return torch.where(
            self.keep.unsqueeze(-1), _take_rows(x, _compact_positions(self.keep)), 0.0
        )

    def compact_position(self, sentence: int, position: int) -> int | None:
        """Return the compact position of the caller's `position`; None if it is removed."""
        if self.keep is None:
            return position
        if not 0 <= position < self.keep.shape[1] or not bool(self.keep[sentence, position]):
            return None
        return int(self.keep[sentence, :position].sum())

    def lists(self, tags: Tensor) -> list[list[int]]:
        """Return compact `tags` [B, n] as one list per sentence, kept positions only."""
        rows: list[list[int]] = tags.tolist()
        if self.lengths is not None:
            for row, length in zip(rows, self.lengths.tolist(), strict=True):
                del row[length:]
        return rows

    def position(self, sentence: int, compact_position: int) -> int:
        """Return the caller's position of a compact position."""
        if self.order is None:
            return compact_position
        return int(self.order[sentence, compact_position])


_FULL = Layout()


def batch_layout(
    mask: Tensor | None,
    tags: Tensor | None,
    shape: Sequence[int],
    device: torch.device,
    batch_first: bool,
    first_required: bool,
    readable: bool,
) -> Layout:
    """Return the layout of a batch. A position is removed by `mask`, or by -100 in `tags`.

    Args:
        mask: in the caller's axes; 1 or True: kept.
        tags: [B, n].
        shape: the required shape of `mask`.
        first_required: whether it is an error if `mask` removes the first position of a sentence.
        readable: whether Python can read values without a cost.
    """
    keep = None
    if mask is not None:
        if isinstance(mask, Tensor) and mask.dtype is torch.bool and mask.device == device:
            keep = mask
        if keep is None or keep.shape != shape:
            keep = kept_positions(mask, shape, "[B, n]" if batch_first else "[n, B]", device)
        if not batch_first:
            keep = keep.transpose(0, 1)
    if keep is None and tags is None:
        return _FULL
    if readable and native.UNAVAILABLE is None:
        scan = native.scan_mask(keep, tags)
        if keep is not None and first_required and not scan.mask_keeps_first:
            _check_first(keep)
        if scan.keep is None:
            return _FULL
        return Layout(scan.keep, scan.lengths) if scan.compact else Layout.of(scan.keep, readable)
    if keep is not None and first_required and keep.shape[1]:
        _check_first(keep)
    if tags is not None:
        labelled = tags != PAD
        keep = labelled if keep is None else keep & labelled
    return Layout.of(keep, readable)


def _check_first(keep: Tensor) -> None:
    """Raise if the first position of a sentence is removed; pytorch-crf raises, too."""
    if checks_enabled(keep) and not bool(keep[:, 0].all()):
        sentence = int((~keep[:, 0]).nonzero()[0])
        raise ValueError(
            f"sentence {sentence}: the mask removes the first position, which pytorch-crf does not "
            "accept; bcrf.ExactCRF does"
        )


def _compact_positions(keep: Tensor) -> Tensor:
    """Return the compact position [B, n] of each kept position."""
    return (keep.cumsum(1) - 1).clamp(min=0)


def _take_rows(x: Tensor, index: Tensor) -> Tensor:
    """Return x[b, index[b, i]] as [B, m, ...], for x [B, n, ...] and index [B, m].

    We use `index_select`, which moves whole rows. On a CPU `gather` takes five times as long.
    """
    batch, n = x.shape[:2]
    first = torch.arange(batch, device=x.device).unsqueeze(1) * n
    rows = x.flatten(0, 1).index_select(0, (first + index).flatten())
    return rows.view(*index.shape, *x.shape[2:])


def compact(x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return `x` with the kept positions of each sentence first, and the new mask.

    Call this function before you compute scores of adjacent positions. In its result, the positions
    that a layer treats as neighbours are adjacent.

    Args:
        x: [B, n, ...], hidden states for instance.
        mask: [B, n], of any pattern; 1 or True: kept.
    Returns:
        `x` with the kept positions of each sentence first, in their order, and the bool mask
        [B, n] of the result.

    Example:
        >>> import torch
        >>> from bcrf.layers import compact
        >>> states = torch.tensor([[[1.0], [2.0], [3.0]]])
        >>> kept, mask = compact(states, torch.tensor([[1, 0, 1]]))
        >>> kept[mask]
        tensor([[1.],
                [3.]])
        >>> mask
        tensor([[ True,  True, False]])
    """
    if x.dim() < 2:
        raise ValueError(f"x must be [B, n, ...], got {list(x.shape)}")
    keep = kept_positions(mask, x.shape[:2], "[B, n]", x.device)
    layout = Layout.of(keep, values_readable(keep))
    lengths = keep.sum(1, keepdim=True)
    return layout.compact(x), torch.arange(x.shape[1], device=x.device) < lengths


def kept_positions(mask: Tensor, shape: Sequence[int], axes: str, device: torch.device) -> Tensor:
    """Return `mask` as bool on `device`; raise unless it has this shape and holds 0 and 1 only."""
    if not isinstance(mask, Tensor):
        raise TypeError(f"mask must be a tensor, got {type(mask).__name__}")
    if mask.shape != shape:
        raise ValueError(f"mask must be {axes} = {list(shape)}, got {list(mask.shape)}")
    if mask.device != device:
        mask = mask.to(device)
    if mask.dtype is torch.bool:
        return mask
    if checks_enabled(mask):
        wrong = (mask != 0) & (mask != 1)
        if bool(wrong.any()):
            # A caller may have given an additive mask, for instance, in which 0 means kept.
            raise ValueError(
                f"mask holds {mask[wrong][0].item()}: expected 1 (kept) and 0 (removed) only"
            )
    return mask != 0


class PreparedBatch(NamedTuple):
    """A batch in the form that solvers take: batch axis first, compact sentences.

    Attributes:
        chain: the problem.
        layout: where its positions are in the caller's tensors.
        dtype: the common dtype of the caller's scores and the layer's parameters.
        tags: gold tags [B, n].
        allowed: allowed tags bool [B, n, T].
        structure: the constraints that `chain` obeys; None: there are none, or they are soft.
        start_end: scores [2T] of start tags and end tags that `chain` does not contain yet.
    """

    chain: LinearChain
    layout: Layout
    dtype: torch.dtype
    tags: Tensor | None = None
    allowed: Tensor | None = None
    structure: Structure | None = None
    start_end: Tensor | None = None


def check_arguments(
    emissions: Tensor,
    tags: Tensor | None,
    allowed: Tensor | None,
    transitions: Tensor | None,
    num_tags: int,
    batch_first: bool,
) -> None:
    """Raise unless the arguments of a layer's method have the right types, shapes and dtypes."""
    axes = "[B, n" if batch_first else "[n, B"
    if not isinstance(emissions, Tensor):
        raise TypeError(f"emissions must be a tensor {axes}, T], got {type(emissions).__name__}")
    shape = emissions.shape
    if len(shape) != 3:
        raise ValueError(f"emissions must be {axes}, T], got {list(shape)}")
    if shape[2] != num_tags:
        raise ValueError(f"emissions must be {axes}, T] with T = {num_tags}, got {list(shape)}")
    if not emissions.is_floating_point():
        raise TypeError(f"emissions must be floating point, got {emissions.dtype}")
    if tags is not None:
        if not isinstance(tags, Tensor):
            raise TypeError(f"tags must be a tensor, got {type(tags).__name__}")
        if tags.shape != shape[:2]:
            raise ValueError(f"tags must be {axes}] = {list(shape[:2])}, got {list(tags.shape)}")
        if tags.dtype is torch.bool or tags.is_floating_point() or tags.is_complex():
            raise TypeError(f"tags must be integers, got {tags.dtype}")
    if allowed is not None:
        check_allowed(allowed, shape, f"{axes}, T]")
    if transitions is not None:
        _check_transitions(transitions, shape, batch_first)


def _check_transitions(transitions: Tensor, shape: torch.Size, batch_first: bool) -> None:
    if not isinstance(transitions, Tensor):
        raise TypeError(f"transitions must be a tensor, got {type(transitions).__name__}")
    if not transitions.is_floating_point():
        raise TypeError(f"transitions must be floating point, got {transitions.dtype}")
    one, two, tags = shape
    axes = "[B, n-1, T, T]" if batch_first else "[n-1, B, T, T]"
    pairs = [one, max(two - 1, 0)] if batch_first else [max(one - 1, 0), two]
    if list(transitions.shape) not in ([tags, tags], [*pairs, tags, tags]):
        raise ValueError(
            f"transitions must be [T, T] = {[tags, tags]} or {axes} = {[*pairs, tags, tags]}, "
            f"got {list(transitions.shape)}"
        )


def prepare_batch(
    layer: ChainLayer,
    emissions: Tensor,
    mask: Tensor | None,
    transitions: Tensor | None,
    tags: Tensor | None = None,
    allowed: Tensor | None = None,
    separate_start_end: bool = False,
) -> PreparedBatch:
    """Check the arguments of a layer's method, and return the batch as solvers take it.

    With `separate_start_end`, start and end scores are a field of the result, not in the chain.
    """
    batch_first = layer.batch_first
    check_arguments(emissions, tags, allowed, transitions, layer.num_tags, batch_first)
    device = emissions.device
    # Whether Python can read values without a cost (`must_stay_in_torch` includes vmap).
    readable = (
        not torch.compiler.is_compiling()
        and device.type == "cpu"
        and type(emissions) in (Tensor, nn.Parameter)
        and not must_stay_in_torch()
    )
    if readable and not layer._parameters_checked:
        warn_of_absurd_parameters(layer)
    shape = emissions.shape[:2]
    if not batch_first:
        emissions = emissions.transpose(0, 1)
        tags, allowed = (None if x is None else x.transpose(0, 1) for x in (tags, allowed))
    if tags is not None:
        tags = tags.to(device, torch.int64)
    layout = batch_layout(mask, tags, shape, device, batch_first, layer._first_required, readable)
    if transitions is not None and transitions.dim() == 4:
        transitions = layout.compact_pairs(
            transitions if batch_first else transitions.transpose(0, 1)
        )
    if layout.order is not None:
        emissions = layout.compact(emissions)
        tags = None if tags is None else layout.compact(tags)
    if allowed is not None:
        allowed = layout.compact(allowed.to(device))
    own = (layer.start_transitions, layer.end_transitions, layer.transitions)
    dtype = emissions.dtype
    for scores in (*own, transitions):
        if scores is not None and scores.dtype is not dtype:
            dtype = torch.promote_types(dtype, scores.dtype)
    unary = emissions.to(torch.promote_types(dtype, torch.float32))
    constraints, finite = layer._constraint_scores, layer.finite_emissions
    start_end, pairs = transition_scores(unary, *own, transitions, constraints, finite)
    if pairs is not None and pairs.device != device:
        raise ValueError(f"emissions are on {device}, the layer's transitions on {pairs.device}")
    lengths = layout.lengths
    if lengths is None:
        lengths = torch.full((unary.shape[0],), unary.shape[1], device=device)
    # Shapes, dtypes and lengths are right: nothing to check again.
    rules = constraints.place(device, unary.dtype).structure if finite and constraints else None
    chain = LinearChain._new(unary, pairs, lengths, unary.dtype, rules, finite)
    if layer.train_temperature != 1:
        chain = chain / layer.train_temperature
        start_end = None if start_end is None else start_end / layer.train_temperature
    structure = constraints.structure if constraints and constraints.penalty is None else None
    if start_end is not None and not separate_start_end:
        chain = chain._add_start_end(start_end, readable and layout.lengths is None)
        start_end = None
    return PreparedBatch(chain, layout, dtype, tags, allowed, structure, start_end)


def raise_located(error: ValueError, batch: PreparedBatch) -> NoReturn:
    """Raise an error that locates the defect of the batch by the caller's positions and labels.

    Solvers get compact sentences, so the positions in `error` are not the caller's. If we find no
    defect in the batch, we raise `error` itself.
    """
    structure, chain = batch.structure, batch.chain
    if batch.start_end is not None:
        chain = chain._add_start_end(batch.start_end)
    defect = find_defect(chain, batch.tags, batch.allowed, structure)
    if defect is None:
        raise error
    hint = ""
    if structure is not None and _is_forbidden(structure, defect):
        hint = (
            ". The constraints of the layer forbid this: correct the tags, change the constraints, "
            "or make them soft with the argument penalty= of the layer"
        )
    raise ValueError(_in_callers_terms(defect, batch.layout, structure).message + hint) from error


def _is_forbidden(structure: Structure, defect: Defect) -> bool:
    """Whether the defect is a gold tag or transition that `structure` forbids."""
    before, after = defect.previous_tag, defect.tag
    if isinstance(before, int) and isinstance(after, int):
        return not bool(structure.follow[before, after])
    return defect.kind in ("start", "end")


def _in_callers_terms(defect: Defect, layout: Layout, structure: Structure | None) -> Defect:
    """Return the defect with the caller's positions, and with the labels of its tags."""
    if defect.sentence is not None and defect.position is not None:
        defect = defect._replace(position=layout.position(defect.sentence, defect.position))
    if defect.sentence is not None and defect.previous_position is not None:
        before = layout.position(defect.sentence, defect.previous_position)
        defect = defect._replace(previous_position=before)
    labels = None if structure is None else structure.labels
    if labels is None:
        return defect
    tag, previous = (
        f"{tag} ({labels[tag]})" if isinstance(tag, int) and 0 <= tag < len(labels) else tag
        for tag in (defect.tag, defect.previous_tag)
    )
    return defect._replace(tag=tag, previous_tag=previous)
