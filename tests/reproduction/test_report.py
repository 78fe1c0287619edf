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
from reproduction.analysis_tables import MEASURES
from reproduction.claims import CLAIMS
from reproduction.figures import FIGURES, TITLES
from reproduction.report import PAGES
from reproduction.results import Statistic
from tests.reproduction_cases import APPENDIX, STAND_IN, TEMPLATE, experiment_set
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
    pairs = (("crf", "bregman-5"), ("crf", "viterbi"))
    assert found.paired_scores(PLACE, *pairs) == [(80.0, 90.0)]
    assert found.gaps(PLACE, *pairs) == [-10.0]
    assert found.gaps(PLACE, ("crf", "bregman-5"), ("crf", "bregman-9")) == []


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
        row(network="small", viterbi=94.0),
    ]
    text = page(tmp_path, rows, "{{ paper pos }}\n", pos=STAND_IN)
    assert text.splitlines() == [
        "| training | decoding | English, no layers | English, small (stand-in for large) |",
        "| --- | --- | ---: | ---: |",
        "| CRF training | Viterbi | 91.00 ± 1.41 <small>91.3</small> | 94.00 <small>95.0</small> |",
        "| CRF training | BCRF, 10 it. | 90.00 ± 1.41 <small>91.2</small> | – |",
        "",
        "Seeds: crf 1–2. Left out: Klingon, no layers (not run yet).",
    ]
    assert page(tmp_path, [], "{{ paper pos }}\n") == "Nothing was run yet.\n"


def test_parts_of_the_paper_that_were_not_run_are_named_with_their_reason(tmp_path):
    text = page(tmp_path, [row(viterbi=93.0)], "{{ paper pos }}\n", pos=STAND_IN)
    assert "Left out: Klingon, no layers (not run yet); English, large (too slow)." in text


def test_our_own_rows_have_a_table_of_their_own(tmp_path):
    rows = [
        row(viterbi=90.0, bregman_10=89.0, bregman_10_relaxed=89.5, certified_10=90.0),
        row(objective="bregman-tau0.3", viterbi=91.0, bregman_10=90.5),
        row(objective="crf-tau0.3", viterbi=91.5),
    ]
    assert page(tmp_path, rows, "{{ ours pos }}\n").splitlines() == [
        "| training | decoding | English, no layers |",
        "| --- | --- | ---: |",
        "| CRF training | ours: BCRF relaxed, 10 it. | 89.50 |",
        "| ours: CRF training, τ = 0.3 | Viterbi | 91.50 |",
        "| ours: BCRF training, τ = 0.3 | Viterbi | 91.00 |",
        "| ours: BCRF training, τ = 0.3 | BCRF, 10 it. | 90.50 |",
        "",
        "Seeds: crf 1, crf-tau0.3 1, bregman-tau0.3 1.",
    ]


def test_the_appendix_has_all_rows(tmp_path):
    rows = [
        row(viterbi=90.0, certified_10=90.0),
        row(objective="bregman-10-relaxed", viterbi=88.0),
        row(network="1", viterbi=93.0),
    ]
    lines = page(tmp_path, rows, "{{ rows pos }}\n").splitlines()
    assert "### POS, no layers" in lines
    assert "| CRF training | Viterbi | 90.00 <small>91.3</small> |" in lines
    assert "| CRF training | ours: certified, 10 it. | 90.00 |" in lines
    assert "| ours: BCRF training, 10 projections, relaxed | Viterbi | 88.00 |" in lines
    assert "- English: UD r2.15; 1,234 training sentences." in lines
    # A network that was run, but is not in the paper.
    assert "### POS, 1" in lines
    assert "| CRF training | Viterbi | 93.00 |" in lines


def test_the_best_temperature_on_dev_is_bold(tmp_path):
    rows = [
        row(viterbi=90.0, bregman_10=89.0, dev=88.0),
        row(seed=1, viterbi=92.0, dev=89.0),
        row(objective="crf-tau0.3", viterbi=91.5, dev=88.2),
        row(objective="bregman-tau0.1", viterbi=91.0, dev=90.0),
    ]
    rows[0]["evaluations"]["test"]["calibration"] = {"ece": 0.025}
    assert page(tmp_path, rows, "{{ temperatures pos }}\n").splitlines()[2:] == [
        "| training | seeds | epochs | dev | Viterbi | BCRF-10 | relaxed BCRF-10 | agreement | "
        "certified | ECE |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
        "| CRF training, τ = 1 | 2 | 2 | **88.50 ± 0.71** | 91.00 ± 1.41 | 89.00 | – | – | – | "
        "2.50 |",
        "| CRF training, τ = 0.3 | 1 | 2 | 88.20 | 91.50 | – | – | – | – | – |",
        "| BCRF training, τ = 0.1 | 1 | 2 | **90.00** | 91.00 | – | – | – | – | – |",
    ]
    assert page(tmp_path, [row(viterbi=1.0)], "{{ temperatures pos }}\n").startswith("Nothing")


def test_a_choice_shows_the_scores_on_dev(tmp_path):
    rows = [
        row(objective="mean_field-5", viterbi=60.0, mean_field_5=70.0),
        row(objective="mean_field-10-uniform", viterbi=61.0, mean_field_5=80.0),
    ]
    for one in rows:
        one["evaluations"] = {"dev": one["evaluations"]["test"]}
    decoders = rows[1]["evaluations"]["dev"]["decoders"]
    decoders["mean_field-5-uniform"] = decoders["mean_field-5"] | {"score": 0.66}
    lines = page(tmp_path, rows, "{{ choice pos }}\n").splitlines()
    assert lines[0].startswith("| training | Viterbi | MF, 5 it. |")
    assert lines[2].startswith("| `mean_field-5` | 60.00 | 70.00 |")
    assert lines[2].endswith("| **65.00** |")
    assert lines[3].startswith("| `mean_field-10-uniform` | 61.00 | 66.00 |")
    assert lines[3].endswith("| 63.50 |")


def test_the_differences_to_viterbi_are_taken_for_each_seed(tmp_path):
    rows = [
        row(seed=0, viterbi=90.0, bregman_10=89.0),
        row(seed=1, viterbi=92.0, bregman_10=91.5),
        row(seed=2, bregman_10=10.0),
    ]
    text = page(tmp_path, rows, "{{ repair }}\n")
    assert "| POS: English, no layers | -0.75 ± 0.35 | – | – | – | – | – |" in text


def test_the_scoreboard_has_a_line_for_each_claim(tmp_path):
    rows = [row(viterbi=91.5, bregman_10=91.3, bregman_5=91.5, certified_10=91.5)]
    text = page(tmp_path, rows, "{{ scoreboard }}\n")
    claim = "POS: BCRF decoding of a CRF-trained model is within 0.1 of Viterbi"
    assert f"| {claim} | -0.1 | -0.20 to +0.00 | fails in 1 of 2 | 1 |" in text
    verdicts = [line.split(" | ")[3] for line in text.splitlines()[2:]]
    assert len(verdicts) == len(CLAIMS)
    assert {v.partition(" in ")[0] for v in verdicts} == {"not measured", "holds", "fails"}


def test_the_origin_of_rows_is_listed(tmp_path):
    rows = [
        {**row(viterbi=90.0), "commit": "abc", "command": "python -m reproduction pos"},
        {**row(seed=1, viterbi=90.0), "commit": "abc", "command": "python -m reproduction pos"},
        row(seed=2, viterbi=90.0),
    ]
    lines = page(tmp_path, rows, "{{ runs }}\n").splitlines()
    assert lines[2:] == [
        "| pos | abc | `python -m reproduction pos` | 2 |",
        "| pos | not logged |  | 1 |",
    ]


def test_ill_formed_sentences_are_shares(tmp_path):
    rows = [
        row("segmentation", corpus="chinese", ill_formed=5, mean_field_5=70.0),
        row("segmentation", corpus="chinese", seed=1, ill_formed=10, mean_field_5=70.0),
    ]
    text = page(tmp_path, rows, "{{ ill-formed segmentation }}\n{{ ill-formed pos }}\n")
    assert "| CRF training | MF, 5 it. | 15.0 % |" in text
    assert text.endswith("Nothing was run yet.\n")


def test_speed_ups_are_relative_to_the_first_method(tmp_path):
    text = page(tmp_path, [timed(ratio=2.5)], "{{ timing timing }}\n")
    assert "### Times on Abacus, 1 thread" in text
    # 0.8 s for 8 batches; beside it the paper's, in the first version only
    assert "| POS: English, no layers | 100.0 | ×2.5 | ×2.5 <small>×6.1</small> |" in text
    assert "| POS: English, no layers | 25.0 | ×2.5 | ×2.5 |" in text
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
    assert "| POS: English, no layers (fresh weights) | 100.0 | ×0.50 | ×0.50 <small>×6.1" in second


def test_without_times_there_are_no_tables_of_missing_numbers(tmp_path):
    assert page(tmp_path, [], "{{ timing timing }}\n") == "Nothing was run yet.\n"


def test_the_comparison_with_the_paper_averages_all_common_cells(tmp_path):
    rows = [row(viterbi=91.5, bregman_10=90.2, mean_field_5=1.0)]
    text = page(tmp_path, rows, "{{ compared }}\n")
    numbers = "2 | -0.40 | +0.20 (crf + viterbi) | -1.00 (crf + bregman-10) | UD r2.15"
    assert f"| POS | English | no layers | {numbers} |" in text


# ------------------------------------------------------------------------------- pages and plots


def test_the_report_without_results(tmp_path):
    text = page(tmp_path, [], TEMPLATE + APPENDIX)
    assert text.startswith("# Results\n\nRows of the logs: pos 0, segmentation 0, partial 0, ")
    assert text.count("Nothing was run yet.") == 17
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


def write_templates(which: ExperimentSet, page: str = TEMPLATE) -> None:
    which.folder.mkdir(exist_ok=True)
    for name, text in zip(PAGES.values(), (page, APPENDIX), strict=True):
        (which.folder / name).write_text(text)


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
    names = [
        *("page.md", "page-appendix.md", "page-iterations-pos.svg"),
        *("page-scaling.svg", "page-errors.svg"),
    ]
    which = experiment_set(tmp_path)
    rows = [row(viterbi=91.3, bregman_5=90.0, bregman_10=91.0, mean_field_5=88.0)]
    write_logs(which, [*rows, *SCALED, ANALYSED])
    write_templates(which)
    pages = [tmp_path / name / "page.md" for name in ("one", "two")]
    for one in pages:
        written = write_report(which, one)
        assert [path.name for path in written] == names
        for name in re.findall(r"!\[.*\]\((.*)\)", one.read_text()):
            assert (one.parent / name).is_file()
    for name in names:
        assert pages[0].with_name(name).read_bytes() == pages[1].with_name(name).read_bytes()
    drawn = pages[0].with_name("page-iterations-pos.svg").read_text()
    for words in ("Viterbi", "BCRF (paper)", "MF", "English, no layers"):
        assert words in drawn


def panel_of(figure: str, rows: list[dict[str, Any]], tmp_path: Path) -> Any:
    axis = pytest.importorskip("matplotlib.figure").Figure().add_subplot()
    (panel,) = FIGURES[figure](experiment_set(tmp_path), results(rows))
    panel(axis)
    return axis


def test_repaired_decoders_are_series_of_their_own(tmp_path):
    rows = [
        row("segmentation", corpus="chinese", seed=0, mean_field_5=70.0, mean_field_10=71.0),
        row("segmentation", corpus="chinese", seed=1, mean_field_5=72.0, mean_field_10=73.0),
    ]
    decoders = {"decoders": ["mean_field-K", "mean_field-10-mbr"]}
    for one in rows:
        found = one["evaluations"]["test"]["decoders"]
        found["mean_field-10-mbr"] = dict(found["mean_field-10"], score=0.8)
    which = experiment_set(tmp_path, segmentation=decoders)
    axis = pytest.importorskip("matplotlib.figure").Figure().add_subplot()
    (panel,) = FIGURES["iterations-segmentation"](which, results(rows))
    panel(axis)
    handles, labels = axis.get_legend_handles_labels()
    series = dict(zip(labels, handles, strict=True))
    assert list(series) == ["MF", "MF, MBR repair"]
    assert list(series["MF"].lines[0].get_ydata()) == [71.0, 72.0]
    assert list(series["MF, MBR repair"].lines[0].get_ydata()) == [80.0]
    bars = series["MF"].lines[2][0].get_segments()  # one standard deviation above and below
    assert bars[0][1][1] - bars[0][0][1] == pytest.approx(2 * 2**0.5)


def test_curves_are_drawn_for_groups_with_temperatures(tmp_path):
    assert FIGURES["curves"](experiment_set(tmp_path), results([row(viterbi=1.0)])) == []
    rows = [row(viterbi=90.0, dev=88.0), row(objective="bregman-tau0.3", viterbi=90.0, dev=89.0)]
    rows[0]["training"]["loss"], rows[1]["training"]["loss"] = [3.0, 1.5], [2.0, 1.0]
    figure = pytest.importorskip("matplotlib.figure").Figure()
    drawn = {}
    for panel in FIGURES["curves"](experiment_set(tmp_path), results(rows)):
        axis = figure.add_subplot()
        panel(axis)
        lines = {line.get_label(): list(line.get_ydata()) for line in axis.get_lines()}
        drawn[axis.get_ylabel()] = lines
    crf, bregman = "CRF training, τ = 1", "BCRF training, τ = 0.3"
    assert drawn == {
        "score on dev, %": {crf: [44.0, 88.0], bregman: [44.5, 89.0]},
        "loss of a training sentence": {crf: [3.0, 1.5], bregman: [2.0, 1.0]},
    }


def test_every_figure_has_a_title():
    assert TITLES.keys() == FIGURES.keys()


def test_shares_are_drawn_in_percent_and_errors_as_they_are(tmp_path):
    figure = pytest.importorskip("matplotlib.figure").Figure()
    # The model of a segmenter is preferred.
    segmenter = ANALYSED | {"source": "segmentation", "corpus": "chinese"}
    panels = FIGURES["errors"](experiment_set(tmp_path), results([ANALYSED, segmenter]))
    drawn = {}
    for panel in panels:
        axis = figure.add_subplot()
        panel(axis)
        assert axis.get_title() == "Chinese, no layers"
        drawn[axis.get_ylabel()] = [list(line.get_ydata()) for line in axis.get_lines()]
    assert drawn == {
        MEASURES["error", 0.1]: [[0.5, 0.0005]] * 2,
        MEASURES["certified", 0.1]: [[25.0, 25.0]] * 2,
    }


def test_without_matplotlib_the_extra_is_named(tmp_path, monkeypatch):
    import builtins

    real = builtins.__import__

    def refuse(name: str, *arguments: Any, **options: Any) -> Any:
        if name.partition(".")[0] == "matplotlib":
            raise ModuleNotFoundError("No module named 'matplotlib'", name="matplotlib")
        return real(name, *arguments, **options)

    which = experiment_set(tmp_path)
    write_logs(which, [row(viterbi=91.3)])
    write_templates(which, "{{ figure iterations-pos }}\n")
    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(ImportError, match=r"pip install '\.\[plots\]'"):
        write_report(which, tmp_path / "page.md")
    assert not (tmp_path / "page.md").exists()
    write_report(which, tmp_path / "page.md", plots=False)
    title = TITLES["iterations-pos"]
    assert (tmp_path / "page.md").read_text() == f"![{title}](page-iterations-pos.svg)\n"


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
    for end, template in PAGES.items():
        text = (ROOT / "docs" / f"reproduction{end}.md").read_text(encoding="utf-8")
        assert report(project, Results(rows), folder / template, "reproduction") == text


def test_the_page_is_short():
    text = (ROOT / "docs" / "reproduction.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 400


def test_the_logs_of_the_project_have_no_absolute_paths():
    for path in sorted((ROOT / "experiments" / "results").glob("*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            values = json.loads(line)
            assert not re.search(r'"(/|[A-Za-z]:\\\\)', json.dumps(values)), path.name
