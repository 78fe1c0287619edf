"""Mentions of a document, and the probability of each mention under the model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from ..layers import ChainLayer
from ..layers.probabilities import Span as TagSpan
from ..spans import Span
from ..tag_schemes import parse_label
from ..tagger.prediction.long_sentences import OVERLAP
from ..tagger.prediction.probabilities import continuing_tags

__all__ = ["mention_probabilities", "tag_probabilities"]

BLOCK_WORDS = 2048
"""Words for which probabilities are computed at a time. `OVERLAP` words on either side are read,
too: in trained models, words farther away change a probability by less than rounding."""


def mention_probabilities(
    layer: ChainLayer, emissions: Tensor, labels: Sequence[str], mentions: Sequence[Span]
) -> list[float]:
    """Return, for each mention, the probability that a tag sequence of the model contains it.

    A sequence contains a mention if `find_spans` finds a span with its start, its end and its type.

    Args:
        emissions: [n, T], the scores of a document without padding.
        labels: the label of each tag.
        mentions: in the order of their starts.
    """
    found: list[float] = []
    for low, high, block in _blocks(mentions, len(emissions)):
        spans: list[TagSpan] = []
        owner: list[int] = []
        for number, mention in enumerate(block):
            for first, sets in _tag_sets(labels, mention, len(emissions)):
                spans.append((0, first - low, sets))
                owner.append(number)
        parts = layer.span_probability(emissions[low:high].unsqueeze(0), spans)
        sums = parts.new_zeros(len(block)).index_add_(
            0, torch.tensor(owner, dtype=torch.int64, device=parts.device), parts
        )
        found += sums.clamp(max=1.0).tolist()
    return found


def tag_probabilities(layer: ChainLayer, emissions: Tensor, tags: Tensor) -> list[float]:
    """Return the marginal probability of each of the tags [n].

    Args:
        emissions: [n, T], the scores of a document without padding.
    """
    found: list[float] = []
    total = len(emissions)
    for start in range(0, total, BLOCK_WORDS):
        stop = min(start + BLOCK_WORDS, total)
        low, high = max(0, start - OVERLAP), min(total, stop + OVERLAP)
        marginals = layer.marginals(emissions[low:high].unsqueeze(0))[0, start - low : stop - low]
        found += marginals.gather(1, tags[start:stop].unsqueeze(1)).squeeze(1).tolist()
    return found


def _blocks(mentions: Sequence[Span], total: int) -> Iterator[tuple[int, int, list[Span]]]:
    """Yield the mentions that begin in the same block, with the range of words to read."""
    block: list[Span] = []
    for number, mention in enumerate(mentions):
        block.append(mention)
        following = mentions[number + 1] if number + 1 < len(mentions) else None
        if following is None or following.start - block[0].start >= BLOCK_WORDS:
            last = max(one.end for one in block)
            yield max(0, block[0].start - OVERLAP), min(total, last + OVERLAP), block
            block = []


def _tag_sets(
    labels: Sequence[str], mention: Span, total: int
) -> Iterator[tuple[int, list[list[int]]]]:
    """Yield disjoint sets of tag sequences whose union are all sequences with this mention.

    There is one set for each pair of a first tag and a last tag. In IOB2, [B-X, I-X, not I-X] is a
    mention of two words. Without constraints, [not B-X or I-X, I-X, I-X, not I-X] is one, too.

    Yields:
        the position of the first entry, and the tags that each position may have.
    """
    follows = continuing_tags(labels)  # [T, T]: does the second tag continue the first?
    parsed = [parse_label(label) for label in labels]
    of_type = torch.tensor([x.prefix != "O" and x.type == mention.type for x in parsed])
    length = mention.end - mention.start
    inner = _tags(of_type & follows.any(0) & follows.any(1))
    firsts = _tags(of_type if length == 1 else of_type & follows.any(1))
    lasts = _tags(of_type if length == 1 else of_type & follows.any(0))
    for first in firsts:
        before = ~follows[:, first]
        for last in lasts if length > 1 else [first]:
            after = ~follows[last]
            start = mention.start
            sets = [[first], *[inner] * (length - 2), [last]] if length > 1 else [[first]]
            if start > 0 and not bool(before.all()):
                sets.insert(0, _tags(before))
                start -= 1
            if mention.end < total and not bool(after.all()):
                sets.append(_tags(after))
            if all(sets):
                yield start, sets


def _tags(mask: Tensor) -> list[int]:
    found: list[int] = mask.nonzero().flatten().tolist()
    return found
