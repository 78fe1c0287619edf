"""The report: a template, with tables, findings and plots made from the logs."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from ..data import atomic_write
from .accuracy_tables import accuracy_tables, ill_formed_tables, places
from .analysis_tables import analysis_tables
from .book import Book
from .experiment import ExperimentError
from .figures import FIGURES, draw
from .findings import findings
from .markdown import table
from .results import Results
from .timing_tables import timing_tables

__all__ = ["report", "write_report"]

_MARK = re.compile(r"^\{\{ ?(.*?) ?\}\}$", re.MULTILINE)


def write_report(book: Book, template: Path, page: Path, plots: bool = True) -> list[Path]:
    """Write the page, and the plots beside it; what was written."""
    results = Results.read(book)
    text = report(book, results, template, page.stem)
    page.parent.mkdir(parents=True, exist_ok=True)
    written = [page]
    if plots:
        for name, panels in FIGURES.items():
            if panels(book, results):
                path = page.with_name(_plot(page.stem, name))
                draw(name, book, results, path)
                written.append(path)
    with atomic_write(page) as file:
        file.write(text)
    return written


def report(book: Book, results: Results, template: Path, name: str) -> str:
    """The template's text, in which lines such as `{{ table pos }}` are replaced.

    Args:
        name: of the page, after which plots are called.
    """

    names: dict[str, Collection[str]] = {
        "table": book.experiments,
        "ill-formed": book.experiments,
        "timing": book.timings,
        "analysis": book.analyses,
        "figure": FIGURES,
    }

    def replace(match: re.Match[str]) -> str:
        kind, _, argument = match[1].partition(" ")
        if kind not in _MAKERS:
            raise ExperimentError(f"{template}: {match[0]} is none of {', '.join(_MAKERS)}")
        known = names.get(kind, ("",))
        if argument not in known:
            raise ExperimentError(
                f"{template}: {match[0]}: {argument!r} is none of {', '.join(known)}"
            )
        return _MAKERS[kind](book, results, argument, name).rstrip("\n")

    return _MARK.sub(replace, template.read_text(encoding="utf-8"))


def _plot(page: str, name: str) -> str:
    return f"{page}-{name}.svg"


def _source(book: Book, results: Results, argument: str, page: str) -> str:
    """How much of each log went into the page."""
    counts = (f"{name} {count}" for name, count in results.counts.items())
    return f"Rows of the logs: {', '.join(counts)}."


def _findings(book: Book, results: Results, argument: str, page: str) -> str:
    lines = []
    for finding in findings(book, results):
        lines.append(f"- **{finding.verdict}**: {finding.claim}.")
        for one in finding.evidence:
            lines.append(f"    - {'' if one.holds else '**no:** '}{one.text}")
    return "\n".join(lines)


def _compared(book: Book, results: Results, argument: str, page: str) -> str:
    """Ours minus the paper's, over all rows that both have."""
    body = []
    for experiment in book.experiments.values():
        for place in places(experiment, results):
            _, variant, network, corpus = place
            found = {}
            for key, number in experiment.paper.items():
                ours = results.statistic(place, key[3], key[4])
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
                        "; ".join(dict.fromkeys(row["edition"] for row in results.of(place))),
                    ]
                )
    if not body:
        return "Nothing was run yet."
    head = ["table", "corpus", "network", "cells", "mean", "highest", "lowest", "edition"]
    return table(head, body, left=3)


def _machines(book: Book, results: Results, argument: str, page: str) -> str:
    """On what each table was obtained."""
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
        return "Nothing was run yet."
    head = ["device", "CPU", "cores", "threads", "Python", "torch", "tables"]
    return table(head, [[*map(str, facts), ", ".join(t)] for facts, t in seen.items()], left=7)


def _figure(book: Book, results: Results, argument: str, page: str) -> str:
    if not FIGURES[argument](book, results):
        return "Nothing was run yet."
    return f"![{argument}]({_plot(page, argument)})"


_MAKERS: dict[str, Callable[[Book, Results, str, str], str]] = {
    "source": _source,
    "machines": _machines,
    "findings": _findings,
    "compared": _compared,
    "figure": _figure,
    "table": lambda book, results, name, _: accuracy_tables(book.experiments[name], results),
    "ill-formed": lambda book, results, name, _: ill_formed_tables(book.experiments[name], results),
    "timing": lambda book, results, name, _: timing_tables(
        book.timings[name], book.experiments, results
    ),
    "analysis": lambda book, results, name, _: analysis_tables(
        book.analyses[name], book.experiments, results
    ),
}
