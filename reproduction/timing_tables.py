"""Write the tables of times: speed-ups over the forward algorithm and over Viterbi."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from measurement.markdown import count_threads, table

from .accuracy_tables import corpus_title
from .experiment import Experiment
from .methods import Method
from .network_launches import NETWORK
from .plans import TimingPlan
from .results import NOTHING_RUN, Results
from .timing_jobs import CHAINS

__all__ = ["TimingResults", "timing_tables"]

MISSING = "missing"

_VERSIONS = {
    "few_launches": "like for like: all methods are torch operations in few launches",
    "torch": "like for like: all methods are torch operations",
    "auto": "the fastest backend of each method",
}
_BASES = {"training": "the forward algorithm", "decoding": "Viterbi"}


class TimingResults:
    """The rows of a timing table on one device with one number of threads.

    Rows that were measured on other backends than the plan's are left out.

    Args:
        plan: the table.
        results: all logged results.
        hardware: device and number of threads.
    """

    def __init__(self, plan: TimingPlan, results: Results, hardware: tuple[Any, ...]) -> None:
        self.plan, self.hardware = plan, hardware
        rows = [row for row in _rows(plan, results) if _hardware(row) == hardware]
        self.cpu = rows[0]["machine"]["cpu"] if rows else ""
        self.rows = [row for row in rows if row["source"] != CHAINS]
        self.chains = [row for row in rows if row["source"] == CHAINS]

    @classmethod
    def all(cls, plan: TimingPlan, results: Results) -> list[TimingResults]:
        """Return one object for each pair of device and number of threads in the log."""
        found = dict.fromkeys(_hardware(row) for row in _rows(plan, results))
        return [cls(plan, results, hardware) for hardware in found]

    @property
    def title(self) -> str:
        device, threads = self.hardware
        if device != "cpu":
            return str(device)
        return f"{self.cpu}, {count_threads(threads)}"

    def row(self, source: str, network: str, corpus: str) -> dict[str, Any] | None:
        """Return the row of a network and corpus."""
        place = {"source": source, "network": network, "corpus": corpus}
        for row in self.rows:
            if all(row.get(name) == value for name, value in place.items()):
                return row
        return None

    def speed_up(
        self, measure: str, backend: str, place: tuple[str, str, str], method: str
    ) -> float | None:
        """Return the time of the plan's first method divided by the time of `method`."""
        row = self.row(*place)
        if row is None or measure not in row:
            return None
        seconds = row[measure].get(backend, {})
        base = self.plan.methods(measure)[0]
        if method not in seconds or base not in seconds:
            return None
        return float(seconds[base]["median"] / seconds[method]["median"])


def timing_tables(plan: TimingPlan, experiments: dict[str, Experiment], results: Results) -> str:
    """Return one table for each device, number of threads, measure and backend."""
    everywhere = TimingResults.all(plan, results)
    if not everywhere:
        return NOTHING_RUN
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
                parts.append(_timing_table(timed, experiments, measure, backend))
            if launched := _launch_table(timed, experiments, measure):
                parts.append(
                    f"**{measure.capitalize()}, kernels that a batch launches on a GPU** (counted "
                    "for the batch of medium length with torch operations, not timed; each method "
                    "comes in addition to the network)\n"
                )
                parts.append(launched)
    return "\n".join(parts)


def _timing_table(
    timed: TimingResults, experiments: dict[str, Experiment], measure: str, backend: str
) -> str:
    base, *methods = timed.plan.methods(measure)
    compared = backend == timed.plan.backends[0]
    head = ["corpus", f"{_name(base)}, ms per batch"]
    head += map(_name, methods)
    body = []
    for source, network, corpus in _timed_places(timed, measure):
        row = timed.row(source, network, corpus)
        place = _place(experiments[source], network, corpus) + _mark(row)
        cells = [place, _milliseconds(timed, row, measure, backend)]
        for method in methods:
            text = _speed_up(timed.speed_up(measure, backend, (source, network, corpus), method))
            paper = timed.plan.paper.get((measure, source, network, corpus, method))
            if compared and paper is not None:
                text += f" <small>{_speed_up(paper)}</small>"
            cells.append(text)
        body.append(cells)
    return table(head, body)


def _launch_table(timed: TimingResults, experiments: dict[str, Experiment], measure: str) -> str:
    """Return the launches of the network and of each method; "" if they were not counted."""
    methods = (NETWORK, *timed.plan.methods(measure))
    body = []
    for source, network, corpus in _timed_places(timed, measure):
        row = timed.row(source, network, corpus)
        counts = row[measure].get("launches") if row is not None else None
        if counts is not None:
            place = _place(experiments[source], network, corpus)
            body.append([place, *(str(counts.get(method, MISSING)) for method in methods)])
    return table(["corpus", NETWORK, *map(_name, methods[1:])], body) if body else ""


def _place(experiment: Experiment, network: str, corpus: str) -> str:
    title = experiment.networks[network].title
    return f"{experiment.short_title}: {corpus_title(corpus)}, {title}"


def _timed_places(timed: TimingResults, measure: str) -> Iterator[tuple[str, str, str]]:
    """Yield the networks and corpora that were timed."""
    wanted = timed.plan.training if measure == "training" else timed.plan.decoding
    found = dict.fromkeys(
        (row["source"], row["network"], row["corpus"]) for row in timed.rows if measure in row
    )
    yield from sorted((p for p in found if p[0] in wanted), key=lambda p: wanted.index(p[0]))


def _name(method: str) -> str:
    return "forward" if method == "crf" else Method.parse(method).title


def _mark(row: dict[str, Any] | None) -> str:
    return " (fresh weights)" if row is not None and row["weights"] == "fresh" else ""


def _milliseconds(
    timed: TimingResults, row: dict[str, Any] | None, measure: str, backend: str
) -> str:
    if row is None or measure not in row:
        return MISSING
    base = timed.plan.methods(measure)[0]
    return f"{1000 * row[measure][backend][base]['median'] / row['batches']:.1f}"


def _rows(plan: TimingPlan, results: Results) -> list[dict[str, Any]]:
    return [
        row
        for row in results.rows[plan.name]
        if all(
            backend in row[measure]
            for measure in ("training", "decoding")
            if measure in row
            for backend in plan.backends
        )
    ]


def _hardware(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["device"], row.get("threads")


def _speed_up(ratio: float | None) -> str:
    return MISSING if ratio is None else f"×{ratio:.1f}" if ratio >= 1 else f"×{ratio:.2f}"
