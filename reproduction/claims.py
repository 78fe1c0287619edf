"""The claims of the scoreboard: those of the paper, and our own."""

from __future__ import annotations

from .experiment_set import ExperimentSet
from .findings import (
    BestTemperatureCheck,
    Check,
    Claim,
    Finding,
    Pair,
    PaperCheck,
    SpeedCheck,
)
from .results import Results

__all__ = ["CLAIMS", "findings"]

VITERBI: Pair = ("crf", "viterbi")

# Scores in percent that differ by less than this count as equal. It is one token in 20,000.
_EQUAL = 0.005


def _crf(*decoders: str) -> tuple[tuple[Pair, Pair], ...]:
    """Pair each decoder with Viterbi, both for CRF-trained models."""
    return tuple((("crf", decoder), VITERBI) for decoder in decoders)


CLAIMS: tuple[Claim, ...] = (
    Check(
        "POS: BCRF decoding of a CRF-trained model is within 0.1 of Viterbi",
        ("pos",),
        _crf("bregman-5", "bregman-10"),
        low=-0.1,
        high=0.1,
    ),
    Check(
        "POS: BCRF decoding of a CRF-trained model is at least as good as MF decoding",
        ("pos",),
        tuple((("crf", f"bregman-{k}"), ("crf", f"mean_field-{k}")) for k in (5, 10)),
        low=-_EQUAL,
    ),
    Check(
        "POS: BCRF training is close to CRF training, each with its own decoder (within 0.3)",
        ("pos",),
        ((("bregman", "bregman-10"), VITERBI),),
        low=-0.3,
        high=0.3,
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
        "Segmentation: BCRF training is close to CRF training, each with its own decoder "
        "(within 1.0)",
        ("segmentation",),
        ((("bregman", "bregman-10"), VITERBI),),
        low=-1.0,
        high=1.0,
    ),
    Check(
        "Segmentation: MF-10 decoding, of CRF- and of MF-trained models, is below CRF training "
        "with Viterbi",
        ("segmentation",),
        tuple(((objective, "mean_field-10"), VITERBI) for objective in ("crf", "mean_field")),
        high=-_EQUAL,
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
    Check(
        "Partial NER: BCRF-10 decodes a CRF-trained model as Viterbi does (within 0.1)",
        ("ner",),
        _crf("bregman-10"),
        low=-0.1,
        high=0.1,
        partial=True,
    ),
    Check(
        "Partial NER: BCRF training equals CRF training, each with its own decoder (within one "
        "standard deviation)",
        ("ner",),
        ((("bregman", "bregman-10"), VITERBI),),
        deviations=1,
        partial=True,
    ),
    PaperCheck("MF training is within 2 points of the paper's scores", "mean_field", 2.0),
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
    BestTemperatureCheck(
        "Ours: at the temperatures that are best on dev, BCRF training equals CRF training "
        "(Viterbi, within one standard deviation)",
        ("bregman", "crf"),
        "viterbi",
        deviations=1,
    ),
    Check(
        "Segmentation, ours: relaxed BCRF-10 decoding of a CRF-trained model is within 0.6 of "
        "Viterbi",
        ("segmentation",),
        _crf("bregman-10-relaxed"),
        low=-0.6,
        high=0.6,
    ),
    Check(
        "Segmentation, ours: relaxed BCRF-10 decoding, with MBR repair, of a CRF-trained model is "
        "within 0.2 of Viterbi",
        ("segmentation",),
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
)
"""The lines of the scoreboard: first the claims of the paper, then ours."""


def findings(experiment_set: ExperimentSet, results: Results) -> list[Finding]:
    """Return all claims with the evidence that the logs hold."""
    return [claim.finding(experiment_set, results) for claim in CLAIMS]
