"""The runs of a table, and the choice of some of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .experiment import Experiment, ExperimentError
from .methods import check_objective

__all__ = ["Cell", "Selection", "cells", "groups"]


@dataclass(frozen=True)
class Cell:
    """A model to be trained."""

    table: str
    corpus: str
    network: str
    variant: str
    objective: str
    seed: int

    @property
    def key(self) -> dict[str, Any]:
        """By which it is found in the log."""
        return dataclasses.asdict(self)

    @property
    def title(self) -> str:
        parts = (self.table, self.corpus, self.network, self.variant, self.objective)
        return " ".join(part for part in (*parts, f"seed {self.seed}") if part)

    def folder(self, output: Path) -> Path:
        """Of its training run."""
        variant = f"-{self.variant}" if self.variant else ""
        group = f"{self.corpus}-{self.network}{variant}"
        return output / self.table / group / f"{self.objective}-{self.seed}"


@dataclass(frozen=True)
class Selection:
    """Which corpora, networks, seeds and objectives are wanted; None: those of the paper."""

    languages: tuple[str, ...] | None = None
    layers: tuple[str, ...] | None = None
    seeds: tuple[int, ...] | None = None
    objectives: tuple[str, ...] | None = None

    def check(self, experiments: Sequence[Experiment]) -> None:
        """Raise where a name is known to none of these experiments."""
        corpora = [name for e in experiments for name in e.corpora]
        networks = [name for e in experiments for name in e.networks]
        for option, chosen, known in (
            ("languages", self.languages, corpora),
            ("layers", self.layers, networks),
        ):
            for name in chosen or ():
                if name not in known:
                    unique = ", ".join(dict.fromkeys(known))
                    raise ExperimentError(f"{option}: {name!r} is none of {unique}")
        for objective in self.objectives or ():
            try:
                check_objective(objective)
            except ValueError as error:
                raise ExperimentError(f"objectives: {error}") from error


def cells(experiment: Experiment, selection: Selection) -> Iterator[Cell]:
    """The chosen runs: all with the first seed, then all with the next."""
    seeds = experiment.seeds if selection.seeds is None else selection.seeds
    objectives = selection.objectives or experiment.objectives
    for seed in seeds:
        for corpus, network, variant in groups(experiment, selection):
            only = experiment.variants[variant].seeds
            if only and seed not in only:
                continue
            for objective in objectives:
                yield Cell(experiment.name, corpus, network, variant, objective, seed)


def groups(experiment: Experiment, selection: Selection) -> Iterator[tuple[str, str, str]]:
    """The chosen corpora, networks and variants."""
    for corpus in experiment.corpora.values():
        if selection.languages is None:
            if corpus.extra:
                continue
        elif corpus.name not in selection.languages:
            continue
        for name in corpus.networks or experiment.networks:
            if selection.layers is None:
                if experiment.networks[name].extra and not corpus.networks:
                    continue
            elif name not in selection.layers:
                continue
            for variant in experiment.variants:
                yield corpus.name, name, variant
