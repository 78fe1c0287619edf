"""Check claims about the results against the logs, and show the numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .experiment import Experiment
from .experiment_set import ExperimentSet
from .plans import TimingPlan
from .results import Results, RunGroup
from .tables import TimingResults, run_groups

__all__ = ["Check", "Evidence", "Finding", "findings"]

Pair = tuple[str, str]
"""An objective and a decoder."""

VITERBI: Pair = ("crf", "viterbi")

# Scores in percent that differ by less than this count as equal. It is one token in 20,000.
_EQUAL = 0.005


@dataclass(frozen=True)
class Evidence:
    """The numbers of one group of runs.

    Args:
        text: the numbers as the report shows them.
        holds: whether the numbers support the claim.
        ours: our number: a difference of scores or a ratio of times.
        paper: the same number in the paper, if it has one.
    """

    text: str
    holds: bool
    ours: float
    paper: float | None = None


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
    def verdict(self) -> str:
        if not self.evidence:
            return "not measured"
        failed = sum(not one.holds for one in self.evidence)
        return f"fails in {failed} of {len(self.evidence)}" if failed else "holds"


@dataclass(frozen=True)
class Check:
    """A claim about the difference of two scores, `one` - `other`, in percent.

    Args:
        claim: the claim as a sentence.
        tasks: the claim is about experiments with these tasks; None: all experiments.
        pairs: pairs (one, other); each difference must be within the bounds.
        low, high: the bounds.
        partial: whether the claim is about partially supervised training.
    """

    claim: str
    tasks: tuple[str, ...] | None
    pairs: tuple[tuple[Pair, Pair], ...]
    low: float = float("-inf")
    high: float = float("inf")
    partial: bool = False

    def finding(self, experiment_set: ExperimentSet, results: Results) -> Finding:
        """Return the claim with its evidence."""
        evidence = [
            found
            for experiment in experiment_set.experiments.values()
            if self._concerns(experiment)
            for group in run_groups(experiment, results)
            if group[1] == next(iter(experiment.variants))
            for one, other in self.pairs
            if (found := self._evidence(experiment, group, one, other, results)) is not None
        ]
        return Finding(self.claim, evidence)

    def _concerns(self, experiment: Experiment) -> bool:
        first = next(iter(experiment.variants.values()))
        partial = first.settings.get("data", {}).get("partial", False)
        if self.tasks is None:
            return True
        return experiment.task in self.tasks and partial == self.partial

    def _evidence(
        self, experiment: Experiment, group: RunGroup, one: Pair, other: Pair, results: Results
    ) -> Evidence | None:
        scores = results.difference(group, one, other)
        if scores is None:
            return None
        difference = scores[0] - scores[1]
        # The slack allows for rounding: a difference of 0.1 is within 0.1.
        holds = self.low - 1e-9 <= difference <= self.high + 1e-9
        table, variant, network, corpus = group
        numbers = [experiment.paper.get((variant, network, corpus, *pair)) for pair in (one, other)]
        paper = None
        if numbers[0] is not None and numbers[1] is not None:
            paper = numbers[0] - numbers[1]
        beside = "" if paper is None else f"; paper {paper:+.1f}"
        text = (
            f"{table}, {corpus}, {experiment.networks[network].title}: {_name(one)} "
            f"{scores[0]:.2f}, {_name(other)} {scores[1]:.2f} ({difference:+.2f}{beside})"
        )
        return Evidence(text, holds, difference, paper)


def _crf(*decoders: str) -> tuple[tuple[Pair, Pair], ...]:
    """Pair each decoder with Viterbi, both for CRF-trained models."""
    return tuple((("crf", decoder), VITERBI) for decoder in decoders)


CHECKS: tuple[Check, ...] = (
    Check(
        "POS: BCRF decoding of a CRF-trained model is within 0.1 of Viterbi",
        ("pos",),
        _crf("bregman-5", "bregman-10"),
        low=-0.1,
        high=0.1,
    ),
    Check(
        "Segmentation: BCRF-10 decoding of a CRF-trained model is within 0.6 of Viterbi",
        ("segmentation",),
        _crf("bregman-10"),
        low=-0.6,
        high=0.6,
    ),
    Check(
        "Segmentation: BCRF-10 decoding of a CRF-trained model is at least 5 points above MF",
        ("segmentation",),
        tuple((("crf", "bregman-10"), ("crf", f"mean_field-{k}")) for k in (5, 10)),
        low=5.0,
    ),
    Check(
        "Ours: relaxed BCRF-10 decoding of a CRF-trained model is within 0.2 of Viterbi",
        None,
        _crf("bregman-10-relaxed"),
        low=-0.2,
        high=0.2,
    ),
    Check(
        "Segmentation, ours: the paper's BCRF-10 decoding, with MBR repair, of a CRF-trained model "
        "is within 0.6 of Viterbi",
        ("segmentation",),
        _crf("bregman-10-mbr"),
        low=-0.6,
        high=0.6,
    ),
    Check(
        "Ours: relaxed BCRF-10 decoding, with MBR repair, of a CRF-trained model is within 0.2 of "
        "Viterbi",
        None,
        _crf("bregman-10-relaxed-mbr"),
        low=-0.2,
        high=0.2,
    ),
    Check(
        "Ours: certified decoding equals Viterbi",
        None,
        tuple(
            ((objective, "certified-10"), (objective, "viterbi"))
            for objective in ("crf", "mean_field", "bregman")
        ),
        low=-_EQUAL,
        high=_EQUAL,
    ),
    Check(
        "MF is behind under constraints: MF-10 decoding, of CRF- and of MF-trained models, is "
        "below CRF training with Viterbi",
        ("segmentation",),
        tuple(((objective, "mean_field-10"), VITERBI) for objective in ("crf", "mean_field")),
        high=-_EQUAL,
    ),
    Check(
        "Partial NER: BCRF-10 decodes a CRF-trained model as Viterbi does (within 0.1)",
        ("ner",),
        _crf("bregman-10"),
        low=-0.1,
        high=0.1,
        partial=True,
    ),
    Check(
        "Partial NER: BCRF training equals CRF training, each with its own decoder (within 0.5)",
        ("ner",),
        ((("bregman", "bregman-10"), VITERBI),),
        low=-0.5,
        high=0.5,
        partial=True,
    ),
    Check(
        "POS: BCRF training is close to CRF training, each with its own decoder (within 0.3)",
        ("pos",),
        ((("bregman", "bregman-10"), VITERBI),),
        low=-0.3,
        high=0.3,
    ),
    Check(
        "POS: BCRF decoding of a CRF-trained model is at least as good as MF decoding",
        ("pos",),
        tuple((("crf", f"bregman-{k}"), ("crf", f"mean_field-{k}")) for k in (5, 10)),
        low=-_EQUAL,
    ),
    Check(
        "Segmentation: BCRF training is close to CRF training, each with its own decoder "
        "(within 1.0)",
        ("segmentation",),
        ((("bregman", "bregman-10"), VITERBI),),
        low=-1.0,
        high=1.0,
    ),
    Check(
        "Segmentation: the unstructured model is at least 1.5 points behind CRF training",
        ("segmentation",),
        ((("unstructured", "unstructured"), VITERBI),),
        high=-1.5,
    ),
    Check(
        "NER: BCRF-10 decodes a CRF-trained model as Viterbi does (within 0.1)",
        ("ner",),
        _crf("bregman-10"),
        low=-0.1,
        high=0.1,
    ),
)
"""Claims about accuracies and F-scores; the main claims come first."""


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
                    network = experiment_set.experiments[place[0]].networks[place[1]].title
                    where = f"{place[0]}, {place[2]}, {network}, {timed.title}"
                    yield Evidence(
                        f"{where}: ×{ratio:.2f}", ratio > 1, ratio, self._paper(plan, place)
                    )

    def _paper(self, plan: TimingPlan, place: tuple[str, str, str]) -> float | None:
        """Return the ratio of the two speed-ups in the paper; None if it lacks one of them."""
        base = plan.methods(self.measure)[0]
        speeds = [
            1.0 if method == base else plan.paper.get((self.measure, *place, method))
            for method in (self.one, self.other)
        ]
        return None if speeds[0] is None or speeds[1] is None else speeds[0] / speeds[1]


SPEED_CHECKS: tuple[SpeedCheck, ...] = (
    SpeedCheck(
        "Training with BCRF-10 takes less time than with the forward algorithm (like for like)",
        "training",
        "bregman-10",
        "crf",
    ),
    SpeedCheck(
        "BCRF-10 decoding takes less time than Viterbi (like for like)",
        "decoding",
        "bregman-10",
        "viterbi",
    ),
    SpeedCheck(
        "MF-10 decoding takes less time than BCRF-10 decoding (like for like)",
        "decoding",
        "mean_field-10",
        "bregman-10",
    ),
)


def _range(numbers: Sequence[float], form: str) -> str:
    """Return the text "smallest to largest", or one number if both have the same text."""
    if not numbers:
        return "–"
    ends = (form.format(round(number, 2) + 0.0) for number in (min(numbers), max(numbers)))
    return " to ".join(dict.fromkeys(ends))


def findings(experiment_set: ExperimentSet, results: Results) -> list[Finding]:
    """Return all claims with the evidence that the logs hold."""
    checks: Sequence[Check | SpeedCheck] = (*CHECKS, *SPEED_CHECKS)
    return [check.finding(experiment_set, results) for check in checks]


def _name(pair: Pair) -> str:
    objective, decoder = pair
    return decoder if objective == decoder else f"{objective} + {decoder}"
