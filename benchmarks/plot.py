"""Draw the plot of the page: time of other systems divided by time of ours."""

from __future__ import annotations

from pathlib import Path

from .cases import CASES
from .run_results import BenchmarkResults, Comparison

__all__ = ["PANELS", "draw"]

PANELS: dict[str, tuple[Comparison, ...]] = {
    "loss + gradient, shared transitions": (
        Comparison("crf", "pytorch-crf", "shared", "loss"),
        Comparison("bregman-10", "pytorch-crf", "shared", "loss"),
        Comparison("crf", "eager loop", "shared", "loss"),
    ),
    "loss + gradient, per-pair transitions": (
        Comparison("crf", "torch-struct", "per-pair", "loss"),
        Comparison("bregman-10", "torch-struct", "per-pair", "loss"),
        Comparison("crf", "eager loop", "per-pair", "loss"),
    ),
    "decoding, shared transitions, peaked chains": (
        Comparison("viterbi", "pytorch-crf", "shared", "peaked"),
        Comparison("certified-10", "pytorch-crf", "shared", "peaked"),
        Comparison("viterbi", "torbi", "shared", "peaked"),
        Comparison("viterbi", "python-crfsuite", "shared", "peaked"),
    ),
}


def draw(found: BenchmarkResults, path: Path, threads: int = 1) -> bool:
    """Write the plot as SVG; return False if matplotlib is not installed."""
    try:
        import matplotlib
    except ImportError:
        return False
    matplotlib.use("svg")
    # Equal data must give identical files. Text is written as text, not as paths.
    matplotlib.rcParams.update({"svg.hashsalt": "bcrf", "svg.fonttype": "none", "font.size": 8})
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(len(PANELS), 1, figsize=(8, 8), sharex=True)
    for axis, (title, comparisons) in zip(axes, PANELS.items(), strict=True):
        width = 0.8 / len(comparisons)
        for i, comparison in enumerate(comparisons):
            ratios = comparison.ratios(found, CASES, threads)
            bars = {place: ratio for place, ratio in enumerate(ratios.values()) if ratio}
            places = [place + (i + 0.5) * width - 0.4 for place in bars]
            # Bars start at ratio 1 (equal times). A bar that points down means that ours is slower.
            heights = [ratio - 1 for ratio in bars.values()]
            label = f"{comparison.rival} / {comparison.ours}"
            axis.bar(places, heights, width, bottom=1, label=label)
        axis.set_yscale("log")
        axis.axhline(1, color="black", linewidth=0.8)
        axis.set_title(title)
        axis.set_ylabel("times longer")
        axis.margins(y=0.25)
        axis.legend(ncols=len(comparisons), fontsize=7, loc="upper right")
    axes[-1].set_xticks(range(len(CASES)), list(CASES))
    axes[-1].set_xlim(-0.5, len(CASES) - 0.5)
    axes[-1].set_xlabel("B x n x T")
    figure.suptitle(f"Time of a rival / time of ours, {_threads(threads)}")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
    return True


def _threads(count: int) -> str:
    return "one thread" if count == 1 else f"{count} threads"
