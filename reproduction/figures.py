"""Draw the figures of the report."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .accuracy_tables import corpus_title, run_groups
from .analysis_tables import MEASURES
from .experiment_set import ExperimentSet
from .methods import Method, Objective, objective_title
from .results import Results, RunGroup, Statistic
from .timing_tables import TimingResults

__all__ = ["FIGURES", "TITLES", "draw"]

Axes = Any
Panel = Callable[[Axes], None]

_PANEL_SIZE = (3.6, 2.7)
_FONT_SIZE = 8

# Family, variant and repair of a decoder -> label, marker, line style. A series has one repair.
_SERIES = {
    ("mean_field", "", False): ("MF", "s", "-"),
    ("mean_field", "", True): ("MF, MBR repair", "s", ""),
    ("bregman", "", False): ("BCRF (paper)", "o", "-"),
    ("bregman", "", True): ("BCRF (paper), MBR repair", "o", ""),
    ("bregman", "half", False): ("ours: half-split", "^", "-"),
    ("bregman", "relaxed", False): ("ours: relaxed", "v", "-"),
    ("bregman", "relaxed", True): ("ours: relaxed, MBR repair", "v", ""),
}


def draw(name: str, experiment_set: ExperimentSet, results: Results, path: Path) -> None:
    """Write a figure as an SVG file. Equal results give identical files."""
    pyplot = _pyplot()
    panels = FIGURES[name](experiment_set, results)
    count = len(panels)
    columns = min(2, count)
    lines = -(-count // columns)
    width, height = _PANEL_SIZE
    figure, axes = pyplot.subplots(
        lines, columns, figsize=(width * columns, height * lines), squeeze=False
    )
    for axis, panel in zip(axes.flat, panels, strict=False):
        panel(axis)
    for axis in axes.flat[count:]:
        axis.set_visible(False)
    # One legend for all panels; a label that several panels have is shown once.
    handles: dict[str, Any] = {}
    for axis in axes.flat[:count]:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    labels_a_line = 3 if columns > 1 else 2
    legend_height = 0.1 + 0.16 * -(-len(handles) // labels_a_line)
    figure.set_figheight(height * lines + legend_height)
    figure.tight_layout(rect=(0, legend_height / (height * lines + legend_height), 1, 1))
    figure.legend(
        list(handles.values()),
        list(handles),
        loc="lower center",
        ncols=labels_a_line,
        frameon=False,
        fontsize=_FONT_SIZE - 1,
        borderaxespad=0,
    )
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
    matplotlib.rcParams.update(
        {"svg.hashsalt": "bcrf", "svg.fonttype": "none", "font.size": _FONT_SIZE}
    )
    from matplotlib import pyplot

    return pyplot


def _set_x_axis(axis: Axes, name: str, values: set[int]) -> None:
    """Make the x axis logarithmic, with a tick at each value."""
    axis.set_xscale("log")
    axis.set_xlabel(name)
    axis.set_xticks(sorted(values), list(map(str, sorted(values))))
    axis.minorticks_off()


def _iterations(task: str, experiment_set: ExperimentSet, results: Results) -> list[Panel]:
    """Plot the scores of CRF-trained models against the number of iterations, for one task."""
    return [
        _score_panel(experiment_set, results, group)
        for experiment in experiment_set.experiments.values()
        if experiment.task == task and "test" in experiment.splits
        for group in run_groups(experiment, results)
        if "crf" in results.objectives(group) and group[1] == next(iter(experiment.variants))
    ]


def _score_panel(experiment_set: ExperimentSet, results: Results, group: RunGroup) -> Panel:
    experiment = experiment_set.experiments[group[0]]

    def panel(axis: Axes) -> None:
        series: dict[tuple[str, str, bool], dict[int, Statistic]] = {}
        for decoder in experiment.decoders:
            method = Method.parse(decoder)
            found = results.statistic(group, "crf", decoder)
            if found is None:
                continue
            if method.family == "viterbi":
                axis.axhline(found.mean, color="black", linewidth=0.8, label="Viterbi")
            elif method.iterations:
                key = (method.family, method.variant, method.mbr)
                series.setdefault(key, {})[method.iterations] = found
        for key, (label, marker, line) in _SERIES.items():
            if key in series:
                points = sorted(series[key].items())
                # A decoder with repair has the colour of the same decoder without it.
                color = f"C{list(dict.fromkeys(k[:2] for k in _SERIES)).index(key[:2])}"
                axis.errorbar(
                    [k for k, _ in points],
                    [found.mean for _, found in points],
                    yerr=[found.deviation or 0 for _, found in points],
                    fmt=marker + line,
                    color=color,
                    markerfacecolor="white" if key[2] else color,
                    markersize=4,
                    linewidth=1,
                    capsize=2,
                    label=label,
                )
        axis.set_title(_group_title(experiment_set, group))
        counts = {k for points in series.values() for k in points}
        _set_x_axis(axis, "iterations", counts)
        axis.set_ylabel("accuracy, %" if experiment.task == "pos" else "F1, %")

    return panel


def _curves(experiment_set: ExperimentSet, results: Results) -> list[Panel]:
    """Plot score on dev and loss against epochs, for groups with several temperatures."""
    return [
        _curve_panel(experiment_set, results, group, measure)
        for experiment in experiment_set.experiments.values()
        for group in run_groups(experiment, results)
        if any(Objective.parse(name).temperature != 1 for name in results.objectives(group))
        for measure in ("dev", "loss")
    ]


_LINES = {1.0: "-", 0.3: "--", 0.1: ":"}
"""Temperature -> line style of a training curve. The colour shows the solver."""


def _curve_panel(
    experiment_set: ExperimentSet, results: Results, group: RunGroup, measure: str
) -> Panel:
    def panel(axis: Axes) -> None:
        rows: dict[str, list[float]] = {}
        for row in results.of(group):  # the first seed of each objective
            if Objective.parse(row["objective"]).family in ("crf", "bregman"):
                rows.setdefault(row["objective"], row["training"][measure])
        names = sorted(rows, key=lambda name: Objective.parse(name).order)
        solvers = list(dict.fromkeys(Objective.parse(name).name for name in names))
        for name in names:
            objective = Objective.parse(name)
            values = [100 * value if measure == "dev" else value for value in rows[name]]
            title = objective_title(name).removeprefix("ours: ")
            axis.plot(
                range(1, len(values) + 1),
                values,
                color=f"C{solvers.index(objective.name)}",
                linestyle=_LINES.get(objective.temperature, "-."),
                linewidth=1,
                label=title if "τ" in title else f"{title}, τ = 1",
            )
        if measure == "dev":
            best = 100 * max(map(max, rows.values()))
            axis.set_ylim(best - 6, best + 0.5)
            axis.set_ylabel("score on dev, %")
        else:
            axis.set_yscale("log")
            axis.set_ylabel("loss of a training sentence")
        axis.set_title(_group_title(experiment_set, group))
        axis.set_xlabel("epoch")

    return panel


def _group_title(experiment_set: ExperimentSet, group: RunGroup) -> str:
    experiment = experiment_set.experiments[group[0]]
    network = experiment.networks[group[2]].title
    partial = "partial labels, " if len(experiment.variants) > 1 else ""
    return f"{corpus_title(group[3])}, {partial}{network}"


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


# Method -> its label and colour, which are the same in all panels. The exact method of training is
# the forward algorithm, that of decoding is Viterbi. Methods with 5 iterations are left out.
_TIMED = {
    "crf": ("forward, Viterbi", "black"),
    "viterbi": ("forward, Viterbi", "black"),
    "mean_field-10": ("MF-10", "C0"),
    "bregman-10": ("BCRF-10", "C1"),
    "bregman-10-relaxed": ("relaxed BCRF-10", "C3"),
    "certified-10": ("certified-10", "C4"),
}


def _time_panel(timed: TimingResults, measure: str, along: str) -> Panel:
    sizes = timed.plan.scaling
    fixed, value = ("tags", sizes.tag) if along == "length" else ("length", sizes.length)
    rows = [row for row in timed.chains if row[fixed] == value]

    def panel(axis: Axes) -> None:
        for backend, line in zip(timed.plan.backends, ("--", "-"), strict=False):
            for method in timed.plan.methods(measure):
                if method not in _TIMED:
                    continue
                points = sorted(
                    (row[along], 1000 * row[measure][backend][method]["median"]) for row in rows
                )
                name, color = _TIMED[method]
                label = f"{name}, {_BACKEND_TITLES.get(backend, backend)}"
                axis.plot(*zip(*points, strict=True), line, color=color, marker=".", label=label)
        axis.set_title(f"{measure}, {'T' if fixed == 'tags' else 'n'} = {value}; {timed.title}")
        _set_x_axis(axis, "length n" if along == "length" else "tags T", {r[along] for r in rows})
        axis.set_yscale("log")
        axis.set_ylabel(f"milliseconds, batch of {sizes.batch}")

    return panel


_BACKEND_TITLES = {"auto": "fastest backend", "few_launches": "few launches", "torch": "torch"}


def _errors(experiment_set: ExperimentSet, results: Results) -> list[Panel]:
    """Plot the analysis of one CRF-trained model: the first that the log has.

    The model of a segmenter is preferred, because its chains are the hardest.
    """
    rows = [
        row
        for name in experiment_set.analyses
        for row in results.rows[name]
        if row["objective"] == "crf"
    ]
    if not rows:
        return []
    rows.sort(key=lambda row: experiment_set.experiments[row["source"]].task != "segmentation")
    return [
        _error_panel(experiment_set, rows[0], measure)
        for measure in MEASURES
        if measure[1] < 1 and measure[0] in ("error", "certified")
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
        group = (row["source"], row["variant"], row["network"], row["corpus"])
        axis.set_title(_group_title(experiment_set, group))
        _set_x_axis(axis, "iterations", {entry["iterations"] for entry in entries})
        axis.set_ylabel(MEASURES[measure])
        if name == "error":
            axis.set_yscale("log")

    return panel


FIGURES: dict[str, Callable[[ExperimentSet, Results], list[Panel]]] = {
    **{
        f"iterations-{t}": functools.partial(_iterations, t) for t in ("pos", "segmentation", "ner")
    },
    "curves": _curves,
    "scaling": _scaling,
    "errors": _errors,
}
"""Name of a figure -> function that returns its panels; an empty list if there are no results."""

TITLES = {
    "iterations-pos": "Accuracy of part-of-speech tagging against iterations",
    "iterations-segmentation": "F1 of segmentation against iterations",
    "iterations-ner": "F1 of named entities against iterations",
    "curves": "Scores on dev and training losses against epochs, for CRF and BCRF training",
    "scaling": "Time of inference against length and number of tags",
    "errors": "Error of the marginals and share of certified sentences against iterations",
}
"""Name of a figure -> what it shows, for readers who do not see it."""
