"""Time training and decoding with the network, and inference alone on random chains."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from bcrf.chain import LinearChain
from bcrf.losses import loss, partial_loss
from bcrf.tagger import Tagger, choose_device
from bcrf.tagger.data import LengthBatches
from bcrf.tagger.files import LogRow
from bcrf.tagger.nn import TaggerModel
from bcrf.tagger.training import Config, Event
from bcrf.tagger.training.training_data import (
    TrainingData,
    TrainingItem,
    prepare,
    stack_targets,
)
from measurement.timer import interleave_batches, summary

from .experiment import Experiment
from .jobs import Job, RunContext, describe_machine
from .methods import decoder, loss_solver
from .network_launches import decoding_launches, training_launches
from .plans import TimingPlan
from .selection import RunSpec, Selection, groups
from .training_job import TrainingJob, is_trained, portable_config

__all__ = ["CHAINS", "ScalingJob", "TimingJob", "spread_batches", "timing_jobs"]


@dataclass(frozen=True)
class TimingJob(Job):
    """Time training and decoding of one corpus and network."""

    plan: TimingPlan
    source: str
    corpus: str
    network: str
    variant: str
    context: RunContext

    @property
    def key(self) -> dict[str, Any]:
        return {
            "table": self.plan.name,
            "source": self.source,
            "corpus": self.corpus,
            "network": self.network,
            **_hardware_key(self.context.device),
        }

    @property
    def title(self) -> str:
        return f"{self.plan.name} {self.source} {self.corpus} {self.network}"

    @property
    def folder(self) -> Path:
        name = f"{self.source}-{self.corpus}-{self.network}"
        return self.context.output / self.plan.name / name

    @property
    def _experiment(self) -> Experiment:
        return self.context.experiments[self.source]

    def is_done(self, row: LogRow | None) -> bool:
        return row is not None

    def missing(self, row: LogRow | None) -> str | None:
        return self._training_job(0).files.missing

    def run(self, row: LogRow | None) -> Generator[Event, None, LogRow]:
        yield from ()
        job = self._trained()
        config = (job or self._training_job(self._experiment.seeds[0])).config
        corpus = TrainingData.read(config.data, config.model, config.training.seed)
        device = config.training.device
        tagger = _untrained(corpus, config) if job is None else Tagger.load(job.folder, device)
        found: LogRow = {
            **describe_machine(tagger.device),
            "weights": "fresh" if job is None else "trained",
            "config": portable_config(config),
            "batch": self.plan.batch,
            "batches": self.plan.batches,
        }
        items = prepare(corpus.train, corpus.task, tagger.reader)
        if self.source in self.plan.training:
            found["training"] = self._measure(items, _training(tagger), self.plan.objectives)
            found["training"]["launches"] = training_launches(
                tagger, self._middle(items), self.plan.objectives
            )
        if self.source in self.plan.decoding:
            assert corpus.dev is not None
            dev = [
                TrainingItem(tagger.reader(example.tokens), [], corpus.task.permitted_tags(example))
                for example in corpus.dev
                if len(example)
            ]
            found["decoding"] = self._measure(dev, _decoding(tagger), self.plan.decoders)
            found["decoding"]["launches"] = decoding_launches(
                tagger, self._middle(dev), self.plan.decoders
            )
        return found

    def _middle(self, items: Sequence[TrainingItem]) -> list[TrainingItem]:
        """Return the batch of medium length, for which kernel launches are counted."""
        batches = spread_batches(items, self.plan.batch, self.plan.batches)
        return batches[len(batches) // 2]

    def _measure(
        self, items: Sequence[TrainingItem], task: _Task, methods: Sequence[str]
    ) -> dict[str, dict[str, Any]]:
        """Return the seconds of each backend and method, measured in interleaved rounds."""
        batches = spread_batches(items, self.plan.batch, self.plan.batches)
        names = [(backend, method) for backend in self.plan.backends for method in methods]
        functions = {f"{b} {m}": task(batches, m, b) for b, m in names}
        device = choose_device(self.context.device)
        seconds = interleave_batches(functions, len(batches), self.plan.rounds, device)
        tokens = sum(len(item.inputs) for batch in batches for item in batch)
        found: dict[str, Any] = {"tokens": tokens}
        for backend, method in names:
            found.setdefault(backend, {})[method] = summary(seconds[f"{backend} {method}"])
        return found

    def _training_job(self, seed: int) -> TrainingJob:
        spec = RunSpec(self.source, self.corpus, self.network, self.variant, "crf", seed)
        return TrainingJob(spec, self.context)

    def _trained(self) -> TrainingJob | None:
        """Return the finished training run of a CRF, if any.

        We prefer a trained model because times may depend on the scores.
        """
        for seed in self._experiment.seeds:
            job = self._training_job(seed)
            if is_trained(job.folder):
                return job
        return None


def timing_jobs(plan: TimingPlan, selection: Selection, context: RunContext) -> Iterator[Job]:
    """Yield the jobs of the selected corpora and networks.

    Without a selection, the jobs that time random chains follow.
    """
    for source in plan.sources:
        experiment = context.experiments[source]
        first = next(iter(experiment.variants))
        for corpus, network, variant in groups(experiment, selection):
            if variant == first:
                yield TimingJob(plan, source, corpus, network, variant, context)
    if selection == Selection():
        for length, tags in plan.scaling.sizes:
            yield ScalingJob(plan, length, tags, context)


def spread_batches(
    items: Sequence[TrainingItem], size: int, count: int
) -> list[list[TrainingItem]]:
    """Return `count` batches of sentences of similar length, spread over all lengths."""
    plan = LengthBatches([len(item.inputs) for item in items], sentences=size).in_order()
    if len(plan) > count:
        plan = [plan[(2 * i + 1) * len(plan) // (2 * count)] for i in range(count)]
    return [[items[index] for index in batch] for batch in plan]


_Task = Callable[[list[list[TrainingItem]], str, str], Callable[[int], object]]
"""Function of (batches, method, backend). It returns a function that processes the i-th batch."""


def _training(tagger: Tagger) -> _Task:
    """Return the task that runs network and loss, forward and backward, without the optimiser."""

    def task(
        batches: list[list[TrainingItem]], method: str, backend: str
    ) -> Callable[[int], object]:
        solver = loss_solver(method, backend)

        def step(number: int) -> None:
            items = batches[number]
            tagger.model.train()
            tagger.model.zero_grad(set_to_none=True)
            chain = tagger.chain([i.inputs for i in items], [i.permitted for i in items])
            target = stack_targets(items, chain.max_length).to(tagger.device)
            kind = partial_loss if target.dtype == torch.bool else loss
            kind(solver, chain, target).mean().backward()  # type: ignore[no-untyped-call]

        return step

    return task


def _decoding(tagger: Tagger) -> _Task:
    """Return the task that runs the network forward and decodes."""

    def task(
        batches: list[list[TrainingItem]], method: str, backend: str
    ) -> Callable[[int], object]:
        decode = decoder(method, backend)

        @torch.no_grad()
        def step(number: int) -> None:
            items = batches[number]
            tagger.model.eval()
            decode(tagger.chain([i.inputs for i in items], [i.permitted for i in items]))

        return step

    return task


def _untrained(corpus: TrainingData, config: Config) -> Tagger:
    """Return a tagger with random weights."""
    sizes = corpus.vocabularies.sizes(len(corpus.task.labels))
    model = TaggerModel(config.model, sizes, corpus.task.structure)
    model.to(choose_device(config.training.device))
    return Tagger(model, corpus.task, corpus.vocabularies)


def _hardware_key(device: str) -> dict[str, Any]:
    """Return the device and, for the CPU, the threads. Each combination has rows of its own."""
    kind = choose_device(device)
    if kind.type == "cuda":
        return {"device": torch.cuda.get_device_name(kind)}
    return {"device": "cpu", "threads": torch.get_num_threads()}


# Inference alone, without a network

CHAINS = "chains"
"""The field `source` of rows that belong to no experiment."""


@dataclass(frozen=True)
class ScalingJob(Job):
    """Time inference alone on random chains of one size."""

    plan: TimingPlan
    length: int
    tags: int
    context: RunContext

    @property
    def key(self) -> dict[str, Any]:
        size = {"length": self.length, "tags": self.tags, "batch": self.plan.scaling.batch}
        return {
            "table": self.plan.name,
            "source": CHAINS,
            **size,
            **_hardware_key(self.context.device),
        }

    @property
    def title(self) -> str:
        return f"{self.plan.name}: {self.length} positions, {self.tags} tags"

    @property
    def folder(self) -> Path:
        return self.context.output / self.plan.name / f"chains-{self.length}-{self.tags}"

    def is_done(self, row: LogRow | None) -> bool:
        return row is not None

    def missing(self, row: LogRow | None) -> str | None:
        return None

    def run(self, row: LogRow | None) -> Generator[Event, None, LogRow]:
        yield from ()
        device = choose_device(self.context.device)
        plan = self.plan
        unary, pairs, gold = _random_problem(plan.scaling.batch, self.length, self.tags, device)
        functions: dict[str, Callable[[int], object]] = {}
        for backend in plan.backends:
            for method in plan.objectives:
                functions[f"training {backend} {method}"] = _chain_loss(
                    unary, pairs, gold, method, backend
                )
            for method in plan.decoders:
                functions[f"decoding {backend} {method}"] = _chain_decoding(
                    unary, pairs, method, backend
                )
        found: dict[str, Any] = {}
        for name, seconds in interleave_batches(functions, 1, plan.rounds, device).items():
            measure, backend, method = name.split(" ")
            found.setdefault(measure, {}).setdefault(backend, {})[method] = summary(seconds)
        return {**describe_machine(device), **found}


def _random_problem(
    batch: int, n: int, tags: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return unary and per-pair scores N(0, 1), and random gold tags."""
    generator = torch.Generator().manual_seed(0)
    unary = torch.randn(batch, n, tags, generator=generator)
    pairs = torch.randn(batch, n - 1, tags, tags, generator=generator)
    gold = torch.randint(tags, (batch, n), generator=generator)
    return unary.to(device), pairs.to(device), gold.to(device)


def _chain_loss(
    unary: torch.Tensor, pairs: torch.Tensor, gold: torch.Tensor, method: str, backend: str
) -> Callable[[int], object]:
    solver = loss_solver(method, backend)

    def step(_: int) -> object:
        scores = [scores.detach().requires_grad_() for scores in (unary, pairs)]
        value = loss(solver, LinearChain(*scores), gold).sum()
        return torch.autograd.grad(value, scores)

    return step


def _chain_decoding(
    unary: torch.Tensor, pairs: torch.Tensor, method: str, backend: str
) -> Callable[[int], object]:
    find = decoder(method, backend)
    chain = LinearChain(unary, pairs)
    return lambda _: find(chain)
