"""docs/benchmarks.md, from one run of the log."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from .cases import CASES, PAIRS, PENALTY, TASKS
from .depth import BATCH, TAGS
from .findings import Findings, Group, duration, times
from .log import Row
from .plot import draw
from .requirements import verdicts
from .systems import SYSTEMS

__all__ = ["text", "write"]

FEW = 7
"""A median of fewer samples is marked."""

HEADER = """# Benchmarks

Made by `make bench ARGS="--budget {budget:g}"`, run {run}, from the log
[`benchmarks/results/speed.jsonl`](../benchmarks/results/speed.jsonl).

| | |
|---|---|
{machine}

All systems of a case are timed in one process, in turns, in a new order each round; a number is
the median, with quartiles in brackets (†: of fewer than {few} samples, because a call takes
seconds). Shapes are B x n x T, scores float32 N(0, 1), all sentences
of full length. "Shared": one transition matrix [T, T]; "per-pair": [B, n-1, T, T]. BIES: 16 types
with constraints; systems that know none get {penalty:g} in their transitions (and in the first and
last scores), ours -inf. Gradients are by emissions and transitions. Our value checks are on. Before
it is timed, every result is compared with ours in float64: a wrong one has no time but a line under
[what was not measured](#what-was-not-measured). This page claims nothing about GPUs but the
[depth](#depth) of the computations.
"""


def write(rows: Iterable[Row], page: Path, elsewhere: Iterable[Iterable[Row]] = ()) -> None:
    """The page, and the plot beside it. `elsewhere`: runs on other processors."""
    found = Findings(rows)
    plot = page.with_suffix(".svg")
    image = f"\n![times longer than ours]({plot.name})\n" if draw(found, plot) else ""
    page.write_text(_page(found, image, [Findings(rows) for rows in elsewhere]))


def text(rows: Iterable[Row]) -> str:
    """The page without the plot, to look at."""
    return _page(Findings(rows), "")


def _page(found: Findings, image: str, elsewhere: Sequence[Findings] = ()) -> str:
    facts = found.start["machine"].items()
    machine = "\n".join(f"| {name} | {value} |" for name, value in facts if value)
    run = found.rows[0]["run"] if found.rows else "?"
    facts = {"run": run, "budget": found.start["budget"], "machine": machine}
    rest = (_defeats, _times, _exactness, _depth, _memory, _tagging, _missing, _settings)
    sections = [_promises(found), _elsewhere(elsewhere), *(section(found) for section in rest)]
    parts = [HEADER.format(**facts, penalty=PENALTY, few=FEW) + image, *map("\n".join, sections)]
    return "\n".join(part for part in parts if part) + "\n"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield "|---" * len(head) + "|"
    for row in rows:
        yield f"| {' | '.join(row)} |"


def _threads(count: int) -> str:
    return "1 thread" if count == 1 else f"{count} threads"


def _promises(found: Findings) -> Iterator[str]:
    yield "## Requirements\n"
    yield "The worst shape decides, for each number of threads apart.\n"
    yield from _verdicts(found)


def _elsewhere(runs: Iterable[Findings]) -> Iterator[str]:
    for found in runs:
        machine = found.start["machine"]
        yield f"## The same on {machine['cpu']}, {machine['vector']}\n"
        yield f"Run {found.rows[0]['run']}, commit {machine['commit']}; its times are in the log.\n"
        yield from _verdicts(found)


def _verdicts(found: Findings) -> Iterator[str]:
    head = [text for n in found.threads for text in (_threads(n), "met")]
    yield from _table(
        ["", "requirement", *head],
        (
            [
                v.number,
                v.text,
                *(cell for n in found.threads for cell in (v.measured.get(n, ""), v.mark(n))),
            ]
            for v in verdicts(found)
        ),
    )
    yield ""


def _defeats(found: Findings) -> Iterator[str]:
    yield "## Where we lose\n"
    yield (
        "Every peer or floor that takes less time than one of ours: in how many of the "
        "measurements where both were timed, and at most how many times less.\n"
    )
    places: dict[tuple[str, str], dict[str, list[tuple[float, str]]]] = {}
    for (case, pairs, task, threads), ours, rival, ratio in found.losses():
        where = f"{case}, {pairs}, {_threads(threads)}"
        rivals = places.setdefault((ours, _short(task)), {})
        rivals.setdefault(rival, []).append((ratio, where))
    if not places:
        yield "Nowhere.\n"
        return
    yield from _table(
        ["ours", "task", "faster"],
        (
            [ours, task, "; ".join(_defeat(found, ours, task, *item) for item in rivals.items())]
            for (ours, task), rivals in places.items()
        ),
    )
    yield ""
    yield from _viterbi_or_certified(found)


def _short(task: str) -> str:
    return "loss + gradient" if task == "loss" else "decoding"


def _defeat(
    found: Findings, ours: str, task: str, rival: str, places: list[tuple[float, str]]
) -> str:
    groups = [group for group in found.groups if _short(group[2]) == task]
    both = sum(found.ratio(group, ours, rival) is not None for group in groups)
    ratio, where = max(places)
    return f"{rival} {len(places)} of {both}, {times(ratio)} at {where}"


def _viterbi_or_certified(found: Findings) -> Iterator[str]:
    groups = [group for group in found.groups if group[2] != "loss"]
    ratios = [found.ratio(group, "certified-10", "viterbi") for group in groups]
    known = [ratio for ratio in ratios if ratio is not None]
    if known:
        slower = sum(ratio > 1 for ratio in known)
        yield (
            f"On this CPU exact Viterbi is cheaper than the certified decoder in {slower} of "
            f"{len(known)} measurements (certified / Viterbi: {times(min(known))} to "
            f"{times(max(known))}).\n"
        )


def _times(found: Findings) -> Iterator[str]:
    for task, words in TASKS.items():
        for pairs in PAIRS:
            for threads in found.threads:
                names = found.systems(pairs, task, threads)
                if not names:
                    continue
                cases = [case for case in CASES if (case, pairs, task, threads) in found.groups]
                base = "crf" if task == "loss" else "viterbi"
                title = f"{words}: {pairs} transitions, {_threads(threads)}"
                yield f"## {title[0].upper()}{title[1:]}\n"
                yield f"Median [quartiles], and the ratio to `{base}`.\n"
                yield from _table(
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


def _cell(found: Findings, group: Group, name: str, base: str) -> str:
    row = found.row(group, name)
    if row is None or "median" not in row:
        return "–"
    mark = "†" if row["samples"] < FEW else ""
    text = duration(row["median"], row["low"], row["high"]) + mark
    ratio = found.ratio(group, name, base)
    return text if ratio is None or name == base else f"{text} {times(ratio)}"


def _exactness(found: Findings) -> Iterator[str]:
    """How far each system was from the right answer, at its worst."""
    rows = [row for row in found.of("speed") if "error" not in row]
    yield "## Exactness\n"
    yield (
        "The largest errors over all shapes, against float64; for decoders, the smallest share of "
        "sentences whose best sequence was found (MBR decoders do not look for it).\n"
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

    yield from _table(
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


def _depth(found: Findings) -> Iterator[str]:
    rows = found.of("depth")
    if not rows:
        return
    lengths = sorted({row["length"] for row in rows})
    counts = {(row["system"], row["length"]): str(row.get("depth", "–")) for row in rows}
    yield "## Depth\n"
    yield (
        "The longest chain of dependent tensor operations in a call: what a GPU would have to "
        "launch in sequence, however much runs side by side. Views are free; an operation follows "
        "whatever wrote to the memory that it reads; a value that Python reads holds up everything "
        "after it. Ours: torch backend, as compiled code and other devices see it (fake tensors, "
        "no look at values; a compiled kernel would be one operation, and say nothing). A fused "
        "operation such as `logsumexp` counts once. The certified decoder includes Viterbi there, "
        f"because without a look at values it always runs. B = {BATCH}, T = {TAGS}, shared "
        "transitions.\n"
    )
    yield from _table(
        ["", *(f"n = {length}" for length in lengths)],
        (
            [name, *(counts.get((name, length), "–") for length in lengths)]
            for name in dict.fromkeys(row["system"] for row in rows)
        ),
    )
    yield ""


def _memory(found: Findings) -> Iterator[str]:
    rows = found.of("memory")
    if not rows:
        return
    yield "## Memory\n"
    yield (
        f"Peak memory that one loss + gradient adds to a fresh process that holds its inputs, "
        f"{rows[0]['case']}, shared transitions; freed blocks go back to the system at once.\n"
    )
    yield from _table(
        ["system", "MB"],
        ([r["system"], f"{r['bytes'] / 1e6:.0f}" if "bytes" in r else r["error"]] for r in rows),
    )
    yield ""


def _tagging(found: Findings) -> Iterator[str]:
    rows = found.of("tagging")
    if not rows:
        return
    yield "## Tagging\n"
    yield (
        "Tokens per second from end to end (`Tagger.tag`: reading, network, decoding, repair and "
        "results), at the median, with the quartiles in brackets; tokens are words, or characters "
        "where words are to be found. Networks of the paper's size (768 wide, scores of all "
        "pairs), trained for one epoch on the sample corpora, batches of at most 4,096 tokens.\n"
    )
    counts = sorted({row["threads"] for row in rows})
    speeds = {(row["network"], row["decoder"], row["threads"]): row for row in rows}
    yield from _table(
        ["network", "decoder", *map(_threads, counts)],
        (
            [*key, *(_speed(speeds.get((*key, count))) for count in counts)]
            for key in dict.fromkeys((row["network"], row["decoder"]) for row in rows)
        ),
    )
    yield ""


def _speed(row: Row | None) -> str:
    if row is None:
        return "–"
    slow, median, fast = (row["tokens"] / row[key] for key in ("high", "median", "low"))
    return f"{median:,.0f} [{slow:,.0f}, {fast:,.0f}]"


def _missing(found: Findings) -> Iterator[str]:
    """One line for each system and reason."""
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
    yield from _table(
        ["system", "why", "where"],
        (
            [
                name,
                why.replace("|", "/"),
                f"{len(where)} measurements" if len(where) > 3 else "; ".join(where),
            ]
            for (name, why), where in places.items()
        ),
    )
    yield ""


def _settings(found: Findings) -> Iterator[str]:
    yield "## Systems\n"
    yield from _table(
        ["system", "version", "called as"],
        ([s["system"], s["version"], s["settings"]] for s in found.start["systems"]),
    )
