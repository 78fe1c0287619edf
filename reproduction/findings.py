"""Check claims about the results against the logs, and show the numbers.

`claims.py` lists the claims. Each kind of claim is a class here; its `finding` collects the numbers
of all groups of runs that have them.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from .accuracy_tables import corpus_title, run_groups
from .experiment import Experiment
from .experiment_set import ExperimentSet
from .methods import Objective
from .plans import TimingPlan
from .results import Results, RunGroup, Statistic
from .timing_tables import TimingResults

__all__ = [
    "BestTemperatureCheck",
    "Check",
    "Claim",
    "Evidence",
    "Finding",
    "PaperCheck",
    "SpeedCheck",
]

Pair = tuple[str, str]
"""An objective and a decoder."""


@dataclass(frozen=True)
class Evidence:
    """The numbers of one group of runs.

    Args:
        text: the numbers as the report shows them.
        holds: whether the numbers support the claim.
        ours: our number: a difference of scores or a ratio of times.
        paper: the same number in the paper, if it has one.
        seeds: the number of seeds; 0 for times.
        margin: the distance of our number to the bound of the claim, in standard deviations over
            seeds; None for a single seed.
    """

    text: str
    holds: bool
    ours: float
    paper: float | None = None
    seeds: int = 0
    margin: float | None = None


@dataclass(frozen=True)
class Finding:
    """A claim with all its evidence.

    Args:
        claim: the claim as a sentence.
        evidence: one entry for each group of runs that has numbers.
        form: format of our numbers.
        paper_form: format of the paper's numbers.
    """

    claim: str
    evidence: list[Evidence]
    form: str = "{:+.2f}"
    paper_form: str = "{:+.1f}"

    @property
    def our_range(self) -> str:
        """Our smallest and largest number."""
        return _range([one.ours for one in self.evidence], self.form)

    @property
    def paper_range(self) -> str:
        """The paper's smallest and largest number, over the groups for which we have numbers."""
        numbers = [one.paper for one in self.evidence if one.paper is not None]
        return _range(numbers, self.paper_form)

    @property
    def seeds(self) -> str:
        """The smallest and largest number of seeds."""
        return _range([one.seeds for one in self.evidence if one.seeds], "{:g}")

    @property
    def verdict(self) -> str:
        """Whether the means support the claim, and by how many standard deviations."""
        if not self.evidence:
            return "not measured"
        failed = [one for one in self.evidence if not one.holds]
        text = f"fails in {len(failed)} of {len(self.evidence)}" if failed else "holds"
        margins = [one.margin for one in failed or self.evidence if one.margin is not None]
        finite = [margin for margin in margins if math.isfinite(margin)]
        return f"{text} (by {_range(finite, '{:.1f}')} sd)" if finite else text


class Claim(Protocol):
    """A claim that can be compared with the logs."""

    @property
    def claim(self) -> str:
        """The claim as a sentence."""

    def finding(self, experiment_set: ExperimentSet, results: Results) -> Finding:
        """Return the claim with its evidence."""


@dataclass(frozen=True)
class Check:
    """A claim about the difference of two scores, `one` - `other`, in percent.

    Args:
        claim: the claim as a sentence.
        tasks: the claim is about experiments with these tasks; None: all experiments.
        pairs: pairs (one, other); each mean difference must be within the bounds.
        low, high: the bounds.
        deviations: the bounds are this many standard deviations of the scores, instead of `low` and
            `high`. Groups with a single seed are then no evidence.
        partial: whether the claim is about partially supervised training.
    """

    claim: str
    tasks: tuple[str, ...] | None
    pairs: tuple[tuple[Pair, Pair], ...]
    low: float = float("-inf")
    high: float = float("inf")
    deviations: float | None = None
    partial: bool = False

    def finding(self, experiment_set: ExperimentSet, results: Results) -> Finding:
        """Return the claim with its evidence."""
        evidence = [
            found
            for experiment, group in _groups(experiment_set, results, self.tasks, self.partial)
            for one, other in self.pairs
            if (found := _evidence(experiment, group, one, other, results, self)) is not None
        ]
        return Finding(self.claim, evidence)


@dataclass(frozen=True)
class BestTemperatureCheck:
    """A claim that two families are equal, each at the temperature that is best on dev.

    Args:
        claim: the claim as a sentence.
        families: the two families of objectives.
        decoder: the decoder of both.
        deviations: the difference of the means must be within this many standard deviations.
    """

    claim: str
    families: tuple[str, str]
    decoder: str
    deviations: float

    def finding(self, experiment_set: ExperimentSet, results: Results) -> Finding:
        """Return the claim with its evidence, for groups with several temperatures of training."""
        evidence = []
        for experiment, group in _groups(experiment_set, results, None, None):
            if all(Objective.parse(n).temperature == 1 for n in results.objectives(group)):
                continue
            best = [_best_on_dev(results, group, family) for family in self.families]
            if best[0] is None or best[1] is None:
                continue
            pairs = ((best[0], self.decoder), (best[1], self.decoder))
            check = Check(self.claim, None, (pairs,), deviations=self.deviations)
            found = _evidence(experiment, group, *pairs, results, check)
            if found is not None:
                evidence.append(found)
        return Finding(self.claim, evidence)


@dataclass(frozen=True)
class PaperCheck:
    """A claim that our scores of an objective are near the paper's.

    Args:
        claim: the claim as a sentence.
        objective: the rows with this objective are compared.
        distance: the largest difference, in percent.
    """

    claim: str
    objective: str
    distance: float

    def finding(self, experiment_set: ExperimentSet, results: Results) -> Finding:
        """Return the claim with one entry for each number of the paper that we have, too."""
        evidence = []
        for experiment, group in _groups(experiment_set, results, None, None):
            for key, number in experiment.paper.items():
                if key[:4] != (group[1], group[2], group[3], self.objective):
                    continue
                scores = list(results.seeds(group, self.objective, key[4], "score").values())
                if not scores:
                    continue
                gap = statistics.fmean(scores) - number
                holds = abs(gap) <= self.distance + _ROUNDING
                text = (
                    f"{_place(experiment, group)}: {_name((self.objective, key[4]))} "
                    f"{statistics.fmean(scores):.2f}, the paper {number:.1f} ({gap:+.2f})"
                )
                margin = _margin(Statistic.of(scores), self.distance - abs(gap))
                evidence.append(Evidence(text, holds, gap, None, len(scores), margin))
        return Finding(self.claim, evidence)


@dataclass(frozen=True)
class SpeedCheck:
    """A claim about times with torch operations: `one` takes less time than `other`."""

    claim: str
    measure: str
    one: str
    other: str

    def finding(self, experiment_set: ExperimentSet, results: Results) -> Finding:
        """Return the claim with its evidence."""
        return Finding(
            self.claim, list(self._evidence(experiment_set, results)), "×{:.2f}", "×{:.1f}"
        )

    def _evidence(self, experiment_set: ExperimentSet, results: Results) -> Iterator[Evidence]:
        for plan in experiment_set.timings.values():
            backend = plan.backends[0]
            for timed in TimingResults.all(plan, results):
                for row in timed.rows:
                    place = (row["source"], row["network"], row["corpus"])
                    speeds = [
                        timed.speed_up(self.measure, backend, place, method)
                        for method in (self.one, self.other)
                    ]
                    if speeds[0] is None or speeds[1] is None:
                        continue
                    ratio = speeds[0] / speeds[1]
                    experiment = experiment_set.experiments[place[0]]
                    where = _place(experiment, (place[0], "", place[1], place[2]))
                    yield Evidence(
                        f"{where}, {timed.title}: ×{ratio:.2f}",
                        ratio > 1,
                        ratio,
                        self._paper(plan, place),
                    )

    def _paper(self, plan: TimingPlan, place: tuple[str, str, str]) -> float | None:
        """Return the ratio of the two speed-ups in the paper; None if it lacks one of them."""
        base = plan.methods(self.measure)[0]
        speeds = [
            1.0 if method == base else plan.paper.get((self.measure, *place, method))
            for method in (self.one, self.other)
        ]
        return None if speeds[0] is None or speeds[1] is None else speeds[0] / speeds[1]


# A difference of 0.1 is within 0.1, although it is slightly larger in binary.
_ROUNDING = 1e-9


def _groups(
    experiment_set: ExperimentSet,
    results: Results,
    tasks: Sequence[str] | None,
    partial: bool | None,
) -> Iterator[tuple[Experiment, RunGroup]]:
    """Yield the groups that count as evidence: those of the first variant of each experiment.

    Experiments that only choose a setting do not count.

    Args:
        tasks: experiments with these tasks; None: all, with partial labels and without.
        partial: whether the experiments train on partial labels.
    """
    for experiment in experiment_set.experiments.values():
        first = next(iter(experiment.variants.values()))
        is_partial = first.settings.get("data", {}).get("partial", False)
        if "test" not in experiment.splits:
            continue
        if tasks is not None and (experiment.task not in tasks or is_partial != partial):
            continue
        for group in run_groups(experiment, results):
            if group[1] == first.name:
                yield experiment, group


def _evidence(
    experiment: Experiment, group: RunGroup, one: Pair, other: Pair, results: Results, check: Check
) -> Evidence | None:
    """Compare two scores of a group; None if the log lacks one of them."""
    paired = results.paired_scores(group, one, other)
    if not paired:
        return None
    first, second, gap = (
        Statistic.of_some(scores)
        for scores in (*zip(*paired, strict=True), [a - b for a, b in paired])
    )
    low, high, spread = check.low, check.high, gap
    if check.deviations is not None:
        if first.deviation is None or second.deviation is None:
            return None
        # The runs of the two objectives are independent, although they have a seed in common.
        pooled = math.sqrt((first.deviation**2 + second.deviation**2) / 2)
        low, high = -check.deviations * pooled, check.deviations * pooled
        spread = Statistic(gap.mean, pooled, gap.count)
    inside = min(gap.mean - low, high - gap.mean)
    numbers = [experiment.paper.get((*group[1:], *pair)) for pair in (one, other)]
    paper = None
    if numbers[0] is not None and numbers[1] is not None:
        paper = numbers[0] - numbers[1]
    notes = [f"{gap.mean:+.2f}"]
    if gap.deviation is not None:
        notes = [f"{gap.mean:+.2f} ± {gap.deviation:.2f}, {gap.count} seeds"]
    if check.deviations is not None:
        notes.append(f"allowed ± {high:.2f}")
    if paper is not None:
        notes.append(f"paper {paper:+.1f}")
    text = (
        f"{_place(experiment, group)}: {_name(one)} {first.mean:.2f}, {_name(other)} "
        f"{second.mean:.2f} ({'; '.join(notes)})"
    )
    margin = _margin(spread, inside)
    return Evidence(text, inside >= -_ROUNDING, gap.mean, paper, gap.count, margin)


def _margin(spread: Statistic | None, distance: float) -> float | None:
    """Return the distance to the bound in standard deviations; None for a single seed."""
    if spread is None or spread.deviation is None or math.isinf(distance):
        return None
    return abs(distance) / spread.deviation if spread.deviation > 0 else math.inf


def _best_on_dev(results: Results, group: RunGroup, family: str) -> str | None:
    """Return the objective of a family with the best mean score on dev."""
    names = [n for n in results.objectives(group) if Objective.parse(n).family == family]
    return max(
        names, key=lambda name: statistics.fmean(results.dev_scores(group, name)), default=None
    )


def _place(experiment: Experiment, group: RunGroup) -> str:
    network = experiment.networks[group[2]].title
    return f"{experiment.short_title}, {corpus_title(group[3])}, {network}"


def _name(pair: Pair) -> str:
    objective, decoder = pair
    return decoder if objective == decoder else f"{objective} + {decoder}"


def _range(numbers: Sequence[float], form: str) -> str:
    """Return the text "smallest to largest", or one number if both have the same text."""
    if not numbers:
        return "–"
    ends = (form.format(round(number, 2) + 0.0) for number in (min(numbers), max(numbers)))
    return " to ".join(dict.fromkeys(ends))
