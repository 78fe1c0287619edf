"""Findings: numbers that support a claim, numbers that do not, and numbers that do not count."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from reproduction.claims import CLAIMS, findings
from tests.reproduction_cases import experiment_set
from tests.reproduction_rows import page, results, row, timed


def verdicts(tmp_path: Path, rows: list[dict[str, Any]]) -> dict[str, str]:
    found = findings(experiment_set(tmp_path), results(rows))
    return {finding.claim: finding.verdict for finding in found}


def verdict(tmp_path: Path, rows: list[dict[str, Any]], claim: str) -> str:
    """The verdict on the one claim that begins with these words."""
    found = verdicts(tmp_path, rows)
    (name,) = [one for one in found if one.startswith(claim)]
    return found[name]


GOOD = [
    row(viterbi=91.3, bregman_5=91.2, bregman_10=91.3, mean_field_5=90.6, mean_field_10=90.7),
    row(objective="bregman", viterbi=91.1, bregman_10=91.1, certified_10=91.1),
    row(
        "segmentation",
        corpus="chinese",
        viterbi=84.2,
        mean_field_5=72.9,
        mean_field_10=74.6,
        bregman_10=83.7,
        bregman_10_relaxed=84.1,
        bregman_10_mbr=84.0,
        bregman_10_relaxed_mbr=84.2,
        certified_10=84.2,
    ),
    row("segmentation", "mean_field", corpus="chinese", viterbi=77.6, mean_field_10=82.0),
    row("segmentation", "bregman", corpus="chinese", bregman_10=83.2),
    row("segmentation", "unstructured", corpus="chinese", unstructured=47.3),
    row("partial", variant="exclusive", viterbi=90.5, bregman_10=90.5),
    row("partial", "bregman", variant="exclusive", bregman_10=90.6),
    # Only the first variant of a table counts as evidence.
    row("partial", "bregman", variant="literal", bregman_10=10.0),
    row("partial", variant="literal", viterbi=90.0, bregman_10=10.0),
    timed(ratio=2.0),
]


def test_the_papers_numbers_support_its_claims(tmp_path):
    found = verdicts(tmp_path, GOOD)
    assert len(found) == len(CLAIMS)
    others = {claim: verdict for claim, verdict in found.items() if verdict != "holds"}
    assert {claim.partition(" (")[0]: verdict for claim, verdict in others.items()} == {
        "NER: BCRF-10 decodes a CRF-trained model as Viterbi does": "not measured",
        # With one seed there is no standard deviation.
        "Partial NER: BCRF training equals CRF training, each with its own decoder": "not measured",
        "MF training is within 2 points of the paper's scores": "not measured",
        "Ours: at the temperatures that are best on dev, BCRF training equals CRF training": (
            "not measured"
        ),
        "MF-10 decoding takes less time than BCRF-10 decoding": "fails in 1 of 1",
    }


@pytest.mark.parametrize(
    ("rows", "claim"),
    [
        (
            [row(viterbi=91.3, bregman_10=91.1)],
            "POS: BCRF decoding of a CRF-trained model is within",
        ),
        (
            [row(viterbi=91.3, bregman_5=91.5)],
            "POS: BCRF decoding of a CRF-trained model is within",
        ),
        ([row(viterbi=91.3, certified_10=91.2)], "Ours: certified decoding equals"),
        (
            [row("segmentation", corpus="chinese", viterbi=84.2, bregman_10_relaxed=83.5)],
            "Segmentation, ours: relaxed BCRF-10 decoding of",
        ),
        (
            [row("segmentation", corpus="chinese", viterbi=84.2, bregman_10=83.5)],
            "Segmentation: BCRF-10 decoding of a CRF-trained model is within",
        ),
        (
            [row("segmentation", corpus="chinese", bregman_10=83.7, mean_field_5=79.0)],
            "Segmentation: BCRF-10 decoding of a CRF-trained model is at least",
        ),
        (
            [row("segmentation", corpus="chinese", viterbi=84.2, mean_field_10=84.2)],
            "Segmentation: MF-10 decoding, of CRF- and of MF-trained models",
        ),
        ([timed(ratio=0.9)], "BCRF-10 decoding takes less time than Viterbi"),
        ([timed(ratio=0.9)], "Training with BCRF-10 takes less time"),
    ],
)
def test_findings_can_fail(tmp_path, rows, claim):
    found = findings(experiment_set(tmp_path), results(rows))
    (finding,) = [one for one in found if one.claim.startswith(claim)]
    assert finding.verdict == "fails in 1 of 1"
    assert not finding.evidence[0].holds


PARTIAL = "Partial NER: BCRF training equals CRF training"


def partial_rows(crf: list[float], bregman: list[float]) -> list[dict[str, Any]]:
    crf_rows = [
        row("partial", variant="exclusive", seed=seed, viterbi=score)
        for seed, score in enumerate(crf)
    ]
    bregman_rows = [
        row("partial", "bregman", variant="exclusive", seed=seed, bregman_10=score)
        for seed, score in enumerate(bregman)
    ]
    return crf_rows + bregman_rows


@pytest.mark.parametrize(
    ("bregman", "expected"),
    [
        ([90.0, 92.0, 94.0], "holds (by 1.0 sd)"),  # equal means; the bound is one sd away
        ([91.0, 93.0, 95.0], "holds (by 0.5 sd)"),
        ([93.0, 95.0, 97.0], "fails in 1 of 1 (by 0.5 sd)"),
        ([87.0, 89.0, 91.0], "fails in 1 of 1 (by 0.5 sd)"),
    ],
)
def test_equal_means_within_a_standard_deviation(tmp_path, bregman, expected):
    rows = partial_rows([90.0, 92.0, 94.0], bregman)  # the standard deviation is 2
    assert verdict(tmp_path, rows, PARTIAL) == expected


def test_equality_needs_several_seeds(tmp_path):
    assert verdict(tmp_path, partial_rows([90.0], [90.0]), PARTIAL) == "not measured"


def test_the_distance_to_the_bound_is_given_in_deviations_of_the_difference(tmp_path):
    rows = [
        row("segmentation", corpus="chinese", seed=seed, viterbi=84.0, bregman_10=84.0 - gap)
        for seed, gap in enumerate((0.3, 0.4, 0.5))
    ]
    claim = "Segmentation: BCRF-10 decoding of a CRF-trained model is within"
    assert verdict(tmp_path, rows, claim) == "holds (by 2.0 sd)"  # (0.6 - 0.4) / 0.1


BEST = "Ours: at the temperatures that are best on dev"


def test_each_family_is_compared_at_its_best_temperature_on_dev(tmp_path):
    def scored(objective: str, dev: float, test: float) -> list[dict[str, Any]]:
        return [
            row(objective=objective, seed=seed, dev=dev, viterbi=test + seed) for seed in (0, 1)
        ]

    rows = [
        *scored("crf", 85.0, 84.0),
        *scored("crf-tau0.3", 84.0, 99.0),  # better on test, but dev chooses
        *scored("bregman", 83.0, 10.0),
        *scored("bregman-tau0.1", 84.5, 84.2),
    ]
    assert verdict(tmp_path, rows, BEST).startswith("holds")
    text = page(tmp_path, rows, "{{ findings }}\n")
    assert "bregman-tau0.1 + viterbi 84.70, crf + viterbi 84.50 (+0.20 ± 0.00, 2 seeds" in text
    rows = [*scored("crf", 85.0, 84.0), *scored("bregman-tau0.1", 84.5, 87.0)]
    assert verdict(tmp_path, rows, BEST).startswith("fails in 1 of 1")
    # Without any temperature there is nothing to choose.
    rows = [*scored("crf", 85.0, 84.0), *scored("bregman", 84.5, 87.0)]
    assert verdict(tmp_path, rows, BEST) == "not measured"


def test_scores_are_compared_with_the_papers(tmp_path):
    experiments = experiment_set(tmp_path)
    paper = experiments.experiments["pos"].paper
    paper["", "0", "english", "mean_field", "viterbi"] = 89.1
    for score, expected in ((88.0, "holds"), (91.1, "holds"), (86.9, "fails in 1 of 1")):
        rows = [row(objective="mean_field", viterbi=score)]
        (finding,) = [
            one for one in findings(experiments, results(rows)) if one.claim.startswith("MF train")
        ]
        assert finding.verdict == expected


def test_tables_without_a_test_file_are_no_evidence(tmp_path):
    rows = [row(viterbi=91.3, certified_10=91.2)]
    experiments = experiment_set(tmp_path, pos={"splits": ["dev"]})
    assert all(not finding.evidence for finding in findings(experiments, results(rows)))


def test_findings_name_their_numbers(tmp_path):
    rows = [row(viterbi=91.3, bregman_5=91.3, bregman_10=91.15)]
    text = page(tmp_path, rows, "{{ findings }}\n")
    assert text.startswith(
        "- **fails in 1 of 2**: POS: BCRF decoding of a CRF-trained model is within 0.1 of "
        "Viterbi.\n"
        "    - POS, English, no layers: crf + bregman-5 91.30, crf + viterbi 91.30 (+0.00)\n"
        "    - **no:** POS, English, no layers: crf + bregman-10 91.15, crf + viterbi 91.30 "
        "(-0.15; paper -0.1)\n"
    )
    assert "- **not measured**: Segmentation: BCRF-10" in text


def test_a_difference_at_the_bound_is_within_it(tmp_path):
    rows = [
        row(viterbi=91.3, bregman_10=91.2)
    ]  # in binary, the difference is slightly larger than 0.1
    claim = "POS: BCRF decoding of a CRF-trained model is within 0.1 of Viterbi"
    assert verdict(tmp_path, rows, claim) == "holds"
