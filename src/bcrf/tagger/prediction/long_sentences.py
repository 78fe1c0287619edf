"""Score and decode sentences that are too long for one batch, block by block.

This needs the memory of a block, plus a few bytes per token (labels; one byte per token and tag for
Viterbi). Given the scores, the labels equal those of the whole sentence:

- "viterbi" and "certified": Viterbi carries its state from block to block (`windowed_viterbi`).
- "unstructured", "mean_field-K", "bregman-K": the result at a position depends on the scores of at
  most K + 2 positions on either side (`decoder_reach`). So each block is solved with that many
  additional positions on either side.
- The repair "rule" reads labels only; "mbr" is Viterbi over the marginals of the decoder.

Probabilities of CRFs and Bregman CRFs depend on all positions, but the influence of a position
decays exponentially with its distance. So each block is solved with `OVERLAP` additional positions
on either side.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from ...chain import LinearChain
from ...decoding import decoder_marginals
from ...inference import ForwardBackward, windowed_viterbi
from ...layers.probabilities import distribution
from ..nn import (
    FeatureEncoder,
    TaggerModel,
    WordEmbeddings,
    decoder_reach,
    parse_decoder,
    probability_reach,
    probability_solver,
)
from ..tasks import Segmentation, Task
from .blocks import BlockedChain
from .calibration import scaled
from .decoding import Labelled
from .probabilities import continuing_tags
from .reachable import ReachableTagSets

__all__ = ["LongSentence", "block_size", "network_context"]

OVERLAP = 128
"""Additional positions on either side of a block for probabilities of a CRF or Bregman CRF. In
trained models, positions farther away change a probability by less than rounding."""

BLOCK_TOKENS = 512
"""Most tokens of a block: enough for fast matrix products, few enough for attention."""

BLOCK_SCORES = 1 << 20
"""Most transition scores of a block: 4 MB, of which network and solver make about ten copies."""

FEATURE_REACH = 3
"""Distance to the farthest character that the features of a character, or the scores of its
transitions, depend on."""

CONTEXT = 256
"""Tokens on either side of a block that a network with attention or an LSTM reads: more than an
ordinary training sentence has."""


def block_size(num_tags: int) -> int:
    """Return the number of positions of a block; it is even."""
    return max(2, min(BLOCK_TOKENS, BLOCK_SCORES // num_tags**2) // 2 * 2)


def network_context(model: TaggerModel) -> int:
    """Return the number of tokens that the network reads on either side of a block.

    It is 1 for word embeddings without layers, because transitions read the next word. The features
    of a character read its neighbours.
    """
    if isinstance(model.encoder, WordEmbeddings):
        return 1
    if isinstance(model.encoder, FeatureEncoder) and model.encoder.reach is not None:
        return model.encoder.reach + FEATURE_REACH
    return CONTEXT


class _Window(NamedTuple):
    """A block with positions start..stop - 1, inside the computed positions low..high - 1."""

    start: int
    stop: int
    low: int
    high: int

    @property
    def wanted(self) -> slice:
        """The positions of the block, relative to `low`."""
        return slice(self.start - self.low, self.stop - self.low)


class LongSentence:
    """Labels and probabilities of one long sentence.

    Args:
        model, task: network and task of the tagger.
        chain: the scores of the sentence.
        temperature: the scores are divided by it before probabilities are computed.
    """

    def __init__(
        self, model: TaggerModel, task: Task, chain: BlockedChain, temperature: float = 1.0
    ) -> None:
        self.model, self.task, self.chain = model, task, chain
        self.temperature = temperature

    @torch.no_grad()
    def label(self, decoder: str, repair: str) -> Labelled:
        """Return the labels, as `decoding.label` does for short sentences."""
        labels = self._named(self._decode(decoder))
        if repair == "none":
            return Labelled(tuple(labels), False)
        repaired = self.task.repair(self.chain.example, labels)
        changed = repaired != labels
        if changed and repair == "mbr":
            windows = self._marginals_as_scores(decoder)
            repaired = self._named(windowed_viterbi(windows, len(self.chain)))
        return Labelled(tuple(repaired), changed)

    @torch.no_grad()
    def probabilities(self, labels: tuple[str, ...]) -> tuple[float, ...]:
        """Return the probabilities, as `probabilities.probabilities` does for short sentences."""
        if isinstance(self.task, Segmentation):
            return self.item_probabilities(labels)
        return tuple(self._tag_probabilities(self._numbers(labels)).tolist())

    @torch.no_grad()
    def item_probabilities(self, labels: tuple[str, ...]) -> tuple[float, ...]:
        """Return the probabilities, as `probabilities.item_probabilities` does."""
        if not self.task.has_spans:
            return self.probabilities(labels)
        example = self.chain.example
        # Ill-formed labels have the same items as the repaired labels.
        repaired = self.task.repair(example, labels)
        items = self.task.items(example, repaired)
        tags = self._numbers(repaired)
        first = torch.zeros(len(tags), dtype=torch.bool)
        last = first.clone()
        number = torch.full((len(tags),), len(items))  # len(items): the token is in no item
        starts = torch.tensor([span.start for span in items], dtype=torch.int64)
        sizes = torch.tensor([span.end - span.start for span in items], dtype=torch.int64)
        first[starts] = True
        last[starts + sizes - 1] = True
        inside = torch.arange(int(sizes.sum())) - (sizes.cumsum(0) - sizes).repeat_interleave(sizes)
        number[starts.repeat_interleave(sizes) + inside] = torch.repeat_interleave(sizes)
        sums = torch.zeros(len(items) + 1, dtype=torch.float64)
        sums.index_add_(0, number, self._log_probabilities(tags, first, last))
        return tuple(sums[:-1].exp().clamp(max=1.0).tolist())

    # Labels

    def _decode(self, decoder: str) -> Tensor:
        """Return the tags, int64 [n]."""
        reach = decoder_reach(decoder)
        if reach is None:
            windows = (self.chain.part(*block) for block in self.chain.overlapping_blocks())
            return windowed_viterbi(windows, len(self.chain))
        tags = torch.empty(len(self.chain), dtype=torch.int64)
        for window in self._windows(self.chain.blocks(), reach):
            found = self.model.decode(self._problem(window), decoder)
            tags[window.start : window.stop] = found[0, window.wanted]
        return tags

    def _marginals_as_scores(self, decoder: str) -> Iterator[LinearChain]:
        """Yield windows for `windowed_viterbi` with the scores of `mbr_tags`."""
        reach = decoder_reach(decoder)
        assert reach is not None, "a best sequence is well-formed"
        structure, pair = self.task.structure, None
        if structure is not None:
            pair = torch.zeros(structure.follow.shape).masked_fill(~structure.follow, -math.inf)
        for window in self._windows(self.chain.overlapping_blocks(), reach):
            problem = self._problem(window)
            marginals = decoder_marginals(parse_decoder(decoder), problem)
            scores = torch.where(problem.unary.isfinite(), marginals, -math.inf)
            yield LinearChain(scores[:, window.wanted].cpu(), pair)

    def _named(self, tags: Tensor) -> list[str]:
        labels = self.task.labels
        return [labels[tag] for tag in tags.tolist()]

    def _numbers(self, labels: list[str] | tuple[str, ...]) -> Tensor:
        number = {label: index for index, label in enumerate(self.task.labels)}
        return torch.tensor([number[label] for label in labels], dtype=torch.int64)

    # Probabilities

    def _tag_probabilities(self, tags: Tensor) -> Tensor:
        """Return the marginals [n] of `tags` [n]."""
        found = torch.empty(len(tags))
        for window in self._probability_windows():
            inside = slice(window.start, window.stop)
            problem = scaled(self._problem(window), self.temperature)
            marginals = self.model.marginals(problem)[0, window.wanted].cpu()
            found[inside] = marginals.gather(-1, tags[inside].unsqueeze(-1)).squeeze(-1)
        return found

    def _log_probabilities(self, tags: Tensor, first: Tensor, last: Tensor) -> Tensor:
        """Return the factors of the probabilities of spans, as logarithms.

        The factor is p(tag) at the first position of each span, else p(tag | tag before). At the
        last position, p(the next tag does not continue the span | tag) is multiplied to it. The sum
        over the positions of a span is its log probability.

        Args:
            tags: int64 [n].
            first, last: bool [n].

        Returns:
            float64 [n].
        """
        solver = probability_solver(self.model.config.objective)
        continuing = continuing_tags(self.task.labels)
        found = torch.empty(len(tags), dtype=torch.float64)
        for window in self._probability_windows():
            problem = scaled(self._problem(window), self.temperature)
            law = ForwardBackward()(distribution(solver, problem))
            index = tags[window.low : window.high].to(problem.device)
            alone = law.tag_probabilities()[0].gather(-1, index.unsqueeze(-1)).squeeze(-1).log()
            edge = torch.arange(len(index) - 1, device=index.device)
            conditionals = law.log_conditionals()[1][0, edge, index[:-1]]
            following = conditionals.gather(-1, index[1:].unsqueeze(-1)).squeeze(-1)
            chosen = first[window.low : window.high].to(index.device)
            logs = torch.where(chosen, alone, torch.cat([alone[:1], following]))
            further = continuing.to(index.device)[index[:-1]]
            ending = (conditionals.exp() * further).sum(-1).clamp(max=1.0).neg().log1p()
            closes = last[window.low : window.high - 1].to(index.device)
            logs[:-1] += torch.where(closes, ending, 0.0)
            found[window.start : window.stop] = logs[window.wanted]
        return found

    def _probability_windows(self) -> Iterator[_Window]:
        reach = probability_reach(self.model.config.objective)
        return self._windows(self.chain.blocks(), OVERLAP if reach is None else reach)

    # Windows

    def _windows(self, blocks: list[tuple[int, int]], reach: int) -> Iterator[_Window]:
        """Yield blocks with `reach` additional positions on either side.

        The windows begin at even positions, so that projections alternate between even and odd
        positions as they do in the whole sentence.
        """
        for start, stop in blocks:
            low = max(0, start - reach)
            yield _Window(start, stop, low - low % 2, min(len(self.chain), stop + reach))

    def _problem(self, window: _Window) -> LinearChain:
        """Return the chain of a window, restricted to tags on legal paths of the whole sentence.

        Restricting its two ends is enough: it restricts the paths at all positions between.
        """
        chain = self.chain.part(window.low, window.high)
        if self._reachable is None:
            return chain
        from_start, from_end = self._reachable
        unary = chain.unary.clone()
        for position, tags in (
            (0, from_start[window.low]),
            (-1, from_end[len(self.chain) - window.high]),
        ):
            unary[:, position].masked_fill_(~tags.to(unary.device), -math.inf)
        return LinearChain(unary, chain.transitions)

    @cached_property
    def _reachable(self) -> tuple[ReachableTagSets, ReachableTagSets] | None:
        """The tags that paths from the start, and paths from the end, can reach at each position.

        None if every tag may follow every tag.
        """
        structure = self.model.scorer.structure
        start, end, follow = structure.start, structure.end, structure.follow
        if bool(follow.all()):
            return None
        blocks = self.chain.blocks()
        forwards = (self._permitted_tags(*block) for block in blocks)
        backwards = (self._permitted_tags(*block).flip(0) for block in reversed(blocks))
        return ReachableTagSets(start, follow, forwards), ReachableTagSets(end, follow.T, backwards)

    def _permitted_tags(self, start: int, stop: int) -> Tensor:
        """Return the tags that the text permits, bool [stop - start, T].

        The permitted tags of a token depend on the white space beside it. So we also pass the
        neighbours of the block to the task.
        """
        first, last = max(0, start - 1), min(len(self.chain), stop + 1)
        permitted = self.task.permitted_tags(self.chain.example.part(first, last))
        if permitted is None:
            return torch.ones(stop - start, len(self.task.labels), dtype=torch.bool)
        return permitted[start - first : stop - first]
