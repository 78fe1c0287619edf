"""Write the report: fill a template with tables, findings and plots made from the logs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any

from bcrf.tagger.files import atomic_write
from measurement.markdown import TemplateError, fill_template, table

from .accuracy_tables import (
    all_rows_tables,
    choice_table,
    corpus_title,
    ill_formed_tables,
    other_corpora_table,
    our_table,
    paper_table,
    repair_table,
    run_groups,
    temperature_tables,
)
from .analysis_tables import analysis_tables
from .claims import findings
from .experiment import Experiment, ExperimentError
from .experiment_set import ExperimentSet
from .figures import FIGURES, TITLES, draw
from .results import NOTHING_RUN, Results
from .timing_tables import timing_tables

__all__ = ["PAGES", "report", "write_report"]

PAGES = {"": "template.md", "-appendix": "appendix.md"}
"""End of the name of a page -> its template, in the folder of the experiments."""


def write_report(experiment_set: ExperimentSet, page: Path, plots: bool = True) -> list[Path]:
    """Write the page, its appendix, and the plots into one folder; return the paths of all files.

    Args:
        page: the path of the page; the names of all other files begin with its name.
        plots: whether to draw the plots.
    """
    results = Results.read(experiment_set)
    texts = {
        page.with_name(f"{page.stem}{end}.md"): report(
            experiment_set, results, experiment_set.folder / template, page.stem
        )
        for end, template in PAGES.items()
        if end == "" or (experiment_set.folder / template).exists()
    }
    page.parent.mkdir(parents=True, exist_ok=True)
    written = [*texts]
    if plots:
        for name, panels in FIGURES.items():
            if panels(experiment_set, results):
                path = page.with_name(_plot_name(page.stem, name))
                draw(name, experiment_set, results, path)
                written.append(path)
    for path, text in texts.items():
        with atomic_write(path) as file:
            file.write(text)
    return written


def report(experiment_set: ExperimentSet, results: Results, template: Path, name: str) -> str:
    """Return the text of the template, with marks such as `{{ paper pos }}` replaced.

    Args:
        name: name of the page; the file names of the plots begin with it.

    Raises:
        ExperimentError: the template has an unknown mark, or a mark with an unknown argument.
    """
    experiments = experiment_set.experiments
    timings, analyses = experiment_set.timings, experiment_set.analyses
    everywhere: Collection[str] = ()
    sections: dict[str, tuple[Collection[str], Callable[[str], str]]] = {
        "source": (everywhere, lambda _: _source(results)),
        "machines": (everywhere, lambda _: _machines(results)),
        "runs": (everywhere, lambda _: _runs(experiment_set, results)),
        "scoreboard": (everywhere, lambda _: _scoreboard(experiment_set, results)),
        "findings": (everywhere, lambda _: _findings(experiment_set, results)),
        "compared": (everywhere, lambda _: _compared(experiment_set, results)),
        "repair": (everywhere, lambda _: repair_table(_tested(experiments.values()), results)),
        "timing": (timings, lambda name: timing_tables(timings[name], experiments, results)),
        "analysis": (analyses, lambda name: analysis_tables(analyses[name], experiments, results)),
        "figure": (FIGURES, lambda figure: _figure(experiment_set, results, figure, name)),
    }
    of_experiments: dict[str, Callable[[Experiment, Results], str]] = {
        "paper": paper_table,
        "ours": our_table,
        "others": other_corpora_table,
        "temperatures": temperature_tables,
        "choice": choice_table,
        "rows": all_rows_tables,
        "ill-formed": ill_formed_tables,
    }
    for kind, make_table in of_experiments.items():
        sections[kind] = (
            experiments,
            lambda name, make=make_table: make(experiments[name], results),  # type: ignore[misc]
        )

    def checked(kind: str) -> Callable[[str], str]:
        known, make = sections[kind]

        def section(argument: str) -> str:
            if argument not in (known or ("",)):
                mark = f"{{{{ {kind} {argument} }}}}"
                expected = ", ".join(known) or "no argument"
                raise ExperimentError(
                    f"{template}: {mark}: unknown {argument!r}; expected {expected}"
                )
            return make(argument)

        return section

    try:
        return fill_template(template, {kind: checked(kind) for kind in sections})
    except TemplateError as error:
        raise ExperimentError(str(error)) from error


def _plot_name(page: str, name: str) -> str:
    return f"{page}-{name}.svg"


def _source(results: Results) -> str:
    """Return a sentence with the number of rows that the page uses of each log."""
    counts = (f"{name} {count}" for name, count in results.counts.items())
    return f"Rows of the logs: {', '.join(counts)}."


def _tested(experiments: Iterable[Experiment]) -> list[Experiment]:
    """Return the experiments that evaluate test files; others only choose settings."""
    return [experiment for experiment in experiments if "test" in experiment.splits]


def _scoreboard(experiment_set: ExperimentSet, results: Results) -> str:
    """Return one line for each claim: the paper's numbers, our numbers, the verdict, the seeds."""
    body = [
        [finding.claim, finding.paper_range, finding.our_range, finding.verdict, finding.seeds]
        for finding in findings(experiment_set, results)
    ]
    return table(["claim", "paper", "ours", "verdict", "seeds"], body)


def _findings(experiment_set: ExperimentSet, results: Results) -> str:
    lines = []
    for finding in findings(experiment_set, results):
        lines.append(f"- **{finding.verdict}**: {finding.claim}.")
        for one in finding.evidence:
            lines.append(f"    - {'' if one.holds else '**no:** '}{one.text}")
    return "\n".join(lines)


def _compared(experiment_set: ExperimentSet, results: Results) -> str:
    """Return our mean scores minus the paper's, over all rows that both have."""
    body = []
    for experiment in _tested(experiment_set.experiments.values()):
        for group in run_groups(experiment, results):
            _, variant, network, corpus = group
            found = {}
            for key, number in experiment.paper.items():
                ours = results.statistic(group, key[3], key[4])
                if key[:3] == (variant, network, corpus) and ours is not None:
                    found[f"{key[3]} + {key[4]}"] = ours.mean - number
            if found:
                worst, best = (choose(found, key=found.__getitem__) for choose in (min, max))
                mean = sum(found.values()) / len(found)
                body.append(
                    [
                        experiment.short_title,
                        corpus_title(corpus),
                        experiment.networks[network].title,
                        str(len(found)),
                        f"{mean:+.2f}",
                        f"{found[best]:+.2f} ({best})",
                        f"{found[worst]:+.2f} ({worst})",
                        "; ".join(dict.fromkeys(row["edition"] for row in results.of(group))),
                    ]
                )
    if not body:
        return NOTHING_RUN
    head = ["table", "corpus", "network", "cells", "mean", "highest", "lowest", "edition"]
    return table(head, body, left=3)


def _machines(results: Results) -> str:
    """Return a list of the machines on which each table was computed."""
    seen: dict[tuple[Any, ...], list[str]] = {}
    for name, rows in results.rows.items():
        for row in rows:
            machine = row["machine"]
            facts = (
                machine["device"],
                machine["cpu"],
                machine["cores"],
                machine["threads"],
                row["python"],
                row["torch"],
            )
            tables = seen.setdefault(facts, [])
            if name not in tables:
                tables.append(name)
    if not seen:
        return NOTHING_RUN
    head = ["device", "CPU", "cores", "threads", "Python", "torch", "tables"]
    return table(head, [[*map(str, facts), ", ".join(t)] for facts, t in seen.items()], left=7)


def _runs(experiment_set: ExperimentSet, results: Results) -> str:
    """Return a list of the commits and commands that made the rows of each table."""
    body = []
    for name in experiment_set.tables:
        seen: dict[tuple[str, str], int] = {}
        for row in results.rows[name]:
            origin = (row.get("commit", ""), row.get("command", ""))
            seen[origin] = seen.get(origin, 0) + 1
        for (commit, command), count in seen.items():
            body.append(
                [name, commit or "not logged", f"`{command}`" if command else "", str(count)]
            )
    if not body:
        return NOTHING_RUN
    return table(["table", "commit", "command", "rows"], body, left=3)


def _figure(experiment_set: ExperimentSet, results: Results, figure: str, page: str) -> str:
    if not FIGURES[figure](experiment_set, results):
        return NOTHING_RUN
    return f"![{TITLES[figure]}]({_plot_name(page, figure)})"
