"""The report: means and deviations, missing cells, findings and plots, from logs alone."""

from __future__ import annotations

import json
import re
import statistics
from pathlib import Path
from typing import Any

import pytest

from bcrf.cli.config_file import read_config
from reproduction import ExperimentSet, Results, report, write_report
from reproduction.figures import FIGURES
from reproduction.results import Statistic
from reproduction.tables import MEASURES
from tests.reproduction_cases import TEMPLATE, experiment_set
from tests.reproduction_rows import PLACE, page, results, row, timed

ROOT = Path(__file__).parents[2]

# ---------------------------------------------------------------------------------------- numbers


def test_statistics():
    assert Statistic.of([]) is None
    assert Statistic.of([3.0]) == Statistic(3.0, None, 1)
    values = [91.0, 92.5, 90.0]
    found = Statistic.of(values)
    assert found is not None
    assert (found.mean, found.count) == (pytest.approx(statistics.mean(values)), 3)
    assert found.deviation == pytest.approx(
        (sum((v - 91.16666666) ** 2 for v in values) / 2) ** 0.5
    )


def test_seeds_are_averaged_and_later_rows_add_to_earlier_ones(tmp_path):
    rows = [row(seed=0, viterbi=90.0), row(seed=1, viterbi=92.0), row(seed=0, bregman_5=80.0)]
    del rows[2]["machine"]  # the run was not repeated; only a decoder was added
    found = results(rows)
    assert found.statistic(PLACE, "crf", "viterbi") == Statistic(91.0, pytest.approx(2**0.5), 2)
    assert found.statistic(PLACE, "crf", "bregman-5") == Statistic(80.0, None, 1)
    assert found.statistic(PLACE, "bregman", "viterbi") is None
    assert found.counts["pos"] == 3
    # Only seeds that both have are compared.
    assert found.difference(PLACE, ("crf", "bregman-5"), ("crf", "viterbi")) == (80.0, 90.0)
    assert found.difference(PLACE, ("crf", "bregman-5"), ("crf", "bregman-9")) is None


def test_a_repeated_run_replaces_all_earlier_rows():
    later = row(seed=0, viterbi=91.0)
    found = results([row(seed=0, viterbi=90.0, bregman_5=80.0), later])
    assert found.statistic(PLACE, "crf", "viterbi") == Statistic(91.0, None, 1)
    assert found.statistic(PLACE, "crf", "bregman-5") is None


# ----------------------------------------------------------------------------------------- tables


def test_our_scores_are_shown_beside_the_papers(tmp_path):
    rows = [
        row(seed=0, viterbi=90.0, bregman_10=89.0, certified_10=90.0),
        row(seed=1, viterbi=92.0, bregman_10=91.0),
        row(objective="bregman-10-relaxed", viterbi=88.0),
        row(network="1", viterbi=93.0),
    ]
    text = page(tmp_path, rows, "{{ table pos }}\n")
    lines = text.splitlines()
    assert lines[:5] == [
        "### pos, no layers",
        "",
        "| training | decoding | english | paper |",
        "| --- | --- | ---: | ---: |",
        "| CRF training | Viterbi | 91.00 ± 1.41 [2] | 91.3 |",
    ]
    assert "| CRF training | BCRF, 10 it. | 90.00 ± 1.41 [2] | 91.2 |" in lines
    assert "| CRF training | ours: certified, 10 it. | 90.00 [1] |  |" in lines
    # A decoder that is not in the paper and was not run is shown as missing.
    assert "| CRF training | ours: BCRF relaxed, 10 it. | missing |  |" in lines
    assert "| ours: bregman-10-relaxed training | Viterbi | 88.00 [1] |  |" in lines
    assert not any("klingon |" in line for line in lines)  # a corpus that was not run has no column
    assert "- english: UD r2.15; 1,234 training sentences." in lines
    assert "- klingon: not run (tlh-train.conllu, tlh-dev.conllu, tlh)." in lines
    # A network that was run, but is not in the paper.
    assert "### pos, 1" in lines
    assert "| CRF training | Viterbi | 93.00 [1] |  |" in lines
    for line in lines:  # all rows of a table are of one width
        if line.startswith("| CRF"):
            assert line.count("|") == 5


def test_networks_that_were_not_run_are_listed(tmp_path):
    text = page(tmp_path, [row(network="1", viterbi=93.0)], "{{ table pos }}\n")
    assert "### pos, no layers" not in text
    assert "which were not run:\n\n- pos, no layers: english, klingon." in text
    nothing = page(tmp_path, [], "{{ table pos }}\n")
    assert "| CRF training | Viterbi | missing | 91.3 | missing | 90.0 |" in nothing


def test_the_summary_has_a_line_for_each_claim(tmp_path):
    rows = [row(viterbi=91.5, bregman_10=91.3, bregman_5=91.5)]
    text = page(tmp_path, rows, "{{ summary }}\n")
    claim = "POS: BCRF decoding of a CRF-trained model is within 0.1 of Viterbi"
    assert f"| 1 | {claim} | -0.1 | -0.20 to +0.00 | fails in 1 of 2 |" in text
    assert (
        text.count("| not measured |") == len(text.splitlines()) - 2 - text.count("| holds |") - 1
    )


def test_ill_formed_sentences_are_shares(tmp_path):
    rows = [
        row("segmentation", corpus="chinese", ill_formed=5, mean_field_5=70.0),
        row("segmentation", corpus="chinese", seed=1, ill_formed=10, mean_field_5=70.0),
    ]
    text = page(tmp_path, rows, "{{ ill-formed segmentation }}\n{{ ill-formed pos }}\n")
    assert "| CRF training | MF, 5 it. | 15.0 % |" in text
    assert "Tagging: nothing was run yet." in text


def test_speed_ups_are_relative_to_the_first_method(tmp_path):
    text = page(tmp_path, [timed(ratio=2.5)], "{{ timing timing }}\n")
    assert "### Times on Abacus, 1 thread" in text
    # 0.8 s for 8 batches; beside it the paper's, in the first version only
    assert "| pos | english | no layers | 100.0 | ×2.5 | ×2.5 | ×6.1 |" in text
    assert "| pos | english | no layers | 25.0 | ×2.5 | ×2.5 |" in text
    assert "a: like for like" in text
    assert "b: the fastest backend of each method" in text
    assert "fresh" not in text


def test_times_without_a_trained_model_are_marked_and_hardware_is_kept_apart(tmp_path):
    other = timed(threads=2, weights="fresh", ratio=0.5)
    text = page(tmp_path, [timed(), timed("partial", load=7.5), other], "{{ timing timing }}\n")
    first, second = text.split("### Times on Abacus, 2 threads")
    assert "fresh" not in first
    assert "Other load of the machine: 0.25 to 7.5 processes." in first
    assert "Other load of the machine: 0.25 to 0.25 processes." in second
    assert "| pos | english | no layers (fresh weights) | 100.0 | ×0.50 | ×0.50 | ×6.1 |" in second


def test_without_times_the_papers_rows_are_missing(tmp_path):
    text = page(tmp_path, [], "{{ timing timing }}\n")
    assert "| pos | english | no layers | missing | missing | missing | ×6.1 |" in text


def test_the_comparison_with_the_paper_averages_all_common_cells(tmp_path):
    rows = [row(viterbi=91.5, bregman_10=90.2, mean_field_5=1.0)]
    text = page(tmp_path, rows, "{{ compared }}\n")
    numbers = "2 | -0.40 | +0.20 (crf + viterbi) | -1.00 (crf + bregman-10) | UD r2.15"
    assert f"| pos | english | no layers | {numbers} |" in text


# ------------------------------------------------------------------------------- pages and plots


def test_the_report_without_results(tmp_path):
    text = page(tmp_path, [], TEMPLATE)
    assert text.startswith("# Results\n\nRows of the logs: pos 0, segmentation 0, partial 0, ")
    assert text.count("Nothing was run yet.") == 6
    assert "{{" not in text


ANALYSED = {
    "table": "analysis",
    "source": "pos",
    **{key: row()[key] for key in ("corpus", "network", "variant", "objective", "seed")},
    **{key: row()[key] for key in ("machine", "python", "torch")},
    "sentences": 7,
    "tokens": 70,
    "results": [
        {
            "setting": setting,
            "temperature": tau,
            "iterations": k,
            "unsettled": 1 if tau < 1 else 0,
            "error": 0.5 / k,
            "largest_error": 0.9 / k,
            **({} if tau == 1 else {"agreement": 0.9, "same": 0.5, "certified": 0.25}),
        }
        for setting in ("paper", "half-split")
        for tau in (1.0, 0.1)
        for k in (1, 1000)
    ],
}


def test_the_analysis_has_a_table_for_each_measure(tmp_path):
    text = page(tmp_path, [ANALYSED], "{{ analysis analysis }}\n")
    assert "### pos, english, no layers, CRF training, seed 0" in text
    assert "7 test sentences, 70 tokens; 1 did not converge and have no errors." in text
    assert text.count("| paper | 0.5000 | 5.0e-04 |") == 2
    assert "| half-split | 90.0 | 90.0 |" in text
    assert "| half-split | 25.0 | 25.0 |" in text


def write_logs(which: ExperimentSet, rows: list[dict[str, Any]]) -> None:
    for one in rows:
        which.log(one["table"]).append(one)


SCALED = [
    {
        key: value
        for key, value in timed("chains", length=n, tags=t, batch=2).items()
        if key not in ("corpus", "network", "weights", "batches")
    }
    for n, t in ((4, 3), (6, 3), (4, 2))
]


def test_plots_are_drawn_beside_the_page_and_are_always_the_same(tmp_path):
    pytest.importorskip("matplotlib")
    which = experiment_set(tmp_path)
    rows = [row(viterbi=91.3, bregman_5=90.0, bregman_10=91.0, mean_field_5=88.0)]
    write_logs(which, [*rows, *SCALED, ANALYSED])
    (tmp_path / "template.md").write_text(TEMPLATE)
    pages = [tmp_path / name / "page.md" for name in ("one", "two")]
    for one in pages:
        written = write_report(which, tmp_path / "template.md", one)
        assert [path.name for path in written] == [
            "page.md",
            "page-iterations.svg",
            "page-scaling.svg",
            "page-errors.svg",
        ]
        for name in re.findall(r"!\[.*\]\((.*)\)", one.read_text()):
            assert (one.parent / name).is_file()
    for name in ("page.md", "page-iterations.svg", "page-scaling.svg", "page-errors.svg"):
        assert pages[0].with_name(name).read_bytes() == pages[1].with_name(name).read_bytes()
    drawn = pages[0].with_name("page-iterations.svg").read_text()
    for words in ("Viterbi", "BCRF (paper)", "MF", "pos english no layers"):
        assert words in drawn


def test_shares_are_drawn_in_percent_and_errors_as_they_are(tmp_path):
    figure = pytest.importorskip("matplotlib.figure").Figure()
    panels = FIGURES["errors"](experiment_set(tmp_path), results([ANALYSED]))
    assert len(panels) == len(MEASURES)
    drawn = {}
    for (measure, temperature), panel in zip(MEASURES, panels, strict=True):
        axis = figure.add_subplot()
        panel(axis)
        drawn[measure, temperature] = [list(line.get_ydata()) for line in axis.get_lines()]
    assert drawn["error", 1.0] == [[0.5, 0.0005]] * 2
    assert drawn["agreement", 0.1] == [[90.0, 90.0]] * 2
    assert drawn["certified", 0.1] == [[25.0, 25.0]] * 2


def test_without_matplotlib_the_extra_is_named(tmp_path, monkeypatch):
    import builtins

    real = builtins.__import__

    def refuse(name: str, *arguments: Any, **options: Any) -> Any:
        if name.partition(".")[0] == "matplotlib":
            raise ModuleNotFoundError("No module named 'matplotlib'", name="matplotlib")
        return real(name, *arguments, **options)

    which = experiment_set(tmp_path)
    write_logs(which, [row(viterbi=91.3)])
    (tmp_path / "template.md").write_text("{{ figure iterations }}\n")
    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(ImportError, match=r"pip install '\.\[plots\]'"):
        write_report(which, tmp_path / "template.md", tmp_path / "page.md")
    assert not (tmp_path / "page.md").exists()
    write_report(which, tmp_path / "template.md", tmp_path / "page.md", plots=False)
    assert (tmp_path / "page.md").read_text() == "![iterations](page-iterations.svg)\n"


def test_the_page_of_the_project_is_up_to_date_with_its_logs():
    """Rows that were logged after the page was made are ignored, because logs only grow."""
    folder = ROOT / "experiments"
    tables = {path.stem: read_config(str(path)) for path in sorted(folder.glob("*.toml"))}
    project = ExperimentSet.from_dicts(folder, tables)
    text = (ROOT / "docs" / "reproduction.md").read_text(encoding="utf-8")
    (source,) = re.findall(r"^Rows of the logs: (.*)\.$", text, re.MULTILINE)
    counts = dict(item.rsplit(" ", 1) for item in source.split(", "))
    assert set(counts) == set(project.tables)
    rows = {name: project.log(name).rows()[: int(count)] for name, count in counts.items()}
    assert {name: str(len(found)) for name, found in rows.items()} == counts
    made = report(project, Results(rows), folder / "template.md", "reproduction")
    assert made == text


def test_the_logs_of_the_project_have_no_absolute_paths():
    for path in sorted((ROOT / "experiments" / "results").glob("*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            values = json.loads(line)
            assert not re.search(r'"(/|[A-Za-z]:\\\\)', json.dumps(values)), path.name
