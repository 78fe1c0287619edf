"""`LogitBatch`: checked logits and mask, as log probabilities of compact sentences."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..layers.masks import Layout, kept_positions
from .label_set import LabelSet

__all__ = ["LogitBatch", "logit_matrices"]


@dataclass(frozen=True, eq=False)
class LogitBatch:
    """The logits of B sentences on the CPU.

    Attributes:
        log_probabilities: float64 [B, n, T], log-softmax, the kept positions first.
        lengths: int64 [B], the number of kept positions.
        layout: the map between the caller's positions and compact positions.
    """

    log_probabilities: Tensor
    lengths: Tensor
    layout: Layout

    @classmethod
    def read(cls, logits: Any, mask: Any, labels: LabelSet) -> LogitBatch:
        """Check the arguments of `decode_logits`, and return the batch."""
        if _is_list_of_matrices(logits):
            logits, mask = _padded(logits, mask, labels.num_tags)
        scores = _as_tensor("logits", logits)
        if scores.dtype is torch.bool or scores.is_complex():
            raise TypeError(f"logits must be real numbers, got {scores.dtype}")
        if not scores.numel() and isinstance(logits, list | tuple) and scores.dim() < 3:
            # Lists without a number do not say what T is: `[]` is an empty batch, `[[]]` is one
            # empty sentence.
            scores = scores.new_zeros(scores.shape[0], 0, labels.num_tags)
        single = scores.dim() == 2
        if scores.dim() not in (2, 3):
            raise ValueError(f"logits must be [B, n, T] or [n, T], got {list(scores.shape)}")
        if scores.shape[-1] != labels.num_tags:
            raise ValueError(
                f"logits must be {'[n, T]' if single else '[B, n, T]'} with T = {labels.num_tags}, "
                f"one score for each of the {labels.num_tags} labels, got {list(scores.shape)}"
            )
        keep = None if mask is None else _kept(mask, scores.shape[:-1], single)
        if single:
            scores = scores.unsqueeze(0)
        layout = Layout.of(keep, readable=True)
        scores = layout.compact(scores.detach().to("cpu", torch.float64))
        lengths = layout.lengths
        if lengths is None:
            lengths = torch.full((scores.shape[0],), scores.shape[1])
        batch = cls(scores, lengths, layout)
        batch._check_values(labels)
        return cls(torch.log_softmax(scores, -1), lengths, layout)

    @property
    def inside(self) -> Tensor:
        """bool [B, n], the compact positions within the lengths."""
        return torch.arange(self.log_probabilities.shape[1]) < self.lengths.unsqueeze(1)

    def _check_values(self, labels: LabelSet) -> None:
        """Raise if a kept position has NaN, +inf, or no finite logit."""
        scores = self.log_probabilities
        if not scores.numel() or bool(scores.sum().isfinite()):
            return  # one pass over the numbers, without a copy
        inside = self.inside
        bad = ~(scores < math.inf) & inside.unsqueeze(-1)
        if bool(bad.any()):
            sentence, position, tag = bad.nonzero()[0].tolist()
            value = float(scores[sentence, position, tag])
            raise ValueError(
                f"{self.place(sentence, position)}: the logit of {labels.labels[tag]!r} is "
                f"{value}; expected a finite number, or -inf to remove the label"
            )
        empty = (scores == -math.inf).all(-1) & inside
        if bool(empty.any()):
            sentence, position = empty.nonzero()[0].tolist()
            raise ValueError(
                f"{self.place(sentence, position)}: all {labels.num_tags} logits are -inf; "
                "expected a finite logit of at least one label"
            )

    def place(self, sentence: int, position: int) -> str:
        """Return the text that names a compact position by its position in the input."""
        return f"sentence {sentence}, position {self.layout.position(sentence, position)}"


def logit_matrices(logits: Any) -> list[Tensor]:
    """Return the logits of each sentence, [n_b, T], in any form that `decode_logits` takes."""
    if _is_list_of_matrices(logits):
        return [_as_tensor(f"logits[{index}]", matrix) for index, matrix in enumerate(logits)]
    scores = _as_tensor("logits", logits)
    return [scores] if scores.dim() == 2 else list(scores)


def _as_tensor(name: str, value: Any) -> Tensor:
    """Return a tensor, a numpy array or a nested list as a tensor."""
    if isinstance(value, Tensor):
        return value
    if isinstance(value, Sequence) and value and isinstance(value[0], Tensor):
        try:
            return torch.stack(list(value))
        except (TypeError, RuntimeError) as error:
            raise _not_a_tensor(name, value, error) from error
    try:
        return torch.tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise _not_a_tensor(name, value, error) from error


def _is_list_of_matrices(logits: Any) -> bool:
    if not isinstance(logits, list | tuple) or not logits:
        return False
    return all(len(getattr(matrix, "shape", ())) == 2 for matrix in logits)


def _padded(logits: Sequence[Any], mask: Any, num_tags: int) -> tuple[Tensor, Tensor]:
    """Return matrices [n_b, T] as one tensor [B, n, T], and a mask that removes the padding.

    Args:
        mask: a list of rows [n_b]; None: all positions are kept.
    """
    matrices = logit_matrices(logits)
    for index, matrix in enumerate(matrices):
        if matrix.shape[1] != num_tags:
            raise ValueError(
                f"logits[{index}] must be [n, T] with T = {num_tags}, one score for each of the "
                f"{num_tags} labels, got {list(matrix.shape)}"
            )
    if mask is None:
        rows = [torch.ones(len(matrix), dtype=torch.bool) for matrix in matrices]
    elif len(mask) != len(matrices):
        raise ValueError(f"mask must have one row for each of {len(matrices)} matrices of logits")
    else:
        rows = [
            _kept(row, matrix.shape[:1], single=True).squeeze(0)
            for row, matrix in zip(mask, matrices, strict=True)
        ]
    pad = torch.nn.utils.rnn.pad_sequence
    return pad([x.cpu() for x in matrices], batch_first=True), pad(rows, batch_first=True)


def _not_a_tensor(name: str, value: Any, error: Exception) -> Exception:
    kind = TypeError if isinstance(error, TypeError) else ValueError
    return kind(
        f"{name} must be a tensor, an array or a nested list whose rows have equal lengths (pad "
        f"shorter sentences, and give a mask), got {type(value).__name__}: {error}"
    )


def _kept(mask: Any, shape: torch.Size, single: bool) -> Tensor:
    """Return the mask as bool [B, n] on the CPU."""
    keep = _as_tensor("mask", mask)
    if not keep.numel() and not isinstance(mask, Tensor):
        keep = keep.to(torch.bool)
        keep = keep.reshape(shape) if not shape.numel() else keep
    keep = kept_positions(keep, shape, "[n]" if single else "[B, n]", torch.device("cpu"))
    return keep.unsqueeze(0) if single else keep
