"""Findings: numbers that support a claim, numbers that do not, and numbers that do not count."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from reproduction.findings import CHECKS, SPEED_CHECKS, findings
from tests.reproduction_cases import experiment_set
from tests.reproduction_rows import page, results, row, timed


def verdicts(tmp_path: Path, rows: list[dict[str, Any]]) -> dict[str, str]:
    found = findings(experiment_set(tmp_path), results(rows))
    return {finding.claim.partition(" (")[0]: finding.verdict for finding in found}


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
    assert len(found) == len(CHECKS) + len(SPEED_CHECKS)
    ner = [claim for claim in found if claim.startswith("NER")]
    equal = "MF-10 decoding takes less time than BCRF-10 decoding"
    assert {claim: verdict for claim, verdict in found.items() if verdict != "holds"} == {
        ner[0]: "not measured",
        equal: "fails in 1 of 1",
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
        ([row(viterbi=91.3, bregman_10_relaxed=91.0)], "Ours: relaxed BCRF-10 decoding of"),
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
            "MF is behind under constraints",
        ),
        (
            [
                row("partial", variant="exclusive", viterbi=90.5),
                row("partial", "bregman", variant="exclusive", bregman_10=89.9),
            ],
            "Partial NER: BCRF training equals CRF training",
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


def test_findings_name_their_numbers(tmp_path):
    rows = [row(viterbi=91.3, bregman_5=91.3, bregman_10=91.15)]
    text = page(tmp_path, rows, "{{ findings }}\n")
    assert text.startswith(
        "- **fails in 1 of 2**: POS: BCRF decoding of a CRF-trained model is within 0.1 of "
        "Viterbi.\n"
        "    - pos, english, no layers: crf + bregman-5 91.30, crf + viterbi 91.30 (+0.00)\n"
        "    - **no:** pos, english, no layers: crf + bregman-10 91.15, crf + viterbi 91.30 "
        "(-0.15; paper -0.1)\n"
    )
    assert "- **not measured**: Segmentation: BCRF-10" in text


def test_a_difference_at_the_bound_is_within_it(tmp_path):
    rows = [
        row(viterbi=91.3, bregman_10=91.2)
    ]  # in binary, the difference is slightly larger than 0.1
    claim = "POS: BCRF decoding of a CRF-trained model is within 0.1 of Viterbi"
    assert verdicts(tmp_path, rows)[claim] == "holds"
