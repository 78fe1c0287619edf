"""`bcrf demo`."""

from __future__ import annotations

import os
import re

import pytest

from bcrf.cli import main
from bcrf.cli.demo import EXAMPLE, FAMILIES
from bcrf.tagger import Tagger
from tests.cli_cases import bcrf


def tables(output: str) -> tuple[list[list[str]], list[list[str]]]:
    """Return the cells of both tables, without titles; the bundled model comes before them."""
    _, first, second = output.split("\n\n")
    return tuple(
        [re.split(" {2,}", line) for line in table.splitlines()[1:]] for table in (first, second)
    )


def test_demo_compares_the_families_and_tags_an_example(monkeypatch, capsys, tmp_path):
    small = {
        "model": {"width": 8, "score_width": 8},
        "optimizer": {"learning_rate": 0.02},
        "training": {"epochs": 1, "batch": 64},
    }
    monkeypatch.setattr("bcrf.cli.demo._SETTINGS", small)
    assert main(["demo", "--keep", str(tmp_path)]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    text, kept = printed.out.rsplit("\n", 2)[:2]
    assert kept == f"The models are in {tmp_path}."
    assert "  She/PRON did/AUX n't/PART stay/VERB" in text
    scores, example = tables(text)
    assert [row[0] for row in scores[1:]] == list(FAMILIES)
    assert example[0] == ["", *FAMILIES]
    assert [row[0] for row in example[1:]] == EXAMPLE.split()
    for column, objective in enumerate(FAMILIES.values(), start=1):
        tagger = Tagger.load(tmp_path / objective)
        assert tagger.model.config.objective == objective
        (tagged,) = tagger.tag([EXAMPLE.split()], probabilities=True)
        assert [row[column] for row in example[1:]] == [
            f"{tag} {p:.3f}" for tag, p in zip(tagged.tags, tagged.probabilities, strict=True)
        ]


@pytest.mark.slow
def test_demo_takes_less_than_a_minute_and_structure_helps():
    before = os.times()
    scores, _ = tables(bcrf("demo").stdout)
    after = os.times()
    assert (
        after.children_user - before.children_user < 60
    )  # of CPU time, which does not depend on the load of the machine
    accuracy = {row[0]: float(row[2].removesuffix(" %")) for row in scores[1:]}
    assert accuracy["unstructured"] > 80
    for family in ("CRF", "mean field", "Bregman"):
        assert accuracy[family] > accuracy["unstructured"] + 2
