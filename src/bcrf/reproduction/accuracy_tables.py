"""Tables of accuracies and F-scores: ours and the paper's, side by side."""

from __future__ import annotations

from collections.abc import Iterator

from .experiment import Experiment
from .markdown import MISSING, score, table
from .methods import Method, objective_title
from .results import Place, Results

__all__ = ["accuracy_tables", "ill_formed_tables", "places"]

# What is shown: the paper's decoders, then ours. All else that was evaluated is in the plots.
_PAPER = ("unstructured", "viterbi", "mean_field-5", "mean_field-10", "bregman-5", "bregman-10")
_OURS = (
    *("bregman-5-half", "bregman-10-half", "bregman-5-relaxed", "bregman-10-relaxed"),
    "certified-10",
)
_REPAIRED = ("mean_field-10-mbr", "bregman-10-mbr", "bregman-10-relaxed-mbr")


def accuracy_tables(experiment: Experiment, results: Results) -> str:
    """A table for each variant and network."""
    parts = []
    for variant, network, columns in _blocks(experiment, results):
        head = ["training", "decoding"]
        for corpus in columns:
            head += [corpus, "paper"]
        body = []
        for objective, decoder in _rows(experiment, results, variant, network, columns):
            cells = [objective_title(objective), Method.parse(decoder).title]
            for corpus in columns:
                place = (experiment.name, variant, network, corpus)
                paper = experiment.paper.get((variant, network, corpus, objective, decoder))
                cells.append(score(results.statistic(place, objective, decoder)))
                cells.append("" if paper is None else f"{paper:.1f}")
            body.append(cells)
        title = f"### {_title(experiment, variant, network)}\n\n"
        parts.append(title + table(head, body, left=2))
        parts.append(_notes(experiment, results, variant, network, columns))
    return "\n".join(part for part in parts if part)


def ill_formed_tables(experiment: Experiment, results: Results) -> str:
    """The share of the test sentences in which a decoder's labels had to be repaired."""
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
            if any(shares) and not Method.parse(decoder).mbr:  # whose own labels are the same
                cells = [MISSING if s is None else f"{s.mean:.1f} %" for s in shares]
                body.append([objective_title(objective), Method.parse(decoder).title, *cells])
        if body:
            title = f"### {_title(experiment, variant, network)}: ill-formed sentences\n\n"
            parts.append(title + table(["training", "decoding", *columns], body, left=2))
    return "\n".join(parts) or f"{experiment.title}: nothing was run yet.\n"


def places(experiment: Experiment, results: Results) -> list[Place]:
    """Wherever there are results."""
    found = dict.fromkeys(
        (experiment.name, row["variant"], row["network"], row["corpus"])
        for row in results.rows[experiment.name]
    )
    return sorted(found)


def _blocks(experiment: Experiment, results: Results) -> Iterator[tuple[str, str, list[str]]]:
    """Variants and networks with their corpora: those of the paper, and what else was run."""
    measured = places(experiment, results)
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
    """What the paper shows, what was run, and our decoders of CRFs in any case."""
    here = [(experiment.name, variant, network, corpus) for corpus in columns]
    run = [objective for place in here for objective in results.objectives(place)]
    for objective in dict.fromkeys((*experiment.objectives, *run)):
        for decoder in (*_PAPER, *_OURS, *_REPAIRED):
            wanted = objective == "crf" and decoder in _OURS
            in_paper = any(
                (variant, network, corpus, objective, decoder) in experiment.paper
                for corpus in columns
            )
            was_run = any(results.seeds(place, objective, decoder, "score") for place in here)
            if wanted or in_paper or was_run:
                yield objective, decoder


def _title(experiment: Experiment, variant: str, network: str) -> str:
    reading = experiment.variants[variant].title
    title = f"{experiment.name}, {experiment.networks[network].title}"
    return f"{title} ({reading})" if reading else title


def _notes(
    experiment: Experiment, results: Results, variant: str, network: str, columns: list[str]
) -> str:
    """Which edition of each corpus that is, or which files are missing."""
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
