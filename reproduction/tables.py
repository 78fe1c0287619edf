"""Write the tables of the report: accuracies, times, and the analysis of the projections."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from measurement.markdown import count_threads, table

from .experiment import Experiment
from .methods import TEMPERATURE, Method, objective_title
from .plans import AnalysisPlan, TimingPlan
from .results import Results, RunGroup, Statistic
from .timing_jobs import CHAINS

__all__ = [
    "MEASURES",
    "TimingResults",
    "accuracy_tables",
    "analysis_tables",
    "ill_formed_tables",
    "model_title",
    "run_groups",
    "timing_tables",
]

MISSING = "missing"

# Decoders that the tables show: first the paper's, then ours. The plots show all decoders.
_PAPER = ("unstructured", "viterbi", "mean_field-5", "mean_field-10", "bregman-5", "bregman-10")
_OURS = (
    *("bregman-5-half", "bregman-10-half", "bregman-5-relaxed", "bregman-10-relaxed"),
    "certified-10",
)
_REPAIRED = ("mean_field-10-mbr", "bregman-10-mbr", "bregman-10-relaxed-mbr")


def accuracy_tables(experiment: Experiment, results: Results) -> str:
    """Return a table of test scores for each variant and network.

    If any run is logged, corpora without runs have no column and networks without runs have no
    table. Notes below the tables list both.
    """
    parts, not_run = [], []
    measured = run_groups(experiment, results)
    for variant, network, corpora in _blocks(experiment, results):
        columns = [c for c in corpora if (experiment.name, variant, network, c) in measured]
        if not measured:
            columns = corpora
        elif not columns:
            not_run.append(f"- {_title(experiment, variant, network)}: {', '.join(corpora)}.\n")
            continue
        head = ["training", "decoding"]
        for corpus in columns:
            head += [corpus, "paper"]
        body = []
        for objective, decoder in _rows(experiment, results, variant, network, columns):
            cells = [objective_title(objective), Method.parse(decoder).title]
            for corpus in columns:
                group = (experiment.name, variant, network, corpus)
                paper = experiment.paper.get((variant, network, corpus, objective, decoder))
                cells.append(_score(results.statistic(group, objective, decoder)))
                cells.append("" if paper is None else f"{paper:.1f}")
            body.append(cells)
        title = f"### {_title(experiment, variant, network)}\n\n"
        parts.append(title + table(head, body, left=2))
        parts.append(_notes(experiment, results, variant, network, corpora))
    if not_run:
        parts.append("The paper also has the following, which were not run:\n\n" + "".join(not_run))
    return "\n".join(part for part in parts if part)


def ill_formed_tables(experiment: Experiment, results: Results) -> str:
    """Return tables of the share of test sentences whose labels needed repair."""
    parts = []
    for variant, network, columns in _blocks(experiment, results):
        body = []
        for objective, decoder in _rows(experiment, results, variant, network, columns):
            shares = [
                results.statistic(
                    (experiment.name, variant, network, corpus), objective, decoder, "ill_formed"
                )
                for corpus in columns
            ]
            # A decoder with MBR repair has the same labels before repair, so it gets no row.
            if any(shares) and not Method.parse(decoder).mbr:
                cells = [MISSING if s is None else f"{s.mean:.1f} %" for s in shares]
                body.append([objective_title(objective), Method.parse(decoder).title, *cells])
        if body:
            title = f"### {_title(experiment, variant, network)}: ill-formed sentences\n\n"
            parts.append(title + table(["training", "decoding", *columns], body, left=2))
    return "\n".join(parts) or f"{experiment.title}: nothing was run yet.\n"


def run_groups(experiment: Experiment, results: Results) -> list[RunGroup]:
    """Return the groups of an experiment that have results."""
    found = dict.fromkeys(
        (experiment.name, row["variant"], row["network"], row["corpus"])
        for row in results.rows[experiment.name]
    )
    return sorted(found)


def _blocks(experiment: Experiment, results: Results) -> Iterator[tuple[str, str, list[str]]]:
    """Yield (variant, network, corpora); the corpora are the paper's and all that were run."""
    measured = run_groups(experiment, results)
    for variant in experiment.variants:
        for network in experiment.networks:
            columns = [
                corpus
                for corpus in experiment.corpora
                if any(key[:3] == (variant, network, corpus) for key in experiment.paper)
                or (experiment.name, variant, network, corpus) in measured
            ]
            if columns:
                yield variant, network, columns


def _rows(
    experiment: Experiment, results: Results, variant: str, network: str, columns: list[str]
) -> Iterator[tuple[str, str]]:
    """Yield (objective, decoder): the paper's, those that were run, and ours for the CRF."""
    here = [(experiment.name, variant, network, corpus) for corpus in columns]
    run = [objective for group in here for objective in results.objectives(group)]
    for objective in dict.fromkeys((*experiment.objectives, *run)):
        for decoder in (*_PAPER, *_OURS, *_REPAIRED):
            wanted = objective == "crf" and decoder in _OURS
            in_paper = any(
                (variant, network, corpus, objective, decoder) in experiment.paper
                for corpus in columns
            )
            was_run = any(results.seeds(group, objective, decoder, "score") for group in here)
            if wanted or in_paper or was_run:
                yield objective, decoder


def _title(experiment: Experiment, variant: str, network: str) -> str:
    reading = experiment.variants[variant].title
    title = f"{experiment.name}, {experiment.networks[network].title}"
    return f"{title} ({reading})" if reading else title


def _notes(
    experiment: Experiment, results: Results, variant: str, network: str, columns: list[str]
) -> str:
    """Return the notes on a table: editions of its corpora, files of corpora without runs."""
    lines = []
    for corpus in columns:
        rows = list(results.of((experiment.name, variant, network, corpus)))
        if not rows:
            names = [names[0] for names in experiment.corpora[corpus].files.values()]
            lines.append(f"- {corpus}: not run ({', '.join(names)}).")
            continue
        editions = dict.fromkeys(row["edition"] for row in rows)
        sizes = dict.fromkeys(row["training"]["sentences"] for row in rows)
        lines.append(
            f"- {corpus}: {'; '.join(editions)}; "
            f"{' or '.join(f'{size:,}' for size in sizes)} training sentences."
        )
    return "".join(f"{line}\n" for line in lines)


def _score(statistic: Statistic | None) -> str:
    """Return a text with the mean, the standard deviation and the number of seeds."""
    if statistic is None:
        return MISSING
    deviation = "" if statistic.deviation is None else f" ± {statistic.deviation:.2f}"
    return f"{statistic.mean:.2f}{deviation} [{statistic.count}]"


def _speed_up(ratio: float | None) -> str:
    return MISSING if ratio is None else f"×{ratio:.1f}" if ratio >= 1 else f"×{ratio:.2f}"


# Times

_VERSIONS = {
    "torch": "like for like: all methods are torch operations",
    "auto": "the fastest backend of each method",
}
_BASES = {"training": "the forward algorithm", "decoding": "Viterbi"}


class TimingResults:
    """The rows of a timing table on one device with one number of threads.

    Args:
        plan: the table.
        results: all logged results.
        hardware: device and number of threads.
    """

    def __init__(self, plan: TimingPlan, results: Results, hardware: tuple[Any, ...]) -> None:
        self.plan, self.hardware = plan, hardware
        rows = [row for row in results.rows[plan.name] if _hardware(row) == hardware]
        self.cpu = rows[0]["machine"]["cpu"] if rows else ""
        self.rows = [row for row in rows if row["source"] != CHAINS]
        self.chains = [row for row in rows if row["source"] == CHAINS]

    @classmethod
    def all(cls, plan: TimingPlan, results: Results) -> list[TimingResults]:
        """Return one object for each pair of device and number of threads in the log."""
        found = dict.fromkeys(_hardware(row) for row in results.rows[plan.name])
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
    everywhere = TimingResults.all(plan, results) or [
        TimingResults(plan, results, ("no machine yet", None))
    ]
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
    return "\n".join(parts)


def _timing_table(
    timed: TimingResults, experiments: dict[str, Experiment], measure: str, backend: str
) -> str:
    base, *methods = timed.plan.methods(measure)
    compared = backend == timed.plan.backends[0]
    beside = {key[4] for key in timed.plan.paper if compared and key[0] == measure}
    head = ["table", "corpus", "network", f"{_name(base)}, ms per batch"]
    for method in methods:
        head += [_name(method), "paper"] if method in beside else [_name(method)]
    body = []
    for source, network, corpus in _timed_places(timed, measure):
        title = experiments[source].networks[network].title
        row = timed.row(source, network, corpus)
        cells = [source, corpus, title + _mark(row), _milliseconds(timed, row, measure, backend)]
        for method in methods:
            ratio = timed.speed_up(measure, backend, (source, network, corpus), method)
            cells.append(_speed_up(ratio))
            if method in beside:
                paper = timed.plan.paper.get((measure, source, network, corpus, method))
                cells.append("" if paper is None else _speed_up(paper))
        body.append(cells)
    return table(head, body, left=3)


def _timed_places(timed: TimingResults, measure: str) -> Iterator[tuple[str, str, str]]:
    """Yield the networks and corpora that were timed; if none was, those of the paper."""
    wanted = timed.plan.training if measure == "training" else timed.plan.decoding
    paper = [(key[1], key[2], key[3]) for key in timed.plan.paper if key[0] == measure]
    measured = [
        (row["source"], row["network"], row["corpus"]) for row in timed.rows if measure in row
    ]
    found = dict.fromkeys(measured or paper)
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


def _hardware(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["device"], row.get("threads")


# Projections on trained scores

MEASURES = {
    ("error", 1.0): "error of the marginals, τ = 1",
    ("error", TEMPERATURE): "error of the marginals, 1/τ = 10",
    ("agreement", TEMPERATURE): "tokens tagged as by Viterbi, 1/τ = 10, %",
    ("certified", TEMPERATURE): "sentences certified, 1/τ = 10, %",
}
"""Measure and temperature -> title of the table."""


def analysis_tables(
    plan: AnalysisPlan, experiments: dict[str, Experiment], results: Results
) -> str:
    """Return a table of settings and iterations for each model and measure."""
    parts = []
    for row in results.rows[plan.name]:
        parts.append(f"### {model_title(row, experiments)}\n")
        unsettled = max(entry["unsettled"] for entry in row["results"])
        left_out = f"; {unsettled} did not converge and have no errors" if unsettled else ""
        parts.append(f"{row['sentences']} test sentences, {row['tokens']} tokens{left_out}.\n")
        for (measure, temperature), title in MEASURES.items():
            parts.append(_analysis_table(row["results"], measure, temperature, title))
    return "\n".join(parts) or "Nothing was run yet.\n"


def model_title(row: dict[str, Any], experiments: dict[str, Experiment]) -> str:
    """Return the title of the model that a row is about."""
    network = experiments[row["source"]].networks[row["network"]].title
    parts = (row["source"], row["corpus"], network, row["variant"])
    place = ", ".join(part for part in parts if part)
    return f"{place}, {objective_title(row['objective'])}, seed {row['seed']}"


def _analysis_table(
    entries: list[dict[str, Any]], measure: str, temperature: float, title: str
) -> str:
    numbers = {
        (entry["setting"], entry["iterations"]): entry[measure]
        for entry in entries
        if entry["temperature"] == temperature
    }
    settings = dict.fromkeys(setting for setting, _ in numbers)
    iterations = sorted({k for _, k in numbers})
    show = _error if measure == "error" else _percent
    body = [[name, *(show(numbers[name, k]) for k in iterations)] for name in settings]
    return table([f"{title}; k =", *map(str, iterations)], body)


def _error(value: float) -> str:
    return "0" if value < 1e-7 else f"{value:.1e}" if value < 1e-3 else f"{value:.4f}"


def _percent(value: float) -> str:
    return f"{100 * value:.1f}"
