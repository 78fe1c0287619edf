"""Tables, templates, and the provenance of a logged row."""

from __future__ import annotations

import doctest
import re
import sys

import pytest
import torch

from measurement import machine, markdown, timer
from measurement.markdown import TemplateError, fill_template, table


@pytest.mark.parametrize("module", [machine, markdown, timer], ids=lambda module: module.__name__)
def test_examples(module):
    found = doctest.testmod(module)
    assert found.attempted
    assert not found.failed


def test_tables_align_numbers_to_the_right():
    assert table(["a", "b"], [["x", "1"]], left=1) == "| a | b |\n| --- | ---: |\n| x | 1 |\n"


def test_marks_are_replaced_within_lines(tmp_path):
    path = tmp_path / "template.md"
    path.write_text("# {{ name }}\n\n{{ table pos }}\n{{table ner}} end\n")
    marks = {"name": lambda _: "Title", "table": lambda argument: f"<{argument}>\n"}
    assert fill_template(path, marks) == "# Title\n\n<pos>\n<ner> end\n"


def test_an_unknown_mark_is_named(tmp_path):
    path = tmp_path / "template.md"
    path.write_text("{{ tabel pos }}")
    message = r"template\.md: unknown mark \{\{ tabel pos \}\}; expected one of table"
    with pytest.raises(TemplateError, match=message):
        fill_template(path, {"table": str})


def test_provenance_names_commit_and_command():
    origin = machine.provenance("benchmarks", ["--log", "/home/ada/log.jsonl", "base=/x/bert"])
    assert origin["command"] == "python -m benchmarks --log .../log.jsonl base=.../bert"
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d UTC", origin["date"])
    assert re.fullmatch(r"([0-9a-f]{7,}|.*-g[0-9a-f]{7,})?(-dirty)?", origin["commit"])
    facts = machine.hardware(torch.device("cpu"))
    assert facts["device"] == "cpu"
    assert facts["cores"] >= 1
    assert machine.software()["python"] == sys.version.split()[0]
