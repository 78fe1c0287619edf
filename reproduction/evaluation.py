"""Evaluate a model with several decoders; the network processes each sentence only once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from bcrf.tagger import Tagger
from bcrf.tagger.prediction.decoding import best_well_formed
from bcrf.tagger.tasks import Example, Metric, repair_all

from .batches import chains
from .methods import Method, agreement, decoder, tag_marginals

__all__ = ["evaluate"]

# The log rounds numbers to this many decimal digits.
_DIGITS = 6


@dataclass
class _DecoderCounts:
    """Counts of one decoder over all sentences."""

    metric: Metric
    tokens: int = 0
    sentences: int = 0
    repaired: int = 0
    agreeing: int = 0
    same: int = 0
    certified: int | None = None

    def result(self) -> dict[str, Any]:
        scores = self.metric.result()
        found = {
            "score": scores[self.metric.main],
            "scores": scores,
            "ill_formed": self.repaired,
            "agreement": self.agreeing / max(self.tokens, 1),
            "same": self.same / max(self.sentences, 1),
        }
        if self.certified is not None:
            found["certified"] = self.certified / max(self.sentences, 1)
        rounded: dict[str, Any] = _rounded(found)
        return rounded


@torch.no_grad()
def evaluate(
    tagger: Tagger, examples: Sequence[Example], decoders: Sequence[str]
) -> dict[str, dict[str, Any]]:
    """Return the results of several decoders on the same scores.

    Returns, by decoder:
        `scores` of the labels after repair, by the task's rule or, for "-mbr", by MBR;
        `score`, the main score of the task;
        `ill_formed`, the number of sentences that needed repair;
        `agreement`, the share of tokens with Viterbi's label before repair;
        `same`, the share of sentences in which all labels are Viterbi's;
        `certified`, the share of certified sentences; only the certified decoder has it.
    """
    task = tagger.task
    known = tagger.vocabularies.words
    counts = {name: _DecoderCounts(task.metric(known_words=known)) for name in decoders}
    methods = {name: decoder(name) for name in decoders}
    by_marginals = {name for name in decoders if Method.parse(name).mbr}
    exact = decoder("viterbi")
    for batch, chain in chains(tagger, examples):
        best = exact(chain).tags
        for name, method in methods.items():
            count, found = counts[name], method(chain)
            labels = [
                [task.labels[tag] for tag in tags[: len(example)]]
                for example, tags in zip(batch, found.tags.tolist(), strict=True)
            ]
            repaired = repair_all(task, batch, labels)
            sequences = list(repaired.sequences)
            if repaired.changed and name in by_marginals:
                changed = [row for row, old in enumerate(labels) if sequences[row] != old]
                some = chain[changed]
                best_ones = best_well_formed(task, some, tag_marginals(name, some))
                for row, sequence in zip(changed, best_ones, strict=True):
                    sequences[row] = sequence
            for example, sequence in zip(batch, sequences, strict=True):
                count.metric.add(example, sequence)
            agreeing, same = agreement(found.tags, best)
            count.tokens += sum(map(len, batch))
            count.sentences += len(batch)
            count.repaired += repaired.changed
            count.agreeing += agreeing
            count.same += same
            if found.certified is not None:
                count.certified = (count.certified or 0) + int(found.certified.sum())
    return {name: count.result() for name, count in counts.items()}


def _rounded(value: Any) -> Any:
    """Return nested tables with all floats rounded, so that logs stay small."""
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return round(value, _DIGITS) if isinstance(value, float) else value
