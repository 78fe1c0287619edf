"""Write the page of the comparison of taggers from the rows of the log."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from measurement.markdown import count_threads, fill_template, table

from ..log import Row
from .corpora import CORPORA
from .run import finished_rows
from .systems import SYSTEMS

__all__ = ["MEASURES", "Measure", "losses", "render", "summary_line"]

TEMPLATE = Path(__file__).with_name("template.md")


@dataclass(frozen=True)
class Measure:
    """A number that is compared.

    Args:
        column: head of its column.
        words: what the number is, for sentences about losses.
        value: function that reads the number from a row.
        show: function that formats it.
        higher_is_better: otherwise, lower is better.
    """

    column: str
    words: str
    value: Callable[[Row], float]
    show: Callable[[float], str]
    higher_is_better: bool = False

    def mean(self, rows: Sequence[Row]) -> float:
        return statistics.fmean(map(self.value, rows))

    def is_worse(self, ours: Sequence[Row], theirs: Sequence[Row]) -> bool:
        """Whether our mean is worse, in the digits that the page shows."""
        a, b = self.mean(ours), self.mean(theirs)
        return self.show(a) != self.show(b) and (a < b) == self.higher_is_better


def best_on_dev(row: Row) -> tuple[float, float]:
    """Return the best score on dev, and the CPU time after which the training first had it."""
    curve = row["training"]["curve"]
    _, score, _, cpu_seconds = max(curve, key=lambda point: (point[1], -point[0]))
    return score, cpu_seconds


def _training(name: str) -> Callable[[Row], float]:
    return lambda row: float(row["training"][name])


def _tokens_per_second(row: Row) -> float:
    seconds = statistics.median(row["tagging"]["cpu_seconds"])
    return float(row["tagging"]["tokens"]) / seconds


def _percent(value: float) -> str:
    return f"{100 * value:.2f}"


def _seconds(value: float) -> str:
    return f"{value:,.0f} s" if value >= 10 else f"{value:.1f} s"


def _megabytes(value: float) -> str:
    return f"{value / 1e6:,.0f} MB" if value >= 1e8 else f"{value / 1e6:.1f} MB"


MEASURES = (
    Measure("test, %", "score on test", lambda r: r["test"]["score"], _percent, True),
    Measure("dev, %", "best score on dev", lambda r: best_on_dev(r)[0], _percent, True),
    Measure("training", "time of training", _training("cpu_seconds"), _seconds),
    Measure("to best dev", "time to the best score on dev", lambda r: best_on_dev(r)[1], _seconds),
    Measure("tokens/s", "tokens per second", _tokens_per_second, lambda x: f"{x:,.0f}", True),
    Measure("model", "size of the model", _training("bytes"), _megabytes),
    Measure(
        "memory, training", "memory of training", lambda r: r["training"]["memory"], _megabytes
    ),
    Measure("memory, tagging", "memory of tagging", lambda r: r["tagging"]["memory"], _megabytes),
    Measure("start-up", "start-up", lambda r: statistics.median(r["startup"]), _seconds),
)


def summary_line(row: Row) -> str:
    """Return one line about a logged row, for the terminal."""
    about = f"{row['system']}, {row['corpus']}, seed {row['seed']}"
    if "error" in row:
        return f"{about}: not measured: {row['error']}"
    return f"{about}: " + ", ".join(f"{m.column} {m.show(m.value(row))}" for m in MEASURES)


def render(rows: Sequence[Row]) -> str:
    """Return the text of the page."""
    groups = _groups(rows)
    failed = _failed(rows)
    return fill_template(
        TEMPLATE,
        {
            "systems": lambda _: "".join(
                f"- **{name}**{_version(name, rows)}: {system.description}.\n"
                for name, system in SYSTEMS.items()
            ),
            "machine": lambda _: _machine(rows),
            "load": lambda _: _load(rows),
            "tables": lambda _: "\n".join(_sections(groups, failed)),
            "commands": lambda _: _commands(rows),
        },
    )


# Corpus, number of threads of the training -> system -> rows of its seeds.
_Groups = dict[tuple[str, int], dict[str, list[Row]]]


def _groups(rows: Sequence[Row]) -> _Groups:
    groups: _Groups = {}
    for row in finished_rows(rows).values():
        systems = groups.setdefault((row["corpus"], row["threads"]), {})
        systems.setdefault(row["system"], []).append(row)
    order = list(CORPORA)
    return dict(sorted(groups.items(), key=lambda item: (order.index(item[0][0]), item[0][1])))


def _failed(rows: Sequence[Row]) -> list[Row]:
    """Return the last error of each combination that has no finished row."""
    finished = finished_rows(rows)
    keys = ("system", "corpus", "seed", "threads")
    last = {tuple(row[key] for key in keys): row for row in rows if "error" in row}
    return [row for key, row in last.items() if key not in finished]


def _sections(groups: _Groups, failed: Sequence[Row]) -> Iterator[str]:
    for corpus, threads in dict.fromkeys(
        [*groups, *((row["corpus"], row["threads"]) for row in failed)]
    ):
        systems = groups.get((corpus, threads), {})
        yield f"## {CORPORA[corpus].title}, trained with {count_threads(threads)}\n"
        if systems:
            yield _table(corpus, systems)
            yield from (f"{text}\n" for text in losses(systems))
        for row in failed:
            if (row["corpus"], row["threads"]) == (corpus, threads):
                yield f"{row['system']}, seed {row['seed']}, was not measured: {row['error']}.\n"


def _table(corpus: str, systems: dict[str, list[Row]]) -> str:
    measures = [
        f"{CORPORA[corpus].score} on {m.column}" if m.column.endswith("%") else m.column
        for m in MEASURES
    ]
    body = [
        [name, str(len(systems[name])), *(_cell(measure, systems[name]) for measure in MEASURES)]
        for name in SYSTEMS
        if name in systems
    ]
    return table(["tagger", "seeds", *measures], body)


def _cell(measure: Measure, rows: Sequence[Row]) -> str:
    """Return the mean over seeds; for scores, also their standard deviation."""
    text = measure.show(measure.mean(rows))
    if len(rows) > 1 and measure.show is _percent:
        text += f" ± {measure.show(statistics.stdev(map(measure.value, rows)))}"
    return text


def losses(systems: dict[str, list[Row]]) -> Iterator[str]:
    """Yield a sentence for each pair of our taggers and others: where ours is worse."""
    ours = [name for name in systems if SYSTEMS[name].adapter == "ours"]
    others = [name for name in SYSTEMS if name in systems and name not in ours]
    for name in ours:
        for other in others:
            worse = [
                f"{m.words} ({_cell(m, systems[name])} against {_cell(m, systems[other])})"
                for m in MEASURES
                if m.is_worse(systems[name], systems[other])
            ]
            if worse:
                yield f"**{name} is worse than {other}** in: {'; '.join(worse)}."
            else:
                yield f"{name} is not worse than {other} in any of these numbers."


def _version(name: str, rows: Sequence[Row]) -> str:
    versions = _distinct(row["version"] for row in rows if row["system"] == name)
    return f" {' / '.join(versions)}" if versions else ""


def _machine(rows: Sequence[Row]) -> str:
    cpus = _distinct(f"{r['machine']['cpu']} ({r['machine']['cores']} cores)" for r in rows)
    software = _distinct(
        f"Python {r['software']['python']}, torch {r['software']['torch']}" for r in rows
    )
    return f"{'; '.join(cpus)}; {'; '.join(software)}"


def _load(rows: Sequence[Row]) -> str:
    """Return a sentence that says how busy the machine was."""
    finished = finished_rows(rows).values()
    loads = [value for row in finished for value in row["loads"] if value is not None]
    if not loads:
        return "The system reports no load."
    highest = max(loads)
    cores = min(row["machine"]["cores"] for row in finished)
    text = f"The load average was between {min(loads):.1f} and {highest:.1f}"
    if highest <= cores:
        return f"{text} on {cores} cores."
    return (
        f"{text} on {cores} cores: other programs were running. CPU time does not contain the time "
        "that a process waits for a core, but shared caches make it longer, for all taggers alike. "
        "The start-up is wall-clock time, and therefore too long."
    )


def _commands(rows: Sequence[Row]) -> str:
    commits = _distinct(
        f"`{row['command']}` (commit {row['commit']})" for row in finished_rows(rows).values()
    )
    return "; ".join(commits) or "none"


def _distinct(values: Iterable[str | None]) -> list[str]:
    return [value for value in dict.fromkeys(values) if value]
