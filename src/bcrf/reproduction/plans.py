"""What is to be timed and analysed, as TOML files describe it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .experiment import ExperimentError
from .methods import check_decoder, check_objective
from .parsing import Reader

__all__ = ["AnalysisPlan", "Scaling", "TimingPlan"]


@dataclass(frozen=True)
class Scaling:
    """Sizes of chains that are timed without a network.

    Args:
        batch: sentences.
        lengths: timed with `tag` tags.
        tags: timed at length `length`.
    """

    batch: int
    length: int
    lengths: tuple[int, ...]
    tag: int
    tags: tuple[int, ...]

    @classmethod
    def read(cls, read: Reader) -> Scaling:
        found = cls(
            read.count("batch"),
            read.count("length"),
            read.numbers("lengths"),
            read.count("tag"),
            read.numbers("tags"),
        )
        read.finish()
        return found

    @property
    def sizes(self) -> list[tuple[int, int]]:
        """Pairs of a length and a number of tags."""
        both = [(n, self.tag) for n in self.lengths] + [(self.length, t) for t in self.tags]
        return list(dict.fromkeys(both))


@dataclass(frozen=True)
class TimingPlan:
    """What is timed.

    Args:
        name, title: of the table.
        training, decoding: experiments whose corpora and networks are timed.
        objectives, decoders: the first of each is what the others are compared with.
        backends: of all of them in turn.
        batch: sentences of a batch.
        batches: how many are timed; their lengths are spread over the corpus.
        rounds: how often.
        scaling: chains without a network.
        paper: (measure, experiment, network, corpus, method) -> the speed-up in the paper.
    """

    name: str
    title: str
    training: tuple[str, ...]
    decoding: tuple[str, ...]
    objectives: tuple[str, ...]
    decoders: tuple[str, ...]
    backends: tuple[str, ...]
    batch: int
    batches: int
    rounds: int
    scaling: Scaling
    paper: dict[tuple[str, str, str, str, str], float] = field(default_factory=dict)

    @classmethod
    def from_dict(cls, name: str, values: Mapping[str, Any]) -> TimingPlan:
        """The plan with these values, as read from a file; errors name the key."""
        read = Reader(values, error=ExperimentError)
        plan = cls(
            name,
            read.text("title"),
            read.texts("training"),
            read.texts("decoding"),
            read.texts("objectives"),
            read.texts("decoders"),
            read.texts("backends"),
            read.count("batch"),
            read.count("batches"),
            read.count("rounds"),
            Scaling.read(read.part("scaling")),
            _speed_ups(read.tables("paper")),
        )
        read.finish()
        for objective in plan.objectives:
            check_objective(objective)
        for decoder in plan.decoders:
            check_decoder(decoder)
        return plan

    @property
    def sources(self) -> tuple[str, ...]:
        """The experiments that it needs."""
        return tuple(dict.fromkeys((*self.training, *self.decoding)))

    def methods(self, measure: str) -> tuple[str, ...]:
        """Of "training" or "decoding"."""
        return self.objectives if measure == "training" else self.decoders


@dataclass(frozen=True)
class AnalysisPlan:
    """What is looked at on the scores of trained models.

    Args:
        name, title: of the table.
        sources: experiments whose models are looked at.
        objectives, seeds: of these models.
        sentences: of the test file, at most.
        iterations: numbers of projections.
    """

    name: str
    title: str
    sources: tuple[str, ...]
    objectives: tuple[str, ...]
    seeds: tuple[int, ...]
    sentences: int
    iterations: tuple[int, ...]

    @classmethod
    def from_dict(cls, name: str, values: Mapping[str, Any]) -> AnalysisPlan:
        """The plan with these values, as read from a file; errors name the key."""
        read = Reader(values, error=ExperimentError)
        plan = cls(
            name,
            read.text("title"),
            read.texts("sources"),
            read.texts("objectives"),
            read.numbers("seeds"),
            read.count("sentences"),
            read.numbers("iterations"),
        )
        read.finish()
        for objective in plan.objectives:
            check_objective(objective)
        return plan


def _speed_ups(tables: Sequence[Reader]) -> dict[tuple[str, str, str, str, str], float]:
    numbers = {}
    for read in tables:
        measure, source, network = read.text("measure"), read.text("table"), read.text("network")
        corpora = read.texts("corpora")
        for method, *values in read.rows("rows", 1 + len(corpora)):
            for corpus, value in zip(corpora, values, strict=True):
                numbers[measure, source, network, corpus, method] = float(value)
        read.finish()
    return numbers
