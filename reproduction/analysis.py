"""Analyse the projections on the scores of trained models.

For each number of iterations we measure the error of the marginals, the agreement with Viterbi and
the share of certified sentences. Each is measured with and without relaxation, and with and without
the half-split gauge.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bcrf.chain import LinearChain
from bcrf.inference import Bregman, viterbi
from bcrf.tagger import Tagger
from bcrf.tagger.data import read
from bcrf.tagger.files import LogRow
from bcrf.tagger.tasks import Example
from bcrf.tagger.training import Event

from .batches import chains
from .jobs import Job, RunContext, describe_machine
from .methods import TEMPERATURE, agreement
from .plans import AnalysisPlan
from .selection import Selection, run_specs
from .training_job import TrainingJob, is_trained

__all__ = ["SETTINGS", "AnalysisJob", "analyse", "analysis_jobs", "certified"]

SETTINGS: dict[str, Callable[[int], Bregman]] = {
    "paper": Bregman.paper,
    "right gauge": lambda k: Bregman(k, relaxation=1.0, gauge="right"),
    "right gauge, relaxed": lambda k: Bregman(k, gauge="right"),
    "half-split": lambda k: Bregman(k, relaxation=1.0),
    "half-split, relaxed": Bregman,
}
"""Name of a setting -> function that returns the solver with a given number of iterations.

"paper" and "right gauge" visit the positions in different orders. "paper" computes marginals from
the outgoing mass; all other settings take the geometric mean of incoming and outgoing mass."""

TEMPERATURES = (1.0, TEMPERATURE)
"""The temperature of marginal inference, and the temperature of decoding."""

# The solver of the converged marginals. Errors leave out sentences that do not converge.
_CONVERGED = Bregman(20_000, tolerance=1e-7, relaxation=1.5)
_CONVERGED_RESIDUAL = 1e-5

# Maximum number of tokens in a batch, including padding. It is small because the edge marginals of
# a sentence are [n-1, T, T] in float64.
_BATCH_TOKENS = 1024


@dataclass(frozen=True)
class AnalysisJob(Job):
    """Analyse one trained model."""

    plan: AnalysisPlan
    trained: TrainingJob
    context: RunContext

    @property
    def key(self) -> dict[str, Any]:
        run = self.trained.spec.key
        return {**run, "table": self.plan.name, "source": run["table"]}

    @property
    def title(self) -> str:
        return f"{self.plan.name} of {self.trained.title}"

    @property
    def folder(self) -> Path:
        return self.trained.folder

    def is_done(self, row: LogRow | None) -> bool:
        return row is not None

    def missing(self, row: LogRow | None) -> str | None:
        if not is_trained(self.trained.model_folder):
            return f"there is no trained model in {self.folder}; train it first"
        return self.trained.files.missing

    def run(self, row: LogRow | None) -> Generator[Event, None, LogRow]:
        yield from ()
        config = self.trained.config
        tagger = Tagger.load(self.trained.model_folder, config.training.device)
        sentences = list(read(self.trained.files.paths["test"], config.data.format))
        examples = [e for e in map(tagger.task.example, sentences) if len(e)]
        count = min(self.plan.sentences, len(examples))
        chosen = [examples[i * len(examples) // count] for i in range(count)]
        return {
            **describe_machine(tagger.device),
            "sentences": len(chosen),
            "tokens": sum(map(len, chosen)),
            "results": analyse(_wide_chains(tagger, chosen), self.plan.iterations),
        }


def analysis_jobs(plan: AnalysisPlan, selection: Selection, context: RunContext) -> Iterator[Job]:
    """Yield the jobs of the selected models of a plan."""
    wanted = Selection(
        selection.languages,
        selection.layers,
        selection.seeds or plan.seeds,
        selection.objectives or plan.objectives,
    )
    for source in plan.sources:
        experiment = context.experiments[source]
        for spec in run_specs(experiment, wanted):
            yield AnalysisJob(plan, TrainingJob(spec, context), context)


@torch.no_grad()
def analyse(chains: Iterable[LinearChain], iterations: Sequence[int]) -> list[dict[str, Any]]:
    """Return one entry per setting, temperature and number of iterations, over all sentences.

    The error of a position is half the L1 distance between its tag marginals and the converged
    ones. `error` is the mean error of all positions. `largest_error` is the largest error in a
    sentence, averaged over sentences. An entry at the temperature of decoding has three more
    fields: `agreement` is the share of tokens with Viterbi's tag, `same` is the share of sentences
    in which all tags are Viterbi's, and `certified` is the share of certified sentences.
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
            reference = _CONVERGED(problem)
            converged = reference.residual <= _CONVERGED_RESIDUAL
            compared[tau]["tokens"] += int(chain.lengths[converged].sum())
            compared[tau]["sentences"] += int(converged.sum())
            for name, solver in SETTINGS.items():
                for k in iterations:
                    solution = solver(k)(problem)
                    difference = (solution.tag_marginals - reference.tag_marginals)[converged]
                    errors = difference.abs().sum(-1) / 2
                    found = {
                        "error": float(errors.sum()),
                        "largest_error": float(errors.amax(1).sum()),
                    }
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
    """Return whether each sentence is certified [B].

    A sentence is certified if the most probable arcs between its adjacent positions form a path.
    No other path then has a higher score.

    Args:
        edges: edge marginals [B, n-1, T, T] of a chain, at any temperature and iteration.
        lengths: [B].
    """
    batch, m, tags = edges.shape[:3]
    arcs = edges.reshape(batch, m, tags * tags).argmax(-1)
    source, target = arcs // tags, arcs % tags
    edge = torch.arange(1, m, device=lengths.device) < (lengths - 1).unsqueeze(1)
    return ((target[:, :-1] == source[:, 1:]) | ~edge).all(1)


@torch.no_grad()
def _wide_chains(tagger: Tagger, examples: Sequence[Example]) -> Iterator[LinearChain]:
    """Yield chains with the scores of these sentences in float64, batch by batch."""
    for _, chain in chains(tagger, examples, _BATCH_TOKENS):
        yield chain.double()


def _digits(value: float) -> float:
    return float(f"{value:.6g}")
