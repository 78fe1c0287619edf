"""What must be true of the results, and whether it is: computed from the logs, with the numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .accuracy_tables import places
from .book import Book
from .experiment import Experiment
from .results import Place, Results
from .timing_tables import Timed

__all__ = ["Check", "Evidence", "Finding", "findings"]

Pair = tuple[str, str]
"""Objective and decoder."""

VITERBI: Pair = ("crf", "viterbi")

# Scores, in percent, that differ by less are equal: one token among 20,000.
_EQUAL = 0.005


@dataclass(frozen=True)
class Evidence:
    """Numbers of one place, and whether they bear out the claim."""

    text: str
    holds: bool


@dataclass(frozen=True)
class Finding:
    """A claim with all evidence there is."""

    claim: str
    evidence: list[Evidence]

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
        claim: in words.
        tasks: of the experiments that it is about; None: of all.
        pairs: (one, other); for each of them the difference is to be within the bounds.
        low, high: these bounds.
        partial: whether it is about partially supervised training.
    """

    claim: str
    tasks: tuple[str, ...] | None
    pairs: tuple[tuple[Pair, Pair], ...]
    low: float = float("-inf")
    high: float = float("inf")
    partial: bool = False

    def finding(self, book: Book, results: Results) -> Finding:
        evidence = [
            found
            for experiment in book.experiments.values()
            if self._concerns(experiment)
            for place in places(experiment, results)
            if place[1] == next(iter(experiment.variants))
            for one, other in self.pairs
            if (found := self._evidence(experiment, place, one, other, results)) is not None
        ]
        return Finding(self.claim, evidence)

    def _concerns(self, experiment: Experiment) -> bool:
        first = next(iter(experiment.variants.values()))
        partial = first.settings.get("data", {}).get("partial", False)
        if self.tasks is None:
            return True
        return experiment.task in self.tasks and partial == self.partial

    def _evidence(
        self, experiment: Experiment, place: Place, one: Pair, other: Pair, results: Results
    ) -> Evidence | None:
        scores = results.difference(place, one, other)
        if scores is None:
            return None
        difference = scores[0] - scores[1]
        # Sums of binary fractions: 0.1 must be within 0.1.
        holds = self.low - 1e-9 <= difference <= self.high + 1e-9
        table, variant, network, corpus = place
        numbers = [experiment.paper.get((variant, network, corpus, *pair)) for pair in (one, other)]
        paper = ""
        if numbers[0] is not None and numbers[1] is not None:
            paper = f"; paper {numbers[0] - numbers[1]:+.1f}"
        text = (
            f"{table}, {corpus}, {experiment.networks[network].title}: {_name(one)} "
            f"{scores[0]:.2f}, {_name(other)} {scores[1]:.2f} ({difference:+.2f}{paper})"
        )
        return Evidence(text, holds)


def _crf(*decoders: str) -> tuple[tuple[Pair, Pair], ...]:
    """These decoders against Viterbi, for CRF training."""
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
"""Of accuracies and F-scores. The first ones are what this project set out to show."""


@dataclass(frozen=True)
class SpeedCheck:
    """A claim about times, all methods being torch operations: `one` takes less than `other`."""

    claim: str
    measure: str
    one: str
    other: str

    def finding(self, book: Book, results: Results) -> Finding:
        return Finding(self.claim, list(self._evidence(book, results)))

    def _evidence(self, book: Book, results: Results) -> Iterator[Evidence]:
        for plan in book.timings.values():
            backend = plan.backends[0]
            for timed in Timed.all(plan, results):
                for row in timed.rows:
                    place = (row["source"], row["network"], row["corpus"])
                    speeds = [
                        timed.speed_up(self.measure, backend, place, method)
                        for method in (self.one, self.other)
                    ]
                    if speeds[0] is None or speeds[1] is None:
                        continue
                    ratio = speeds[0] / speeds[1]
                    network = book.experiments[place[0]].networks[place[1]].title
                    where = f"{place[0]}, {place[2]}, {network}, {timed.title}"
                    yield Evidence(f"{where}: ×{ratio:.2f}", ratio > 1)


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


def findings(book: Book, results: Results) -> list[Finding]:
    """All claims, with what the logs say of them."""
    checks: Sequence[Check | SpeedCheck] = (*CHECKS, *SPEED_CHECKS)
    return [check.finding(book, results) for check in checks]


def _name(pair: Pair) -> str:
    objective, decoder = pair
    return decoder if objective == decoder else f"{objective} + {decoder}"
