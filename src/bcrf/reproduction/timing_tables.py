"""Tables of speed-ups."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .experiment import Experiment
from .markdown import MISSING, table, times
from .methods import Method
from .plans import TimingPlan
from .results import Results
from .scaling import CHAINS

__all__ = ["Timed", "timing_tables"]

_VERSIONS = {
    "torch": "like for like: all methods are torch operations",
    "auto": "the fastest backend of each method",
}
_BASES = {"training": "the forward algorithm", "decoding": "Viterbi"}


class Timed:
    """The rows of a plan on one device with so many threads: of networks, and of chains alone."""

    def __init__(self, plan: TimingPlan, results: Results, hardware: tuple[Any, ...]) -> None:
        self.plan, self.hardware = plan, hardware
        rows = [row for row in results.rows[plan.name] if _hardware(row) == hardware]
        self.cpu = rows[0]["machine"]["cpu"] if rows else ""
        self.rows = [row for row in rows if row["source"] != CHAINS]
        self.chains = [row for row in rows if row["source"] == CHAINS]

    @classmethod
    def all(cls, plan: TimingPlan, results: Results) -> list[Timed]:
        found = dict.fromkeys(_hardware(row) for row in results.rows[plan.name])
        return [cls(plan, results, hardware) for hardware in found]

    @property
    def title(self) -> str:
        device, threads = self.hardware
        if device != "cpu":
            return str(device)
        return f"{self.cpu}, {threads} thread{'' if threads == 1 else 's'}"

    def row(self, source: str, network: str, corpus: str) -> dict[str, Any] | None:
        place = {"source": source, "network": network, "corpus": corpus}
        for row in self.rows:
            if all(row.get(name) == value for name, value in place.items()):
                return row
        return None

    def speed_up(
        self, measure: str, backend: str, place: tuple[str, str, str], method: str
    ) -> float | None:
        """How many times less a method takes than the first one of the plan."""
        row = self.row(*place)
        if row is None or measure not in row:
            return None
        seconds = row[measure].get(backend, {})
        base = self.plan.methods(measure)[0]
        if method not in seconds or base not in seconds:
            return None
        return float(seconds[base]["median"] / seconds[method]["median"])


def timing_tables(plan: TimingPlan, experiments: dict[str, Experiment], results: Results) -> str:
    """For each hardware, measure and backend."""
    everywhere = Timed.all(plan, results) or [Timed(plan, results, ("no machine yet", None))]
    parts = []
    for timed in everywhere:
        parts.append(f"### Times on {timed.title}\n")
        if loads := [row["load"] for row in timed.rows if row["load"] is not None]:
            parts.append(
                f"Other load of the machine: {min(loads):g} to {max(loads):g} processes.\n"
            )
        for measure in ("training", "decoding"):
            for version, backend in zip("abcdef", plan.backends, strict=False):
                about = _VERSIONS.get(backend, f"backend {backend}")
                parts.append(
                    f"**{measure.capitalize()}, speed-up over {_BASES[measure]}** "
                    f"({version}: {about})\n"
                )
                parts.append(_table(timed, experiments, measure, backend))
    return "\n".join(parts)


def _table(timed: Timed, experiments: dict[str, Experiment], measure: str, backend: str) -> str:
    base, *methods = timed.plan.methods(measure)
    compared = backend == timed.plan.backends[0]
    beside = {key[4] for key in timed.plan.paper if compared and key[0] == measure}
    head = ["table", "corpus", "network", f"{_name(base)}, ms per batch"]
    for method in methods:
        head += [_name(method), "paper"] if method in beside else [_name(method)]
    body = []
    for source, network, corpus in _places(timed, measure):
        title = experiments[source].networks[network].title
        row = timed.row(source, network, corpus)
        cells = [source, corpus, title + _mark(row), _milliseconds(timed, row, measure, backend)]
        for method in methods:
            ratio = timed.speed_up(measure, backend, (source, network, corpus), method)
            cells.append(times(ratio))
            if method in beside:
                paper = timed.plan.paper.get((measure, source, network, corpus, method))
                cells.append("" if paper is None else times(paper))
        body.append(cells)
    return table(head, body, left=3)


def _places(timed: Timed, measure: str) -> Iterator[tuple[str, str, str]]:
    """The paper's, and what else was timed."""
    wanted = timed.plan.training if measure == "training" else timed.plan.decoding
    paper = [(key[1], key[2], key[3]) for key in timed.plan.paper if key[0] == measure]
    measured = [
        (row["source"], row["network"], row["corpus"]) for row in timed.rows if measure in row
    ]
    found = dict.fromkeys((*paper, *measured))
    yield from sorted((p for p in found if p[0] in wanted), key=lambda p: wanted.index(p[0]))


def _name(method: str) -> str:
    return "forward" if method == "crf" else Method.parse(method).title


def _mark(row: dict[str, Any] | None) -> str:
    return " (fresh weights)" if row is not None and row["weights"] == "fresh" else ""


def _milliseconds(timed: Timed, row: dict[str, Any] | None, measure: str, backend: str) -> str:
    if row is None or measure not in row:
        return MISSING
    base = timed.plan.methods(measure)[0]
    return f"{1000 * row[measure][backend][base]['median'] / row['batches']:.1f}"


def _hardware(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["device"], row.get("threads")
