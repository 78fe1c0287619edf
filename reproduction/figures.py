"""Draw the plots of the report."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from .experiment_set import ExperimentSet
from .methods import Method
from .results import Results, RunGroup
from .tables import MEASURES, TimingResults, model_title, run_groups

__all__ = ["FIGURES", "draw"]

Axes = Any

_STYLES = {
    ("mean_field", ""): ("MF", "s"),
    ("bregman", ""): ("BCRF (paper)", "o"),
    ("bregman", "half"): ("ours: BCRF half-split", "^"),
    ("bregman", "relaxed"): ("ours: BCRF relaxed", "v"),
}
_HEIGHT = 2.6


def draw(name: str, experiment_set: ExperimentSet, results: Results, path: Path) -> None:
    """Write a figure as an SVG file. Equal results give identical files."""
    pyplot = _pyplot()
    panels = FIGURES[name](experiment_set, results)
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
            "the plots need the matplotlib package: pip install '.[plots]'"
        ) from error
    matplotlib.use("svg")
    # Keep text in the SVG files as text elements instead of outlines of its letters, and make the
    # identifiers of the files reproducible.
    matplotlib.rcParams.update({"svg.hashsalt": "bcrf", "svg.fonttype": "none", "font.size": 7})
    from matplotlib import pyplot

    return pyplot


Panel = Callable[[Axes], None]


def _set_x_axis(axis: Axes, name: str, values: set[int]) -> None:
    """Make the x axis logarithmic, with a tick at each value."""
    axis.set_xscale("log")
    axis.set_xlabel(name)
    axis.set_xticks(sorted(values), list(map(str, sorted(values))))
    axis.minorticks_off()


def _iterations(experiment_set: ExperimentSet, results: Results) -> list[Panel]:
    """Plot scores against the number of iterations, for CRF-trained models."""
    return [
        _score_panel(experiment_set, results, group)
        for experiment in experiment_set.experiments.values()
        for group in run_groups(experiment, results)
        if "crf" in results.objectives(group)
    ]


def _score_panel(experiment_set: ExperimentSet, results: Results, group: RunGroup) -> Panel:
    experiment = experiment_set.experiments[group[0]]

    def panel(axis: Axes) -> None:
        curves: dict[tuple[str, str], list[tuple[int, float]]] = {}
        for decoder in experiment.decoders:
            method = Method.parse(decoder)
            found = results.statistic(group, "crf", decoder)
            if found is None:
                continue
            if method.family == "viterbi":
                axis.axhline(found.mean, color="black", linewidth=0.8, label="Viterbi")
            elif (method.family, method.variant) in _STYLES and method.iterations:
                curve = curves.setdefault((method.family, method.variant), [])
                curve.append((method.iterations, found.mean))
        for key, points in curves.items():
            label, marker = _STYLES[key]
            axis.plot(*zip(*sorted(points), strict=True), marker=marker, markersize=3, label=label)
        network = experiment.networks[group[2]].title
        axis.set_title(" ".join(part for part in (group[0], group[3], network, group[1]) if part))
        _set_x_axis(axis, "iterations", {k for points in curves.values() for k, _ in points})
        axis.set_ylabel("test score, %")
        axis.legend()

    return panel


def _scaling(experiment_set: ExperimentSet, results: Results) -> list[Panel]:
    """Plot the time of inference alone against the length and against the number of tags."""
    return [
        _time_panel(timed, measure, along)
        for plan in experiment_set.timings.values()
        for timed in TimingResults.all(plan, results)
        if timed.chains
        for measure in ("training", "decoding")
        for along in ("length", "tags")
    ]


def _time_panel(timed: TimingResults, measure: str, along: str) -> Panel:
    sizes = timed.plan.scaling
    fixed, value = ("tags", sizes.tag) if along == "length" else ("length", sizes.length)
    rows = [row for row in timed.chains if row[fixed] == value]

    def panel(axis: Axes) -> None:
        for backend, line in zip(timed.plan.backends, ("--", "-"), strict=False):
            axis.set_prop_cycle(None)  # a method has the same colour on each backend
            for method in timed.plan.methods(measure):
                points = sorted(
                    (row[along], row[measure][backend][method]["median"]) for row in rows
                )
                name = "forward" if method == "crf" else Method.parse(method).title
                label = f"{name} ({backend})"
                axis.plot(*zip(*points, strict=True), line, marker=".", label=label)
        axis.set_title(f"{measure}, {fixed} = {value}, batch {sizes.batch}\n{timed.title}")
        _set_x_axis(axis, along, {row[along] for row in rows})
        axis.set_yscale("log")
        axis.set_ylabel("seconds")
        axis.legend(fontsize=4, ncols=2)

    return panel


def _errors(experiment_set: ExperimentSet, results: Results) -> list[Panel]:
    """Plot the measures of the analysis against iterations, for CRF-trained models."""
    return [
        _error_panel(experiment_set, row, measure)
        for name in experiment_set.analyses
        for row in results.rows[name]
        if row["objective"] == "crf"
        for measure in MEASURES
    ]


def _error_panel(
    experiment_set: ExperimentSet, row: dict[str, Any], measure: tuple[str, float]
) -> Panel:
    name, temperature = measure
    scale = 1 if name == "error" else 100  # shares are shown in percent

    def panel(axis: Axes) -> None:
        entries = [e for e in row["results"] if e["temperature"] == temperature]
        for setting in dict.fromkeys(entry["setting"] for entry in entries):
            points = [
                (e["iterations"], scale * e[name]) for e in entries if e["setting"] == setting
            ]
            axis.plot(*zip(*sorted(points), strict=True), marker=".", label=setting)
        axis.set_title(f"{model_title(row, experiment_set.experiments)}\n{MEASURES[measure]}")
        _set_x_axis(axis, "iterations", {entry["iterations"] for entry in entries})
        if name == "error":
            axis.set_yscale("log")
        axis.legend(fontsize=5)

    return panel


FIGURES: dict[str, Callable[[ExperimentSet, Results], list[Panel]]] = {
    "iterations": _iterations,
    "scaling": _scaling,
    "errors": _errors,
}
"""Name of a figure -> function that returns its panels; an empty list if there are no results."""
