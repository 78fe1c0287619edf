"""Forward and backward messages of one very long chain with few distinct transitions.

The sentences of a batch form one chain of N positions: a boundary, the positions of sentence 0, a
boundary, the positions of sentence 1, ..., a boundary. At a boundary only the *boundary tag* T is
possible. All matrices have S = T + 1 tags.

Two ideas make this quick without a loop over N positions in Python:

- Tags with equal rows of the transition matrix are one *class*. In BIOES all labels after which a
  span may begin (O, E-X, S-X) have equal rows, and so have B-X and I-X. A message is therefore a
  vector of r classes, with r of about T / 4 in BIOES and T / 2 in BIO.
- The chain is cut into C chunks of about sqrt(N) positions. First all chunks compute their [r, r]
  products at the same time, then a short loop carries the messages from chunk to chunk, and then
  all chunks compute the messages inside at the same time. This takes 3 sqrt(N) steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ..numerics.logspace import log_matmul

__all__ = ["ChainMessages", "TagClasses", "compute_messages"]

_SHORTEST_CHUNK = 16
# The products of all chunks have at most this many numbers (64 MB) at a time.
_MOST_NUMBERS = 1 << 23
# Up to this many classes, a table of the arcs of each tag makes products faster: 0.06 s instead of
# 0.16 s for 10 classes and N = 128,000, and 0.20 s instead of 0.35 s for 18 classes.
_TABLE_CLASSES = 32
# exp(-700) is the smallest number that float64 holds with full precision.
_SMALLEST_EXPONENT = 700.0
# In a scheme with O, two paths can meet after three positions: they end their spans and begin the
# same one. So two numbers of a product differ by the scores of at most six positions, and a product
# that is not normalized yet by those of seven.
_POSITIONS_TO_MEET = 7


@dataclass(frozen=True)
class TagClasses:
    """The classes of S tags, of which the last one is the boundary tag.

    Attributes:
        of_tag: int64 [S], the class of each tag.
        rows: [r, S], the transition scores of each class; -inf where forbidden.
        continues: bool [r, S], whether the transition stays within one span.
    """

    of_tag: Tensor
    rows: Tensor
    continues: Tensor

    @staticmethod
    def of(scores: Tensor, continues: Tensor) -> TagClasses:
        """Return the classes of tags with equal rows in `scores` and `continues`, both [S, S]."""
        both = torch.cat([scores, continues.to(scores.dtype)], 1)
        rows, of_tag = torch.unique(both, dim=0, return_inverse=True)
        size = scores.shape[1]
        if len(rows) == size:
            return TagClasses(torch.arange(size), scores, continues)
        return TagClasses(of_tag, rows[:, :size].contiguous(), rows[:, size:] > 0)

    @property
    def membership(self) -> Tensor:
        """[S, r], 1 where the tag is in the class."""
        return torch.nn.functional.one_hot(self.of_tag, len(self.rows)).to(self.rows.dtype)


class ChainMessages(NamedTuple):
    """Logarithms of the messages after each position; each vector has its own scale.

    Attributes:
        forward: [N, r], log sum of the paths up to position k whose tag at k is in the class.
        backward: [N, r], log sum of the paths after position k that begin in the class.
        scale: [N], the logarithm of the scale of backward[k].
    """

    forward: Tensor
    backward: Tensor
    scale: Tensor


def compute_messages(unary: Tensor, classes: TagClasses, paths_meet: bool) -> ChainMessages:
    """Return the messages of a chain.

    Products of probabilities are quick. If one of them may underflow, all is computed with
    logarithms, which takes several times as long.

    Args:
        unary: float64 [N, S]; positions 0 and N - 1 are boundaries.
        paths_meet: whether the tag scheme has O, and all its legal transitions are allowed.
    """
    n, most = len(unary), max(1, _MOST_NUMBERS // classes.rows.numel())
    length = max(_SHORTEST_CHUNK, math.ceil(math.sqrt(n)), -(-n // most))
    chunks = -(-n // length)
    in_log_space = not (paths_meet and _is_bounded(unary, classes.rows))
    padding = unary[:1].expand(chunks * length - n, -1)  # more boundaries
    padded = torch.cat([unary, padding])
    ops = _Operations(in_log_space, classes)
    weights = padded if in_log_space else padded.exp_()
    found = _messages(weights.view(chunks, length, -1), ops)
    return ChainMessages(*(x.flatten(0, 1)[:n] for x in found))


def _is_bounded(unary: Tensor, rows: Tensor) -> bool:
    """Whether no product of probabilities underflows; False if a label is removed (-inf)."""
    inner = unary[:, :-1]
    boundary = unary[:, -1] == 0
    worst = float(inner[~boundary].min()) if not bool(boundary.all()) else 0.0
    allowed = rows[rows > -math.inf]
    spread = -worst + float(allowed.max() - allowed.min())
    return spread * _POSITIONS_TO_MEET < _SMALLEST_EXPONENT


class _Operations:
    """The steps of the recursions, on probabilities or on their logarithms."""

    def __init__(self, in_log_space: bool, classes: TagClasses) -> None:
        self.in_log_space = in_log_space
        member = classes.membership
        rows = classes.rows
        if in_log_space:
            self.rows, self.member = rows, member.log()
        else:
            self.rows, self.member = rows.exp(), member
        self.rows_back = self.rows.mT.contiguous()
        self.of_tag = classes.of_tag
        self.all_distinct = len(rows) == rows.shape[1]  # then class and tag are the same
        self.arcs: Tensor | None = None  # [S, r * r], the arcs from class to class of each tag
        size, num_tags = rows.shape
        if not in_log_space and size <= _TABLE_CLASSES and 3 * size <= 2 * num_tags:
            self.arcs = (self.rows_back.unsqueeze(-1) * member.unsqueeze(1)).flatten(1)

    def product(self, x: Tensor, matrix: Tensor) -> Tensor:
        return log_matmul(x, matrix) if self.in_log_space else x @ matrix

    def weighted(self, x: Tensor, weights: Tensor) -> Tensor:
        return x.add_(weights) if self.in_log_space else x.mul_(weights)

    def normalized(self, x: Tensor, dims: int = 1) -> tuple[Tensor, Tensor]:
        """Return `x` divided by its maximum over the last `dims` axes, and log of the maximum."""
        peak = x.amax(tuple(range(-dims, 0)), keepdim=True)
        if self.in_log_space:
            peak = torch.where(peak == -math.inf, 0.0, peak)
            return x - peak, peak
        return x / peak, peak.log()

    def forward(self, x: Tensor, weights: Tensor) -> Tensor:
        """Return the forward messages [..., r] after one more position with `weights` [..., S]."""
        by_tag = self.weighted(self.product(x, self.rows), weights)
        return by_tag if self.all_distinct else self.product(by_tag, self.member)

    def extended(self, product: Tensor, weights: Tensor) -> Tensor:
        """Return products [C, r, r] extended by one more position with `weights` [C, S]."""
        if self.arcs is None:
            return self.forward(product, weights.unsqueeze(1))
        return product @ (weights @ self.arcs).view_as(product)

    def backward(self, x: Tensor, weights: Tensor) -> Tensor:
        """Return the backward messages [..., r] before the position with `weights` [..., S]."""
        return self.product(self.weighted(x[..., self.of_tag], weights), self.rows_back)

    def logs(self, x: Tensor) -> Tensor:
        return x if self.in_log_space else x.log_()


def _messages(weights: Tensor, ops: _Operations) -> tuple[Tensor, Tensor, Tensor]:
    """Return forward and backward messages [C, L, r] and the scales [C, L] of the latter.

    Args:
        weights: [C, L, S].
    """
    chunks, length, _ = weights.shape
    size = len(ops.rows)
    into, out_of = _boundary_messages(weights, ops)
    forward = weights.new_empty(chunks, length, size)
    backward = weights.new_empty(chunks, length, size)
    steps = weights.new_zeros(chunks, length)  # log of the factor from position k to k - 1
    for k in range(length):
        into, _ = ops.normalized(ops.forward(into, weights[:, k]))
        forward[:, k] = into
    for k in reversed(range(length)):
        backward[:, k] = out_of
        out_of, peak = ops.normalized(ops.backward(out_of, weights[:, k]))
        steps[:, k] = peak.squeeze(-1)
    flat = steps.flatten()
    scale = flat.flip(0).cumsum(0).flip(0) - flat
    return ops.logs(forward), ops.logs(backward), scale.view(chunks, length)


def _boundary_messages(weights: Tensor, ops: _Operations) -> tuple[Tensor, Tensor]:
    """Return the forward messages before each chunk and the backward messages after it, [C, r]."""
    chunks, length, _ = weights.shape
    size = len(ops.rows)
    zero, one = (-math.inf, 0.0) if ops.in_log_space else (0.0, 1.0)
    into, out_of = weights.new_full((chunks, size), zero), weights.new_full((chunks, size), one)
    into[0, ops.of_tag[-1]] = one  # as if a boundary came before
    if chunks == 1:
        return into, out_of
    eye = torch.eye(size, dtype=weights.dtype)
    product = (eye.log() if ops.in_log_space else eye).expand(chunks, size, size).contiguous()
    for k in range(length):
        product, _ = ops.normalized(ops.extended(product, weights[:, k]), 2)
    for c in range(1, chunks):
        step = ops.product(into[c - 1 : c], product[c - 1])
        into[c] = ops.normalized(step)[0]
    for c in range(chunks - 2, -1, -1):
        step = ops.product(out_of[c + 1 : c + 2], product[c + 1].mT)
        out_of[c] = ops.normalized(step)[0]
    return into, out_of
