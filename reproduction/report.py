"""Write the report: fill a template with tables, findings and plots made from the logs."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from bcrf.tagger.files import atomic_write
from measurement.markdown import TemplateError, fill_template, table

from .experiment import ExperimentError
from .experiment_set import ExperimentSet
from .figures import FIGURES, draw
from .findings import findings
from .results import Results
from .tables import (
    accuracy_tables,
    analysis_tables,
    ill_formed_tables,
    run_groups,
    timing_tables,
)

__all__ = ["report", "write_report"]

_NOTHING = "Nothing was run yet."


def write_report(
    experiment_set: ExperimentSet, template: Path, page: Path, plots: bool = True
) -> list[Path]:
    """Write the page, and the plots into the same folder; return the paths of all these files."""
    results = Results.read(experiment_set)
    text = report(experiment_set, results, template, page.stem)
    page.parent.mkdir(parents=True, exist_ok=True)
    written = [page]
    if plots:
        for name, panels in FIGURES.items():
            if panels(experiment_set, results):
                path = page.with_name(_plot_name(page.stem, name))
                draw(name, experiment_set, results, path)
                written.append(path)
    with atomic_write(page) as file:
        file.write(text)
    return written


def report(experiment_set: ExperimentSet, results: Results, template: Path, name: str) -> str:
    """Return the text of the template, with marks such as `{{ table pos }}` replaced.

    Args:
        name: name of the page; the file names of the plots begin with it.

    Raises:
        ExperimentError: the template has an unknown mark, or a mark with an unknown argument.
    """
    experiments = experiment_set.experiments
    sections: dict[str, tuple[Collection[str], Callable[[str], str]]] = {
        "source": ((), lambda _: _source(results)),
        "machines": ((), lambda _: _machines(results)),
        "summary": ((), lambda _: _summary(experiment_set, results)),
        "findings": ((), lambda _: _findings(experiment_set, results)),
        "compared": ((), lambda _: _compared(experiment_set, results)),
        "table": (experiments, lambda table: accuracy_tables(experiments[table], results)),
        "ill-formed": (experiments, lambda table: ill_formed_tables(experiments[table], results)),
        "timing": (
            experiment_set.timings,
            lambda table: timing_tables(experiment_set.timings[table], experiments, results),
        ),
        "analysis": (
            experiment_set.analyses,
            lambda table: analysis_tables(experiment_set.analyses[table], experiments, results),
        ),
        "figure": (FIGURES, lambda figure: _figure(experiment_set, results, figure, name)),
    }

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


def _summary(experiment_set: ExperimentSet, results: Results) -> str:
    """Return one line for each claim: the paper's numbers, our numbers and the verdict."""
    body = []
    for number, finding in enumerate(findings(experiment_set, results), start=1):
        cells = [finding.paper_range, finding.our_range, finding.verdict]
        body.append([str(number), finding.claim, *cells])
    return table(["", "claim", "paper", "ours", "verdict"], body, left=2)


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
    for experiment in experiment_set.experiments.values():
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
                        experiment.name,
                        corpus,
                        experiment.networks[network].title,
                        str(len(found)),
                        f"{mean:+.2f}",
                        f"{found[best]:+.2f} ({best})",
                        f"{found[worst]:+.2f} ({worst})",
                        "; ".join(dict.fromkeys(row["edition"] for row in results.of(group))),
                    ]
                )
    if not body:
        return _NOTHING
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
        return _NOTHING
    head = ["device", "CPU", "cores", "threads", "Python", "torch", "tables"]
    return table(head, [[*map(str, facts), ", ".join(t)] for facts, t in seen.items()], left=7)


def _figure(experiment_set: ExperimentSet, results: Results, figure: str, page: str) -> str:
    if not FIGURES[figure](experiment_set, results):
        return _NOTHING
    return f"![{figure}]({_plot_name(page, figure)})"
