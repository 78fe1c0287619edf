"""How long training and decoding take, with the network, as in the paper's tables of speed-ups."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..data import LengthBatches
from ..losses import loss, partial_loss
from ..nn import TaggerModel
from ..tagging import Tagger, choose_device
from ..training import Config, Event
from ..training.corpus import Corpus, Item, prepare, stack_targets
from .experiment import Experiment
from .grid import Cell, Selection, groups
from .jobs import Job, Workplace
from .log import Row
from .machine import circumstances, place
from .methods import decoder, loss_solver
from .plans import TimingPlan
from .running import TrainingJob, is_trained, portable
from .scaling import ScalingJob
from .stopwatch import in_turns, summary

__all__ = ["TimingJob", "timing_jobs"]


@dataclass(frozen=True)
class TimingJob(Job):
    """One corpus and network."""

    plan: TimingPlan
    source: str
    corpus: str
    network: str
    variant: str
    workplace: Workplace

    @property
    def key(self) -> dict[str, Any]:
        return {
            "table": self.plan.name,
            "source": self.source,
            "corpus": self.corpus,
            "network": self.network,
            **place(self.workplace.device),
        }

    @property
    def title(self) -> str:
        return f"{self.plan.name} {self.source} {self.corpus} {self.network}"

    @property
    def folder(self) -> Path:
        name = f"{self.source}-{self.corpus}-{self.network}"
        return self.workplace.output / self.plan.name / name

    @property
    def _experiment(self) -> Experiment:
        return self.workplace.experiments[self.source]

    def is_done(self, row: Row | None) -> bool:
        return row is not None

    def missing(self, row: Row | None) -> str | None:
        return self._training_job(0).files.missing

    def run(self, row: Row | None) -> Generator[Event, None, Row]:
        yield from ()
        job = self._trained()
        config = (job or self._training_job(self._experiment.seeds[0])).config
        corpus = Corpus.read(config.data, config.model, config.training.seed)
        device = config.training.device
        tagger = _fresh(corpus, config) if job is None else Tagger.load(job.folder, device)
        found: Row = {
            **circumstances(tagger.device),
            "weights": "fresh" if job is None else "trained",
            "config": portable(config),
            "batch": self.plan.batch,
            "batches": self.plan.batches,
        }
        items = prepare(corpus.train, corpus.task, tagger.reader)
        if self.source in self.plan.training:
            found["training"] = self._measure(items, _training(tagger), self.plan.objectives)
        if self.source in self.plan.decoding:
            assert corpus.dev is not None
            dev = [
                Item(tagger.reader(example.tokens), [], corpus.task.limits(example))
                for example in corpus.dev
                if len(example)
            ]
            found["decoding"] = self._measure(dev, _decoding(tagger), self.plan.decoders)
        return found

    def _measure(
        self, items: Sequence[Item], task: _Task, methods: Sequence[str]
    ) -> dict[str, dict[str, Any]]:
        """Seconds by backend and method, all in turns."""
        batches = spread(items, self.plan.batch, self.plan.batches)
        names = [(backend, method) for backend in self.plan.backends for method in methods]
        functions = {f"{b} {m}": task(batches, m, b) for b, m in names}
        device = choose_device(self.workplace.device)
        seconds = in_turns(functions, len(batches), self.plan.rounds, device)
        tokens = sum(len(item.inputs) for batch in batches for item in batch)
        found: dict[str, Any] = {"tokens": tokens}
        for backend, method in names:
            found.setdefault(backend, {})[method] = summary(seconds[f"{backend} {method}"])
        return found

    def _training_job(self, seed: int) -> TrainingJob:
        cell = Cell(self.source, self.corpus, self.network, self.variant, "crf", seed)
        return TrainingJob(cell, self.workplace)

    def _trained(self) -> TrainingJob | None:
        """The training run of a CRF, if there is one: times may depend on the scores."""
        for seed in self._experiment.seeds:
            job = self._training_job(seed)
            if is_trained(job.folder):
                return job
        return None


def timing_jobs(plan: TimingPlan, selection: Selection, workplace: Workplace) -> Iterator[Job]:
    """All that the plan asks for, of the chosen corpora and networks, and the scaling."""
    for source in plan.sources:
        experiment = workplace.experiments[source]
        first = next(iter(experiment.variants))
        for corpus, network, variant in groups(experiment, selection):
            if variant == first:
                yield TimingJob(plan, source, corpus, network, variant, workplace)
    if selection == Selection():
        for length, tags in plan.scaling.sizes:
            yield ScalingJob(plan, length, tags, workplace)


def spread(items: Sequence[Item], size: int, count: int) -> list[list[Item]]:
    """`count` batches of sentences of similar length: short, middling and long ones, as they come
    in the corpus."""
    plan = LengthBatches([len(item.inputs) for item in items], sentences=size).in_order()
    if len(plan) > count:
        plan = [plan[(2 * i + 1) * len(plan) // (2 * count)] for i in range(count)]
    return [[items[index] for index in batch] for batch in plan]


_Task = Callable[[list[list[Item]], str, str], Callable[[int], object]]
"""From batches, a method and a backend to what is done with the batch of a number."""


def _training(tagger: Tagger) -> _Task:
    """Forward and backward, of network and loss; no step of the optimiser."""

    def task(batches: list[list[Item]], method: str, backend: str) -> Callable[[int], object]:
        solver = loss_solver(method, backend)

        def step(number: int) -> None:
            items = batches[number]
            tagger.model.train()
            tagger.model.zero_grad(set_to_none=True)
            chain = tagger.chain([i.inputs for i in items], [i.limits for i in items])
            target = stack_targets(items, chain.max_length).to(tagger.device)
            kind = partial_loss if target.dtype == torch.bool else loss
            kind(solver, chain, target).mean().backward()  # type: ignore[no-untyped-call]

        return step

    return task


def _decoding(tagger: Tagger) -> _Task:
    """Forward, of network and decoder."""

    def task(batches: list[list[Item]], method: str, backend: str) -> Callable[[int], object]:
        decode = decoder(method, backend)

        @torch.no_grad()
        def step(number: int) -> None:
            items = batches[number]
            tagger.model.eval()
            decode(tagger.chain([i.inputs for i in items], [i.limits for i in items]))

        return step

    return task


def _fresh(corpus: Corpus, config: Config) -> Tagger:
    sizes = corpus.vocabularies.sizes(len(corpus.task.labels))
    model = TaggerModel(config.model, sizes, corpus.task.structure)
    model.to(choose_device(config.training.device))
    return Tagger(model, corpus.task, corpus.vocabularies)
