"""What projections come to on the scores of trained models: errors of the marginals, agreement
with Viterbi, certificates; with and without relaxation and the half-split gauge."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..chain import LinearChain
from ..data import LengthBatches, read
from ..inference import Bregman, viterbi
from ..tagging import Tagger
from ..tasks import Example
from ..training import Event
from .grid import Selection, cells
from .jobs import Job, Workplace
from .log import Row
from .machine import circumstances
from .methods import TEMPERATURE, agreement
from .plans import AnalysisPlan
from .running import TrainingJob, is_trained

__all__ = ["SETTINGS", "AnalysisJob", "analyse", "analysis_jobs", "certified"]

SETTINGS: dict[str, Callable[[int], Bregman]] = {
    "paper": Bregman.paper,
    "right gauge": lambda k: Bregman(k, relaxation=1.0, gauge="right"),
    "right gauge, relaxed": lambda k: Bregman(k, gauge="right"),
    "half-split": lambda k: Bregman(k, relaxation=1.0),
    "half-split, relaxed": Bregman,
}
"""From a number of iterations to a solver. "paper" differs from "right gauge" in the order of the
positions, and takes marginals from the outgoing mass; the others take the geometric mean."""

TEMPERATURES = (1.0, TEMPERATURE)
"""Of marginals, and of decoding."""

# Where the converged marginals come from. Sentences that do not get there are not compared.
_CONVERGED = Bregman(20_000, tolerance=1e-7, relaxation=1.5)
_ENOUGH = 1e-5

# Tokens that are solved at once, padding included: edge marginals are [n, T, T], in float64.
_BATCH_TOKENS = 1024


@dataclass(frozen=True)
class AnalysisJob(Job):
    """One trained model."""

    plan: AnalysisPlan
    trained: TrainingJob
    workplace: Workplace

    @property
    def key(self) -> dict[str, Any]:
        cell = self.trained.cell.key
        return {**cell, "table": self.plan.name, "source": cell["table"]}

    @property
    def title(self) -> str:
        return f"{self.plan.name} of {self.trained.title}"

    @property
    def folder(self) -> Path:
        return self.trained.folder

    def is_done(self, row: Row | None) -> bool:
        return row is not None

    def missing(self, row: Row | None) -> str | None:
        if not is_trained(self.folder):
            return f"there is no trained model in {self.folder}"
        return self.trained.files.missing

    def run(self, row: Row | None) -> Generator[Event, None, Row]:
        yield from ()
        config = self.trained.config
        tagger = Tagger.load(self.folder, config.training.device)
        sentences = list(read(self.trained.files.paths["test"], config.data.format))
        examples = [e for e in map(tagger.task.example, sentences) if len(e)]
        count = min(self.plan.sentences, len(examples))
        chosen = [examples[i * len(examples) // count] for i in range(count)]
        return {
            **circumstances(tagger.device),
            "sentences": len(chosen),
            "tokens": sum(map(len, chosen)),
            "results": analyse(_chains(tagger, chosen), self.plan.iterations),
        }


def analysis_jobs(plan: AnalysisPlan, selection: Selection, workplace: Workplace) -> Iterator[Job]:
    """All models of the plan that are chosen."""
    wanted = Selection(
        selection.languages,
        selection.layers,
        selection.seeds or plan.seeds,
        selection.objectives or plan.objectives,
    )
    for source in plan.sources:
        experiment = workplace.experiments[source]
        for cell in cells(experiment, wanted):
            yield AnalysisJob(plan, TrainingJob(cell, workplace), workplace)


@torch.no_grad()
def analyse(chains: Iterable[LinearChain], iterations: Sequence[int]) -> list[dict[str, Any]]:
    """One entry per setting, temperature and number of iterations, over all sentences.

    `error` and `largest_error` are half the L1 distance of the tag marginals of a position to the
    converged ones: the mean over all positions, and the mean over sentences of the largest. At the
    temperature of decoding there are also `agreement` (tokens), `same` and `certified` (sentences),
    as shares.
    """
    sums: dict[tuple[str, float, int], dict[str, float]] = {}
    totals = dict.fromkeys(("tokens", "sentences"), 0)
    compared: dict[float, dict[str, int]] = {
        tau: dict.fromkeys(("tokens", "sentences"), 0) for tau in TEMPERATURES
    }
    for chain in chains:
        best = viterbi(chain)[1]
        totals["tokens"] += int(chain.lengths.sum())
        totals["sentences"] += len(chain)
        for tau in TEMPERATURES:
            problem = chain / tau
            limit = _CONVERGED(problem)
            settled = limit.residual <= _ENOUGH
            compared[tau]["tokens"] += int(chain.lengths[settled].sum())
            compared[tau]["sentences"] += int(settled.sum())
            for name, solver in SETTINGS.items():
                for k in iterations:
                    solution = solver(k)(problem)
                    far = (solution.tag_marginals - limit.tag_marginals).abs().sum(-1)[settled] / 2
                    found = {"error": float(far.sum()), "largest_error": float(far.amax(1).sum())}
                    if tau == TEMPERATURE:
                        tags, same = agreement(solution.best_tags(), best)
                        proved = int(certified(solution.edge_marginals, chain.lengths).sum())
                        found |= {"agreement": tags, "same": same, "certified": proved}
                    total = sums.setdefault((name, tau, k), dict.fromkeys(found, 0.0))
                    for key, value in found.items():
                        total[key] += value
    per = {
        "error": "tokens",
        "largest_error": "sentences",
        "agreement": "tokens",
        "same": "sentences",
        "certified": "sentences",
    }
    return [
        {
            "setting": name,
            "temperature": tau,
            "iterations": k,
            "unsettled": totals["sentences"] - compared[tau]["sentences"],
        }
        | {
            key: _digits(value / max(1, (compared[tau] if "error" in key else totals)[per[key]]))
            for key, value in total.items()
        }
        for (name, tau, k), total in sums.items()
    ]


def certified(edges: Tensor, lengths: Tensor) -> Tensor:
    """[B]: whether the most probable arcs of all edges join up to a path, which then is a best one.

    Args:
        edges: edge marginals [B, n-1, T, T] of a chain, at any temperature and iteration.
        lengths: [B].
    """
    batch, m, tags = edges.shape[:3]
    arcs = edges.reshape(batch, m, tags * tags).argmax(-1)
    source, target = arcs // tags, arcs % tags
    edge = torch.arange(1, m, device=lengths.device) < (lengths - 1).unsqueeze(1)
    return ((target[:, :-1] == source[:, 1:]) | ~edge).all(1)


def _chains(tagger: Tagger, examples: Sequence[Example]) -> Iterator[LinearChain]:
    """The scores of these sentences, in float64."""
    tagger.model.eval()
    inputs = [tagger.reader(example.tokens) for example in examples]
    for rows in LengthBatches(list(map(len, inputs)), tokens=_BATCH_TOKENS).in_order():
        limits = [tagger.task.limits(examples[row]) for row in rows]
        with torch.no_grad():
            yield tagger.chain([inputs[row] for row in rows], limits).double()


def _digits(value: float) -> float:
    return float(f"{value:.6g}")
