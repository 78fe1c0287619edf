"""Describe the tables of times and of analyses, from their TOML files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .experiment import ExperimentError
from .methods import check_decoder, check_objective
from .table_reader import TableReader

__all__ = ["AnalysisPlan", "Scaling", "TimingPlan"]


@dataclass(frozen=True)
class Scaling:
    """Sizes of random chains that are timed without a network.

    Args:
        batch: number of sentences.
        length: fixed length, used with each number of tags in `tags`.
        lengths: the lengths to time, each with `tag` tags.
        tag: fixed number of tags, used with each length in `lengths`.
        tags: the numbers of tags to time, each with length `length`.
    """

    batch: int
    length: int
    lengths: tuple[int, ...]
    tag: int
    tags: tuple[int, ...]

    @classmethod
    def read(cls, read: TableReader) -> Scaling:
        """Read the sizes from a TOML table."""
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
        """All pairs of a length and a number of tags."""
        both = [(n, self.tag) for n in self.lengths] + [(self.length, t) for t in self.tags]
        return list(dict.fromkeys(both))


@dataclass(frozen=True)
class TimingPlan:
    """A table of times.

    Args:
        name, title: name and title of the table.
        training, decoding: experiments whose corpora and networks are timed.
        objectives: objectives to time; speed-ups are relative to the first one.
        decoders: decoders to time; speed-ups are relative to the first one.
        backends: each method is timed on each backend.
        batch: number of sentences in a batch.
        batches: number of batches; their sentence lengths are spread over those of the corpus.
        rounds: number of rounds of the timer.
        scaling: sizes of the random chains that are timed without a network.
        paper: (measure, experiment, network, corpus, method) -> the paper's speed-up.
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
        """Return the plan with the values of a file; errors name the key."""
        read = TableReader(values, error=ExperimentError)
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
        """The names of the experiments whose corpora and networks are timed."""
        return tuple(dict.fromkeys((*self.training, *self.decoding)))

    def methods(self, measure: str) -> tuple[str, ...]:
        """Return the methods of a measure, "training" or "decoding"."""
        return self.objectives if measure == "training" else self.decoders


@dataclass(frozen=True)
class AnalysisPlan:
    """An analysis of projections on the scores of trained models.

    Args:
        name, title: name and title of the table.
        sources: experiments whose models are analysed.
        objectives, seeds: models with these objectives and seeds are analysed.
        sentences: maximum number of test sentences.
        iterations: the numbers of iterations to analyse.
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
        """Return the plan with the values of a file; errors name the key."""
        read = TableReader(values, error=ExperimentError)
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


def _speed_ups(tables: Sequence[TableReader]) -> dict[tuple[str, str, str, str, str], float]:
    numbers = {}
    for read in tables:
        measure, source, network = read.text("measure"), read.text("table"), read.text("network")
        corpora = read.texts("corpora")
        for method, *values in read.rows("rows", 1 + len(corpora)):
            for corpus, value in zip(corpora, values, strict=True):
                numbers[measure, source, network, corpus, method] = float(value)
        read.finish()
    return numbers
