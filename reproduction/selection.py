"""List the training runs of a table, and select some of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .experiment import Experiment, ExperimentError
from .methods import check_objective

__all__ = ["RunSpec", "Selection", "groups", "run_specs"]


@dataclass(frozen=True)
class RunSpec:
    """One training run: a corpus, a model, an objective and a seed.

    Args:
        table: name of the experiment.
        corpus, network, variant: names in the experiment.
        objective: name of the training objective.
        seed: seed of the random numbers.
    """

    table: str
    corpus: str
    network: str
    variant: str
    objective: str
    seed: int

    @property
    def key(self) -> dict[str, Any]:
        """Fields that identify the run in the log."""
        return dataclasses.asdict(self)

    @property
    def title(self) -> str:
        parts = (self.table, self.corpus, self.network, self.variant, self.objective)
        return " ".join(part for part in (*parts, f"seed {self.seed}") if part)

    def folder(self, output: Path) -> Path:
        """Return the folder of the run below the output folder."""
        variant = f"-{self.variant}" if self.variant else ""
        group = f"{self.corpus}-{self.network}{variant}"
        return output / self.table / group / f"{self.objective}-{self.seed}"


@dataclass(frozen=True)
class Selection:
    """The selected corpora, networks, seeds and objectives; None selects those of the paper."""

    languages: tuple[str, ...] | None = None
    layers: tuple[str, ...] | None = None
    seeds: tuple[int, ...] | None = None
    objectives: tuple[str, ...] | None = None

    def check(self, experiments: Sequence[Experiment]) -> None:
        """Raise ExperimentError if a selected name occurs in none of these experiments."""
        corpora = [name for e in experiments for name in e.corpora]
        networks = [name for e in experiments for name in e.networks]
        for option, chosen, known in (
            ("languages", self.languages, corpora),
            ("layers", self.layers, networks),
        ):
            for name in chosen or ():
                if name not in known:
                    unique = ", ".join(dict.fromkeys(known))
                    raise ExperimentError(f"{option}: unknown name {name!r}; expected {unique}")
        for objective in self.objectives or ():
            try:
                check_objective(objective)
            except ValueError as error:
                raise ExperimentError(f"objectives: {error}") from error


def run_specs(experiment: Experiment, selection: Selection) -> Iterator[RunSpec]:
    """Yield the selected runs: first all runs with the first seed, then those with the second."""
    seeds = experiment.seeds if selection.seeds is None else selection.seeds
    objectives = selection.objectives or experiment.objectives
    for seed in seeds:
        for corpus, network, variant in groups(experiment, selection):
            only = experiment.variants[variant].seeds
            if only and seed not in only:
                continue
            for objective in objectives:
                yield RunSpec(experiment.name, corpus, network, variant, objective, seed)


def groups(experiment: Experiment, selection: Selection) -> Iterator[tuple[str, str, str]]:
    """Yield the selected combinations of corpus, network and variant."""
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
