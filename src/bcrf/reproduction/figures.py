"""The plots of the report."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from .accuracy_tables import places
from .analysis_tables import MEASURES, model_title
from .book import Book
from .methods import Method
from .results import Place, Results
from .timing_tables import Timed

__all__ = ["FIGURES", "draw"]

Axes = Any

_STYLES = {
    ("mean_field", ""): ("MF", "s"),
    ("bregman", ""): ("BCRF (paper)", "o"),
    ("bregman", "half"): ("ours: BCRF half-split", "^"),
    ("bregman", "relaxed"): ("ours: BCRF relaxed", "v"),
}
_HEIGHT = 2.6


def draw(name: str, book: Book, results: Results, path: Path) -> None:
    """Write a figure as SVG; the same results make the same file."""
    pyplot = _pyplot()
    panels = FIGURES[name](book, results)
    count = len(panels)
    columns = min(2, count)
    lines = -(-count // columns)
    figure, axes = pyplot.subplots(
        lines, columns, figsize=(4.2 * columns, _HEIGHT * lines), squeeze=False
    )
    for axis, panel in zip(axes.flat, panels, strict=False):
        panel(axis)
    for axis in axes.flat[count:]:
        axis.set_visible(False)
    figure.tight_layout()
    figure.savefig(path, format="svg", metadata={"Date": None})
    pyplot.close(figure)


def _pyplot() -> Any:
    try:
        import matplotlib
    except ImportError as error:
        raise ImportError(
            "the plots need the matplotlib package: pip install 'bcrf[plots]'"
        ) from error
    matplotlib.use("svg")
    # Text stays text, and names within the file are the same each time.
    matplotlib.rcParams.update({"svg.hashsalt": "bcrf", "svg.fonttype": "none", "font.size": 7})
    from matplotlib import pyplot

    return pyplot


Panel = Callable[[Axes], None]


def _along(axis: Axes, name: str, values: set[int]) -> None:
    """Numbers that double rather than grow one by one, each with its own mark."""
    axis.set_xscale("log")
    axis.set_xlabel(name)
    axis.set_xticks(sorted(values), list(map(str, sorted(values))))
    axis.minorticks_off()


def _iterations(book: Book, results: Results) -> list[Panel]:
    """Score against iterations, of CRF-trained models."""
    return [
        _score_panel(book, results, place)
        for experiment in book.experiments.values()
        for place in places(experiment, results)
        if "crf" in results.objectives(place)
    ]


def _score_panel(book: Book, results: Results, place: Place) -> Panel:
    experiment = book.experiments[place[0]]

    def panel(axis: Axes) -> None:
        curves: dict[tuple[str, str], list[tuple[int, float]]] = {}
        for decoder in experiment.decoders:
            method = Method.parse(decoder)
            found = results.statistic(place, "crf", decoder)
            if found is None:
                continue
            if method.family == "viterbi":
                axis.axhline(found.mean, color="black", linewidth=0.8, label="Viterbi")
            elif (method.family, method.style) in _STYLES and method.iterations:
                curve = curves.setdefault((method.family, method.style), [])
                curve.append((method.iterations, found.mean))
        for key, points in curves.items():
            label, marker = _STYLES[key]
            axis.plot(*zip(*sorted(points), strict=True), marker=marker, markersize=3, label=label)
        network = experiment.networks[place[2]].title
        axis.set_title(" ".join(part for part in (place[0], place[3], network, place[1]) if part))
        _along(axis, "iterations", {k for points in curves.values() for k, _ in points})
        axis.set_ylabel("test score, %")
        axis.legend()

    return panel


def _scaling(book: Book, results: Results) -> list[Panel]:
    """Seconds of inference alone, against length and against tags."""
    return [
        _time_panel(timed, measure, along)
        for plan in book.timings.values()
        for timed in Timed.all(plan, results)
        if timed.chains
        for measure in ("training", "decoding")
        for along in ("length", "tags")
    ]


def _time_panel(timed: Timed, measure: str, along: str) -> Panel:
    sizes = timed.plan.scaling
    fixed, value = ("tags", sizes.tag) if along == "length" else ("length", sizes.length)
    rows = [row for row in timed.chains if row[fixed] == value]

    def panel(axis: Axes) -> None:
        for backend, line in zip(timed.plan.backends, ("--", "-"), strict=False):
            axis.set_prop_cycle(None)  # a method has one colour
            for method in timed.plan.methods(measure):
                points = sorted(
                    (row[along], row[measure][backend][method]["median"]) for row in rows
                )
                name = "forward" if method == "crf" else Method.parse(method).title
                label = f"{name} ({backend})"
                axis.plot(*zip(*points, strict=True), line, marker=".", label=label)
        axis.set_title(f"{measure}, {fixed} = {value}, batch {sizes.batch}\n{timed.title}")
        _along(axis, along, {row[along] for row in rows})
        axis.set_yscale("log")
        axis.set_ylabel("seconds")
        axis.legend(fontsize=4, ncols=2)

    return panel


def _errors(book: Book, results: Results) -> list[Panel]:
    """What the analysis measures, against iterations, of CRF-trained models."""
    return [
        _error_panel(book, row, measure)
        for name in book.analyses
        for row in results.rows[name]
        if row["objective"] == "crf"
        for measure in MEASURES
    ]


def _error_panel(book: Book, row: dict[str, Any], measure: tuple[str, float]) -> Panel:
    name, temperature = measure
    scale = 1 if name == "error" else 100  # shares are shown in percent

    def panel(axis: Axes) -> None:
        entries = [e for e in row["results"] if e["temperature"] == temperature]
        for setting in dict.fromkeys(entry["setting"] for entry in entries):
            points = [
                (e["iterations"], scale * e[name]) for e in entries if e["setting"] == setting
            ]
            axis.plot(*zip(*sorted(points), strict=True), marker=".", label=setting)
        axis.set_title(f"{model_title(row, book.experiments)}\n{MEASURES[measure]}")
        _along(axis, "iterations", {entry["iterations"] for entry in entries})
        if name == "error":
            axis.set_yscale("log")
        axis.legend(fontsize=5)

    return panel


FIGURES: dict[str, Callable[[Book, Results], list[Panel]]] = {
    "iterations": _iterations,
    "scaling": _scaling,
    "errors": _errors,
}
"""Name -> its panels; none: there is nothing to show."""
