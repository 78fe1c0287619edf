"""Write docs/benchmarks.md from one run of the log."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from measurement.markdown import count_threads, fill_template, table

from .cases import CASES, PAIRS, PENALTY, TASKS
from .depth import BATCH, TAGS
from .log import Row
from .overhead import OVERHEADS
from .plot import draw
from .requirements import verdicts
from .run_results import BenchmarkResults, Group, duration, microseconds, times
from .systems import SYSTEMS

__all__ = ["text", "write"]

FEW = 7
"""The page marks medians of fewer samples than this."""

TEMPLATES = {
    "cpu": Path(__file__).parent / "template.md",
    "cuda": Path(__file__).parent / "benchmarks_gpu_template.md",
}


def write(rows: Iterable[Row], page: Path, elsewhere: Iterable[Iterable[Row]] = ()) -> None:
    """Write the page, and the plot into the same folder.

    Args:
        rows: the rows of the run.
        page: the file to write.
        elsewhere: rows of runs on other processors.
    """
    found = BenchmarkResults(rows)
    plot = page.with_suffix(".svg")
    image = (
        f"![time of other systems divided by time of ours]({plot.name})"
        if draw(found, plot)
        else ""
    )
    page.write_text(_page(found, image, [BenchmarkResults(rows) for rows in elsewhere]))


def text(rows: Iterable[Row]) -> str:
    """Return the page without the plot."""
    return _page(BenchmarkResults(rows), "")


def _page(found: BenchmarkResults, image: str, elsewhere: Sequence[BenchmarkResults] = ()) -> str:
    values = {
        "run": str(found.rows[0]["run"]) if found.rows else "?",
        "budget": f"{found.start['budget']:g}",
        "few": str(FEW),
        "penalty": f"{PENALTY:g}",
        "machine": _machine(found),
        "plot": image,
    }
    sections: dict[str, Callable[[BenchmarkResults], Iterator[str]]] = {
        "requirements": _requirements,
        "elsewhere": lambda _: _elsewhere(elsewhere),
        "faster": _faster_systems,
        "layers": _layers,
        "times": _times,
        "exactness": _exactness,
        "depth": _depth,
        "memory": _memory,
        "tagging": _tagging,
        "missing": _missing,
        "systems": _systems,
    }

    def value(name: str) -> Callable[[str], str]:
        return lambda _: values[name]

    def section(name: str) -> Callable[[str], str]:
        return lambda _: "\n".join(sections[name](found))

    marks = {**{name: value(name) for name in values}, **{name: section(name) for name in sections}}
    # Remove the empty lines of sections that have nothing to show.
    return (
        re.sub(r"\n{3,}", "\n\n", fill_template(TEMPLATES[found.device], marks)).rstrip("\n") + "\n"
    )


def _machine(found: BenchmarkResults) -> str:
    facts = {**found.start["machine"]}
    return table(["", ""], [[name, str(fact)] for name, fact in facts.items() if fact], left=2)


def _requirements(found: BenchmarkResults) -> Iterator[str]:
    yield "## Requirements\n"
    yield "A requirement must hold on every shape. Each number of threads is checked by itself.\n"
    yield from _verdicts(found)


def _elsewhere(runs: Iterable[BenchmarkResults]) -> Iterator[str]:
    for found in runs:
        machine = found.start["machine"]
        yield f"## Requirements on {machine['cpu']}, {machine['vector']}\n"
        yield f"Run {found.rows[0]['run']}, commit {machine['commit']}. Its times are in the log.\n"
        yield from _verdicts(found)


def _verdicts(found: BenchmarkResults) -> Iterator[str]:
    head = [text for n in found.threads for text in (count_threads(n), "met")]
    yield table(
        ["", "requirement", *head],
        (
            [
                v.number,
                v.text,
                *(cell for n in found.threads for cell in (v.measured.get(n, ""), v.mark(n))),
            ]
            for v in verdicts(found)
        ),
        left=2 + len(head),
    )
    yield ""


def _faster_systems(found: BenchmarkResults) -> Iterator[str]:
    yield "## Where we lose\n"
    yield (
        'The table lists every other system that takes less time than one of ours. "k of m" '
        "counts the measurements in which it is faster, of all that have both systems. Then "
        "follows the largest ratio, and where it was measured.\n"
    )
    places: dict[tuple[str, str], dict[str, list[tuple[float, str]]]] = {}
    for (case, pairs, task, threads), ours, rival, ratio in found.faster_systems():
        where = f"{case}, {pairs}, {count_threads(threads)}"
        rivals = places.setdefault((ours, _short(task)), {})
        rivals.setdefault(rival, []).append((ratio, where))
    if not places:
        yield "Nowhere.\n"
        return
    yield table(
        ["ours", "task", "faster"],
        (
            [
                ours,
                task,
                "; ".join(_faster_text(found, ours, task, *item) for item in rivals.items()),
            ]
            for (ours, task), rivals in places.items()
        ),
        left=3,
    )
    yield ""
    yield from _viterbi_or_certified(found)


def _short(task: str) -> str:
    return "loss + gradient" if task == "loss" else "decoding"


def _faster_text(
    found: BenchmarkResults, ours: str, task: str, rival: str, places: list[tuple[float, str]]
) -> str:
    groups = [group for group in found.groups if _short(group[2]) == task]
    both = sum(found.ratio(group, ours, rival) is not None for group in groups)
    ratio, where = max(places)
    return f"{rival} {len(places)} of {both}, {times(ratio)} at {where}"


def _viterbi_or_certified(found: BenchmarkResults) -> Iterator[str]:
    groups = [group for group in found.groups if group[2] != "loss"]
    ratios = [found.ratio(group, "certified-10", "viterbi") for group in groups]
    known = [ratio for ratio in ratios if ratio is not None]
    if known:
        slower = sum(ratio > 1 for ratio in known)
        yield (
            f"Exact Viterbi is cheaper than the certified decoder in {slower} of "
            f"{len(known)} measurements (certified / Viterbi: {times(min(known))} to "
            f"{times(max(known))}).\n"
        )


def _layers(found: BenchmarkResults) -> Iterator[str]:
    """Yield the section on the time that the layers add to `bcrf.loss`, at all shapes."""
    measured = list(dict.fromkeys(row["case"] for row in found.of("overhead")))
    rows = []
    for overhead in OVERHEADS if measured else ():
        for threads in found.threads:
            cells = [
                _overhead_cell(found.overhead(case, overhead.layer, threads)) for case in measured
            ]
            rows.append([overhead.layer, overhead.base, count_threads(threads), *cells])
    if not rows:
        return
    yield "## Overhead of the layers\n"
    yield (
        "Time of the loss + gradient of a layer, minus that of `bcrf.loss` on the same scores and "
        "sentence lengths: median [quartiles] of the differences of alternating calls. The layer "
        "also converts the mask, or the tags -100, to lengths. In the BIES shape both apply "
        "constraints.\n"
    )
    yield table(["layer", "compared with", "threads", *measured], rows, left=3)


def _overhead_cell(row: Row | None) -> str:
    if row is None or "median" not in row:
        return "–"
    return f"{microseconds(row['median'])} [{1e6 * row['low']:,.0f}, {1e6 * row['high']:,.0f}]"


def _times(found: BenchmarkResults) -> Iterator[str]:
    for task, words in TASKS.items():
        for pairs in PAIRS:
            for threads in found.threads:
                names = found.systems(pairs, task, threads)
                if not names:
                    continue
                cases = [case for case in CASES if (case, pairs, task, threads) in found.groups]
                base = "crf" if task == "loss" else "viterbi"
                title = f"{words}: {pairs} transitions"
                if found.device == "cpu":
                    title += f", {count_threads(threads)}"
                yield f"## {title[0].upper()}{title[1:]}\n"
                yield f"Median [quartiles], and the ratio to `{base}`.\n"
                yield table(
                    ["system", *cases],
                    (
                        [
                            name,
                            *(_cell(found, (c, pairs, task, threads), name, base) for c in cases),
                        ]
                        for name in names
                    ),
                )
                yield ""


def _cell(found: BenchmarkResults, group: Group, name: str, base: str) -> str:
    row = found.row(group, name)
    if row is None or "median" not in row:
        return "–"
    mark = "†" if row["samples"] < FEW else ""
    text = duration(row["median"], row["low"], row["high"]) + mark
    ratio = found.ratio(group, name, base)
    return text if ratio is None or name == base else f"{text} {times(ratio)}"


def _exactness(found: BenchmarkResults) -> Iterator[str]:
    """Yield the section on the largest error of each system."""
    rows = [row for row in found.of("speed") if "error" not in row]
    yield "## Exactness\n"
    yield (
        "The first two columns are the largest errors over all shapes, compared with float64. The "
        "others are the smallest share of sentences whose best sequence was found (MBR decoders do "
        "not search for it).\n"
    )

    def worst(name: str, task: str | None, key: str, pick: Callable[[list[float]], float]) -> str:
        values = [
            row[key]
            for row in rows
            if row["system"] == name and key in row and task in (None, row["task"])
        ]
        if not values:
            return ""
        return f"{pick(values):.0%}" if key == "optimal" else f"{pick(values):.1e}"

    yield table(
        ["system", "loss, relative", "derivative", "best, peaked", "best, N(0, 1)"],
        (
            [
                name,
                worst(name, None, "loss_error", max),
                worst(name, None, "gradient_error", max),
                worst(name, "peaked", "optimal", min),
                worst(name, "normal", "optimal", min),
            ]
            for name in SYSTEMS
            if any(row["system"] == name and len(row.keys() & _EXACT) for row in rows)
        ),
    )
    yield ""


_EXACT = {"loss_error", "gradient_error", "optimal"}


def _depth(found: BenchmarkResults) -> Iterator[str]:
    rows = found.of("depth")
    if not rows:
        return
    lengths = sorted({row["length"] for row in rows})
    counts = {(row["system"], row["length"]): str(row.get("depth", "–")) for row in rows}
    yield "## Depth\n"
    yield (
        "The depth of a call is the length of its longest chain of dependent tensor operations. A "
        "GPU has to launch these operations one after the other, however much it computes in "
        "parallel. Views are free. An operation depends on all operations that wrote to the memory "
        "that it reads. A value that Python reads is a barrier. Ours run on the torch backend with "
        "fake tensors, as compiled code and other devices run them; a native kernel would be a "
        "single operation and tell nothing. A fused operation such as `logsumexp` counts once. The "
        "certified decoder includes Viterbi, which always runs if values cannot be read. "
        f"B = {BATCH}, T = {TAGS}, shared transitions.\n"
    )
    yield table(
        ["", *(f"n = {length}" for length in lengths)],
        (
            [name, *(counts.get((name, length), "–") for length in lengths)]
            for name in dict.fromkeys(row["system"] for row in rows)
        ),
    )
    yield ""


def _memory(found: BenchmarkResults) -> Iterator[str]:
    rows = found.of("memory")
    if not rows:
        return
    yield "## Memory\n"
    yield (
        "Peak memory that one loss + gradient adds to a new process that holds its inputs: "
        f"{rows[0]['case']}, shared transitions. Freed blocks return to the system at once.\n"
    )
    yield table(
        ["system", "MB"],
        ([r["system"], f"{r['bytes'] / 1e6:.0f}" if "bytes" in r else r["error"]] for r in rows),
    )
    yield ""


def _tagging(found: BenchmarkResults) -> Iterator[str]:
    rows = found.of("tagging")
    if not rows:
        return
    yield "## Tagging\n"
    yield (
        "Tokens per second of `Tagger.tag`: median [quartiles]. The time includes reading, the "
        "network, decoding, repair and the results. Tokens are words; for segmentation they are "
        "characters. The networks have the paper's size (width 768, transition scores for each "
        "pair of words). They were trained for one epoch on the sample corpora. A batch has at "
        "most 4,096 tokens.\n"
    )
    counts = sorted({row["threads"] for row in rows})
    speeds = {(row["network"], row["decoder"], row["threads"]): row for row in rows}
    yield table(
        ["network", "decoder", *map(count_threads, counts)],
        (
            [*key, *(_speed(speeds.get((*key, count))) for count in counts)]
            for key in dict.fromkeys((row["network"], row["decoder"]) for row in rows)
        ),
        left=2,
    )
    yield ""


def _speed(row: Row | None) -> str:
    if row is None:
        return "–"
    slow, median, fast = (row["tokens"] / row[key] for key in ("high", "median", "low"))
    return f"{median:,.0f} [{slow:,.0f}, {fast:,.0f}]"


def _missing(found: BenchmarkResults) -> Iterator[str]:
    """Yield one line for each system that was not measured, with the reason."""
    yield "## What was not measured\n"
    places: dict[tuple[str, str], dict[str, None]] = {}
    for row in found.of("speed"):
        if "error" in row:
            where = f"{_short(row['task'])}, {row['pairs']}, {row['case']}"
            places.setdefault((row["system"], row["error"]), {})[where] = None
    for row in [*found.of("depth"), *found.of("memory"), *found.of("growth")]:
        if "error" in row:
            places.setdefault((row["system"], row["error"]), {})[row["row"]] = None
    if not places:
        yield "Nothing.\n"
        return
    yield table(
        ["system", "why", "where"],
        (
            [
                name,
                why.replace("|", "/"),
                f"{len(where)} measurements" if len(where) > 3 else "; ".join(where),
            ]
            for (name, why), where in places.items()
        ),
        left=3,
    )
    yield ""


def _systems(found: BenchmarkResults) -> Iterator[str]:
    yield "## Systems\n"
    yield table(
        ["system", "version", "called as"],
        ([s["system"], s["version"], s["settings"]] for s in found.start["systems"]),
        left=3,
    )
