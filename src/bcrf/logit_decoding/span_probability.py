"""Decoded spans of a batch, and their probabilities."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ..chain import PAD
from ..numerics.logspace import log_matmul, logsumexp
from .label_set import LabelSet
from .logit_batch import LogitBatch
from .messages import TagClasses, compute_messages
from .transition_bias import TransitionScores

__all__ = ["FoundSpans", "find_tagged_spans", "span_log_probabilities"]


class FoundSpans(NamedTuple):
    """S spans of compact positions, in the order of sentences and positions; int64 [S] each.

    Attributes:
        sentence: the sentence.
        first, last: the first and the last compact position, inclusive.
        type_id: the index of the type in `LabelSet.span_types`.
    """

    sentence: Tensor
    first: Tensor
    last: Tensor
    type_id: Tensor


def find_tagged_spans(tags: Tensor, labels: LabelSet) -> FoundSpans:
    """Return the spans of legal compact tags int64 [B, n], -100 beyond the lengths."""
    inside = tags != PAD
    index = torch.where(inside, tags, 0)
    in_span = inside & labels.in_span[index]
    if not bool(in_span.any()):
        return FoundSpans(*(torch.zeros(0, dtype=torch.int64) for _ in range(4)))
    joined = torch.zeros_like(in_span)  # whether the position continues the span before it
    joined[:, 1:] = in_span[:, 1:] & labels.continues[index[:, :-1], index[:, 1:]]
    goes_on = torch.zeros_like(in_span)
    goes_on[:, :-1] = joined[:, 1:]
    sentence, first = (in_span & ~joined).nonzero(as_tuple=True)
    last = (in_span & ~goes_on).nonzero(as_tuple=True)[1]
    return FoundSpans(sentence, first, last, labels.type_ids[index[sentence, first]])


def span_log_probabilities(
    batch: LogitBatch,
    tags: Tensor,
    spans: FoundSpans,
    labels: LabelSet,
    scores: TransitionScores,
) -> Tensor:
    """Return the log probability [S] of each span of `tags` under the chain of legal sequences.

    This is the probability that a span begins at its first position, ends at its last one and has
    its type. In all schemes the labels after the first position then are those of `tags`; in IOB1,
    the first label may be I-X or B-X. With F and G for the forward and backward messages (see
    `messages`), the probability of the span i..j is

        sum over s, y_i, t:  F[i-1, s] w(s, y_i) path(i..j) w(y_j, t) p(t) G[j+1, t] / Z

    where the transitions s -> y_i and y_j -> t do not continue a span.
    """
    unary, tags_flat, offset = _one_chain(batch, tags)
    pair, continues = _with_boundary(labels, scores)
    classes = TagClasses.of(pair, continues)
    has_outside = not bool(labels.in_span.all())
    all_allowed = bool((scores.pair[labels.structure.follow] > -math.inf).all())
    messages = compute_messages(unary, classes, has_outside and all_allowed)

    first, last = offset[spans.sentence] + spans.first, offset[spans.sentence] + spans.last
    breaks = classes.rows.masked_fill(classes.continues, -math.inf)  # [r, S]
    before, after = first - 1, last + 1
    # enter[s, y]: the paths that reach y at the first position, where a span begins
    enter = log_matmul(messages.forward[before], breaks) + unary[first]
    same_type = torch.zeros_like(continues)
    same_type[:-1, :-1] = labels.type_ids.unsqueeze(1) == labels.type_ids
    enter = enter.masked_fill(~same_type[tags_flat[first]], -math.inf)
    # leave[s, class]: the paths after the last position, where the span ends
    following = unary[after] + messages.backward[after][:, classes.of_tag]
    leave = log_matmul(following, breaks.mT.contiguous())
    single = logsumexp(enter + leave[:, classes.of_tag])
    inner = logsumexp(enter + pair[:, tags_flat[first + 1]].mT) + _inner_scores(
        unary, pair, tags_flat, first, last
    )
    longer = inner + leave.gather(1, classes.of_tag[tags_flat[last]].unsqueeze(1)).squeeze(1)
    total = logsumexp(messages.forward[before] + messages.backward[before])
    scale = messages.scale[after] - messages.scale[before]
    found = torch.where(first == last, single, longer) + scale - total
    return found.clamp(max=0.0)


def _one_chain(batch: LogitBatch, tags: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return all sentences as one chain of N positions, with a boundary around each sentence.

    Returns:
        unary [N, T + 1], tags int64 [N], and the position [B] in the chain of each sentence.
    """
    sentences, _, num_tags = batch.log_probabilities.shape
    inside = batch.inside
    offset = 1 + torch.cumsum(batch.lengths + 1, 0) - (batch.lengths + 1)
    size = int(batch.lengths.sum()) + sentences + 1
    is_boundary = torch.zeros(size, dtype=torch.bool)
    is_boundary[0] = True
    is_boundary[offset + batch.lengths] = True
    unary = torch.full((size, num_tags + 1), -math.inf, dtype=torch.float64)
    unary[is_boundary, num_tags] = 0.0
    kept = batch.log_probabilities
    kept = kept.flatten(0, 1) if bool(inside.all()) else kept[inside]
    unary[~is_boundary, :num_tags] = kept
    flat = torch.full((size,), num_tags)
    flat[~is_boundary] = tags[inside]
    return unary, flat, offset


def _with_boundary(labels: LabelSet, scores: TransitionScores) -> tuple[Tensor, Tensor]:
    """Return the transitions [T + 1, T + 1] with the boundary tag, and which continue a span."""
    size = labels.num_tags
    pair = torch.zeros(size + 1, size + 1, dtype=torch.float64)
    pair[:size, :size] = scores.pair
    pair[size, :size] = scores.start
    pair[:size, size] = scores.end
    continues = torch.zeros(size + 1, size + 1, dtype=torch.bool)
    continues[:size, :size] = labels.continues
    return pair, continues


def _inner_scores(unary: Tensor, pair: Tensor, tags: Tensor, first: Tensor, last: Tensor) -> Tensor:
    """Return the scores [S] of the path within each span, without the first position and arc.

    Running sums over the whole chain give the sum of a span of any length in O(1).
    """
    on_path = unary.gather(1, tags.unsqueeze(1)).squeeze(1).cumsum(0)
    arcs = pair[tags[:-1], tags[1:]].cumsum(0)  # arcs[k]: up to the arc from k to k + 1
    second = torch.minimum(first + 1, last)
    return on_path[last] - on_path[first] + arcs[last - 1] - arcs[second - 1]
