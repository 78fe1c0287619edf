"""Probabilities of tags, spans and sequences, as methods of a layer."""

from __future__ import annotations

import operator
from collections.abc import Sequence

import torch
from torch import Tensor

from ..chain import PAD
from ..checks import check_count
from ..inference import ForwardBackward, k_best, sample
from .diagnosis import Posed
from .distribution import Span, TagSet, converged, distribution, span_probabilities
from .posing import Posing

__all__ = ["Probabilities"]


class Probabilities(Posing):
    """What the model thinks of tags; every number a probability of one distribution.

    For the CRF that is p(y) = exp(<w, y> - A(w)); for the other families the Markov chain of their
    marginals (see `distribution`). -100 and probability 0 stand at removed positions.
    """

    def marginals(
        self,
        emissions: Tensor,
        mask: Tensor | None = None,
        *,
        transitions: Tensor | None = None,
        converge: bool | None = None,
    ) -> Tensor:
        """Probability of each tag at each position, [B, n, T], differentiable.

        Args:
            converge: of the Bregman family: make as many projections as it takes. False: as many
                as in training, which is faster, and approximate. None: True in eager mode, and
                False in compiled and exported programs, whose size grows with their number.
        """
        if converge is None:
            converge = not torch.compiler.is_compiling()
        posed = self._pose(emissions, mask, transitions)

        def solve(posed: Posed) -> Tensor:
            chain, solver = posed.chain, self.solver
            solution = converged(solver, chain) if converge else solver(chain)
            return solution.tag_probabilities()

        found = self._ask(solve, posed).to(self.common_dtype(emissions, transitions))
        return self._turned(posed.layout.restore(found))

    def top_tags(
        self,
        emissions: Tensor,
        k: int = 2,
        mask: Tensor | None = None,
        *,
        transitions: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """The k most probable tags of each position, best first: k = 2 tells the second best.

        Returns:
            probabilities and tags, [B, n, k]; 0 and -100 where fewer than k tags are possible.
        """
        check_count("k", k, least=1)
        if k > self.num_tags:
            raise ValueError(f"k must be at most the number of tags, {self.num_tags}, got {k}")
        found, tags = self.marginals(emissions, mask, transitions=transitions).topk(k, -1)
        return found, torch.where(found > 0, tags, PAD)

    def sequence_probability(
        self,
        emissions: Tensor,
        tags: Tensor,
        mask: Tensor | None = None,
        *,
        transitions: Tensor | None = None,
        log: bool = False,
    ) -> Tensor:
        """Probability [B] of whole tag sequences, or its logarithm; 0 for forbidden ones.

        A tag of -100 removes its position, as in `loss`.
        """
        posed = self._pose(emissions, mask, transitions, tags)

        def log_probability(posed: Posed) -> Tensor:
            assert posed.tags is not None
            model = distribution(self.solver, posed.chain)
            return model.score(posed.tags) - ForwardBackward()(model).value

        found = self._ask(log_probability, posed).clamp(max=0.0).to(posed.chain.unary.dtype)
        return found if log else torch.exp(found)

    def span_probability(
        self,
        emissions: Tensor,
        spans: Sequence[Span],
        mask: Tensor | None = None,
        *,
        transitions: Tensor | None = None,
    ) -> Tensor:
        """Probability [S] that neighbouring positions have given tags.

        Args:
            spans: (sentence, position, tags) of each. The tags are for that position and the kept
                ones after it. Each is a tag, or a collection of tags of which any will do: so
                [B, I, others] is a mention of exactly two words.
        """
        posed = self._pose(emissions, mask, transitions)
        device = posed.chain.device
        if not len(spans):
            return posed.chain.unary.new_zeros(0)
        places, chosen = zip(
            *(self._span(posed, number, *span) for number, span in enumerate(spans)), strict=True
        )
        sets = torch.ones(len(chosen), max(map(len, chosen)), self.num_tags, dtype=torch.bool)
        for row, one in zip(sets, chosen, strict=True):
            row[: len(one)] = one
        sentence, first = torch.tensor(places, device=device).unbind(1)

        def probability(posed: Posed) -> Tensor:
            model = distribution(self.solver, posed.chain)
            return span_probabilities(model, sets.to(device), sentence, first)

        return self._ask(probability, posed).to(posed.chain.unary.dtype)

    def _span(
        self, posed: Posed, number: int, sentence: int, position: int, tags: Sequence[TagSet]
    ) -> tuple[tuple[int, int], Tensor]:
        """Sentence and compact position of a span, and its sets bool [L, T]."""
        batch, name = posed.chain.batch_size, f"spans[{number}]"
        if not 0 <= sentence < batch:
            raise ValueError(f"{name}: sentence {sentence} is not in 0..{batch - 1}")
        first = posed.layout.slot(sentence, position)
        length = int(posed.chain.lengths[sentence])
        if first is None or not 0 <= first < length:
            raise ValueError(f"{name}: sentence {sentence} keeps no position {position}")
        if not 0 < len(tags) <= length - first:
            raise ValueError(
                f"{name}: {len(tags)} tags; sentence {sentence} has {length - first} positions "
                f"from position {position} on"
            )
        sets = torch.zeros(len(tags), self.num_tags, dtype=torch.bool)
        for row, entry in zip(sets, tags, strict=True):
            for tag in _tags(entry):
                if not 0 <= tag < self.num_tags:
                    raise ValueError(f"{name}: tag {tag} is not in 0..{self.num_tags - 1}")
                row[tag] = True
        return (sentence, first), sets

    def k_best(
        self,
        emissions: Tensor,
        k: int,
        mask: Tensor | None = None,
        *,
        transitions: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """The k most probable tag sequences, best first.

        Returns:
            log-probabilities [B, k] and tags [B, k, n] (the batch always first); -inf and -100
            where a sentence has fewer than k sequences.
        """
        posed = self._pose(emissions, mask, transitions)

        def best(posed: Posed) -> tuple[Tensor, Tensor]:
            model = distribution(self.solver, posed.chain)
            scores, tags = k_best(model, k)
            return scores - ForwardBackward()(model).value.unsqueeze(1), tags

        scores, tags = self._ask(best, posed)
        tags = posed.layout.restore_tags(tags.transpose(0, 1)).transpose(0, 1)
        return scores.clamp(max=0.0).to(posed.chain.unary.dtype), tags

    def sample(
        self,
        emissions: Tensor,
        num_samples: int,
        mask: Tensor | None = None,
        *,
        transitions: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Independent tag sequences from the model, [S, B, n]."""
        posed = self._pose(emissions, mask, transitions)

        def draw(posed: Posed) -> Tensor:
            return sample(distribution(self.solver, posed.chain), num_samples, generator)

        return self._turned(posed.layout.restore_tags(self._ask(draw, posed)), 1)


def _tags(entry: TagSet) -> list[int]:
    try:
        return [operator.index(entry)]  # type: ignore[arg-type]
    except TypeError:  # then it is a collection
        return [operator.index(tag) for tag in entry]  # type: ignore[union-attr]
