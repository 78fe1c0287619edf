"""Sentences that are too long for one batch: scored and decoded in blocks.

Memory is bounded by the block, but for a few bytes per token (labels; one byte per token and tag
for Viterbi). Given the scores, the labels are those of the whole sentence:

- "viterbi" and "certified": Viterbi carries its state from block to block (`windowed_viterbi`).
- "unstructured", "mean_field-K", "bregman-K": K iterations look at most K + 2 positions far
  (`decoder_reach`), so each block is solved with that many positions more on either side.
- repair "rule" looks at labels only; "mbr" is Viterbi over the decoder's marginals.

Probabilities of CRFs and Bregman CRFs depend on all positions, but exponentially less with their
distance: each block is solved with `OVERLAP` positions more on either side.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from ..chain import LinearChain
from ..inference import ForwardBackward, windowed_viterbi
from ..layers.distribution import distribution
from ..nn import (
    TaggerModel,
    WordEmbeddings,
    decoder_reach,
    probability_reach,
    probability_solver,
)
from ..tasks import Segmentation, Task
from .blocks import BlockedChain
from .decoding import Labelled, decoder_marginals
from .reachable import ReachableTags

__all__ = ["LongSentence", "block_size", "network_context"]

OVERLAP = 128
"""Positions on either side of a block with which probabilities of a CRF or Bregman CRF are
computed. What lies farther away changes those of trained models by less than rounding does."""

BLOCK_TOKENS = 512
"""Most tokens of a block: enough for fast matrix products, and for attention little memory."""

BLOCK_SCORES = 1 << 20
"""Most scores of tag pairs in a block: 4 MB, of which a network and a solver make ten copies."""

CONTEXT = 256
"""Tokens on either side of a block that are read by a network which looks at whole sentences: more
than the sentences of ordinary training data have."""


def block_size(num_tags: int) -> int:
    """Positions of a block, an even number."""
    return max(2, min(BLOCK_TOKENS, BLOCK_SCORES // num_tags**2) // 2 * 2)


def network_context(model: TaggerModel) -> int:
    """Tokens on either side of a block that the network reads. Word embeddings need one, because
    the transitions read the next word."""
    return 1 if isinstance(model.encoder, WordEmbeddings) else CONTEXT


class _Window(NamedTuple):
    """Positions start, ..., stop - 1, which are wanted, within low, ..., high - 1, which are
    computed."""

    start: int
    stop: int
    low: int
    high: int

    @property
    def wanted(self) -> slice:
        return slice(self.start - self.low, self.stop - self.low)


class LongSentence:
    """Labels and probabilities of one long sentence.

    Args:
        model, task: of the tagger.
        chain: the scores of the sentence.
    """

    def __init__(self, model: TaggerModel, task: Task, chain: BlockedChain) -> None:
        self.model, self.task, self.chain = model, task, chain

    @torch.no_grad()
    def label(self, decoder: str, repair: str) -> Labelled:
        """The labels, as `decoding.label` chooses them for short sentences."""
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
        """The probabilities, as `probabilities.probabilities` defines them."""
        if not isinstance(self.task, Segmentation):
            return tuple(self._tag_probabilities(self._numbers(labels)).tolist())
        example = self.chain.example
        words = self.task.words(example, labels)
        # The words of ill-formed labels are those of the well-formed ones that stand for the same.
        tags = self._numbers(self.task.repair(example, labels))
        first = torch.zeros(len(tags), dtype=torch.bool)
        word = torch.full((len(tags),), len(words))  # the last number: in no word
        starts = torch.tensor([span.start for span in words], dtype=torch.int64)
        sizes = torch.tensor([span.end - span.start for span in words], dtype=torch.int64)
        first[starts] = True
        inside = torch.arange(int(sizes.sum())) - (sizes.cumsum(0) - sizes).repeat_interleave(sizes)
        word[starts.repeat_interleave(sizes) + inside] = torch.repeat_interleave(sizes)
        sums = torch.zeros(len(words) + 1, dtype=torch.float64)
        sums.index_add_(0, word, self._log_probabilities(tags, first))
        return tuple(sums[:-1].exp().clamp(max=1.0).tolist())

    # Labels

    def _decode(self, decoder: str) -> Tensor:
        """Tags [n]."""
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
        """Windows for `windowed_viterbi`: the scores of `mbr_repair`."""
        reach = decoder_reach(decoder)
        assert reach is not None, "a best sequence is well-formed"
        structure, pair = self.task.structure, None
        if structure is not None:
            pair = torch.zeros(structure.follow.shape).masked_fill(~structure.follow, -math.inf)
        for window in self._windows(self.chain.overlapping_blocks(), reach):
            problem = self._problem(window)
            marginals = decoder_marginals(decoder, problem)
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
        """[n]: the marginals of `tags` [n]."""
        found = torch.empty(len(tags))
        for window in self._probability_windows():
            inside = slice(window.start, window.stop)
            marginals = self.model.marginals(self._problem(window))[0, window.wanted].cpu()
            found[inside] = marginals.gather(-1, tags[inside].unsqueeze(-1)).squeeze(-1)
        return found

    def _log_probabilities(self, tags: Tensor, first: Tensor) -> Tensor:
        """[n], float64: log p(tag) at the `first` positions of words, elsewhere log p(tag | tag
        before it), of `tags` [n]. These add up to the log probability of a word."""
        solver = probability_solver(self.model.config.objective)
        found = torch.empty(len(tags), dtype=torch.float64)
        for window in self._probability_windows():
            problem = self._problem(window)
            law = ForwardBackward()(distribution(solver, problem))
            index = tags[window.low : window.high].to(problem.device)
            alone = law.tag_probabilities()[0].gather(-1, index.unsqueeze(-1)).squeeze(-1).log()
            edge = torch.arange(len(index) - 1, device=index.device)
            following = law.log_conditionals()[1][0, edge, index[:-1], index[1:]]
            chosen = first[window.low : window.high].to(index.device)
            logs = torch.where(chosen, alone, torch.cat([alone[:1], following]))
            found[window.start : window.stop] = logs[window.wanted]
        return found

    def _probability_windows(self) -> Iterator[_Window]:
        reach = probability_reach(self.model.config.objective)
        return self._windows(self.chain.blocks(), OVERLAP if reach is None else reach)

    # Windows

    def _windows(self, blocks: list[tuple[int, int]], reach: int) -> Iterator[_Window]:
        """Blocks with `reach` positions more on either side. They begin at even positions, so that
        projections take the same positions first as in the whole sentence."""
        for start, stop in blocks:
            low = max(0, start - reach)
            yield _Window(start, stop, low - low % 2, min(len(self.chain), stop + reach))

    def _problem(self, window: _Window) -> LinearChain:
        """The chain of a window. Its ends have the tags that are on paths through the sentence, so
        that the other positions have them as well."""
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
    def _reachable(self) -> tuple[ReachableTags, ReachableTags] | None:
        """Tags that are on paths from the start of the sentence, and from its end; None: all that
        the limits of the input permit."""
        scorer = self.model.scorer
        start, end, follow = (
            x.cpu() for x in (scorer.may_start, scorer.may_end, scorer.may_follow)
        )
        if bool(follow.all()):
            return None
        blocks = self.chain.blocks()
        forwards = (self._limits(*block) for block in blocks)
        backwards = (self._limits(*block).flip(0) for block in reversed(blocks))
        return ReachableTags(start, follow, forwards), ReachableTags(end, follow.T, backwards)

    def _limits(self, start: int, stop: int) -> Tensor:
        """bool [stop - start, T]: the tags that the input permits. White space beside a token
        limits them, so the neighbours are looked at, too."""
        first, last = max(0, start - 1), min(len(self.chain), stop + 1)
        limits = self.task.limits(self.chain.example.part(first, last))
        if limits is None:
            return torch.ones(stop - start, len(self.task.labels), dtype=torch.bool)
        return limits[start - first : stop - first]
