"""Write the tables of scores.

The page has a compact table for each table of the paper, and tables with our own rows. The
appendix has all rows and the shares of ill-formed sentences.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from measurement.markdown import table

from .experiment import Experiment
from .methods import Method, Objective, objective_title
from .results import NOTHING_RUN, Results, RunGroup, Statistic

__all__ = [
    "Column",
    "all_rows_tables",
    "choice_table",
    "corpus_title",
    "ill_formed_tables",
    "other_corpora_table",
    "our_table",
    "paper_table",
    "repair_table",
    "run_groups",
    "score_text",
    "temperature_tables",
]

Row = tuple[str, str]
"""An objective and a decoder."""

# A cell without a result.
_EMPTY = "–"

# The decoders of our own rows on the page. The appendix has all decoders.
_OUR_DECODERS = (
    *("bregman-5-relaxed", "bregman-10-relaxed"),
    *("mean_field-10-mbr", "bregman-10-mbr", "bregman-10-relaxed-mbr"),
)

# The decoders of a model that was trained at a temperature.
_TEMPERATURE_DECODERS = ("viterbi", "bregman-10", "bregman-10-relaxed")

# The decoders that are compared with Viterbi in the table of repairs.
_REPAIR_DECODERS = (
    *("bregman-10", "bregman-10-mbr", "bregman-20"),
    *("bregman-10-relaxed", "bregman-10-relaxed-mbr", "bregman-20-relaxed"),
)


@dataclass(frozen=True)
class Column:
    """A column of a table: a group of runs.

    Args:
        group: the runs.
        title: the title of the column.
        paper: the network whose numbers of the paper stand beside ours.
    """

    group: RunGroup
    title: str
    paper: str


def corpus_title(name: str) -> str:
    """Return the name of a corpus in titles: "english" -> "English"."""
    return _CORPORA.get(name, name.capitalize())


_CORPORA = {
    "conll2003": "CoNLL-2003",
    "wnut17": "WNUT-17",
    "uner_chinese": "Universal NER, Chinese",
}


def run_groups(experiment: Experiment, results: Results) -> list[RunGroup]:
    """Return the groups of an experiment that have results."""
    found = dict.fromkeys(
        (experiment.name, row["variant"], row["network"], row["corpus"])
        for row in results.rows[experiment.name]
    )
    return sorted(found)


def paper_table(experiment: Experiment, results: Results) -> str:
    """Return the table of the paper, with our scores and the paper's beside them.

    Corpora and networks that were not run have no column. A note below the table names them.
    """
    columns = _paper_columns(experiment, results)
    if not columns:
        return NOTHING_RUN
    rows = dict.fromkeys((key[3], key[4]) for key in experiment.paper)
    text = _score_table(experiment, results, columns, rows)
    return f"{text}\n{_seeds(results, columns, rows)} {_left_out(experiment, columns)}\n"


def our_table(experiment: Experiment, results: Results) -> str:
    """Return our own rows on the corpora of the paper: our decoders, and our objectives."""
    columns = _paper_columns(experiment, results)
    rows = [(objective, decoder) for objective in ("crf", "bregman") for decoder in _OUR_DECODERS]
    added = _our_objectives(experiment, results, [column.group for column in columns])
    rows += [(objective, decoder) for objective in added for decoder in _TEMPERATURE_DECODERS]
    rows = [row for row in rows if _was_run(results, columns, row)]
    if not rows:
        return NOTHING_RUN
    text = _score_table(experiment, results, columns, rows)
    return f"{text}\n{_seeds(results, columns, rows)}\n"


def other_corpora_table(experiment: Experiment, results: Results) -> str:
    """Return the rows of the paper for corpora that the paper does not have."""
    first = next(iter(experiment.variants))
    columns = [
        _column(experiment, group)
        for group in run_groups(experiment, results)
        if group[1] == first and experiment.corpora[group[3]].extra
    ]
    rows = [
        row
        for row in dict.fromkeys((key[3], key[4]) for key in experiment.paper)
        if _was_run(results, columns, row)
    ]
    if not rows:
        return NOTHING_RUN
    text = _score_table(experiment, results, columns, rows)
    return f"{text}\n{_seeds(results, columns, rows)}\n"


def temperature_tables(experiment: Experiment, results: Results) -> str:
    """Return a table of CRF and BCRF training for each group that has objectives of ours.

    The best score on dev of each family is bold.
    """
    parts = []
    for group in run_groups(experiment, results):
        if not _our_objectives(experiment, results, [group]):
            continue
        names = results.objectives(group)
        body = []
        for family in ("crf", "bregman"):
            members = [name for name in names if Objective.parse(name).family == family]
            members.sort(key=lambda name: Objective.parse(name).order)
            dev = {name: _mean(results.dev_scores(group, name)) for name in members}
            for name in members:
                body.append(_temperature_row(results, group, name, dev[name] == max(dev.values())))
        head = ["training", "seeds", "epochs", "dev", "Viterbi", "BCRF-10", "relaxed BCRF-10"]
        head += ["agreement", "certified", "ECE"]
        title = _column(experiment, group).title
        parts.append(f"**{title}**\n\n" + table(head, body))
    return "\n".join(parts) or NOTHING_RUN


def _temperature_row(results: Results, group: RunGroup, name: str, best: bool) -> list[str]:
    dev = results.dev_scores(group, name)
    mark = "**" if best else ""
    epochs = sorted(results.best_epochs(group, name))
    scores = [results.statistic(group, name, decoder) for decoder in _TEMPERATURE_DECODERS]
    agreement = results.statistic(group, name, "bregman-10-relaxed", "agreement")
    certified = results.statistic(group, name, "certified-10", "certified")
    error = Statistic.of(results.calibration_errors(group, name))
    title = objective_title(name).removeprefix("ours: ")
    return [
        title if "τ" in title else f"{title}, τ = 1",
        str(len(dev)),
        "–".join(dict.fromkeys(map(str, (epochs[0], epochs[-1])))),
        f"{mark}{score_text(Statistic.of(dev))}{mark}",
        *map(score_text, scores),
        *map(score_text, (agreement, certified, error)),
    ]


def repair_table(experiments: Iterable[Experiment], results: Results) -> str:
    """Return the differences to Viterbi of several decoders, for the same CRF-trained models."""
    body = []
    for experiment in experiments:
        for group in run_groups(experiment, results):
            gaps = [
                Statistic.of(results.gaps(group, ("crf", decoder), ("crf", "viterbi")))
                for decoder in _REPAIR_DECODERS
            ]
            if any(gaps) and group[1] == next(iter(experiment.variants)):
                title = f"{experiment.short_title}: {_column(experiment, group).title}"
                body.append([title, *(score_text(gap, "{:+.2f}") for gap in gaps)])
    if not body:
        return NOTHING_RUN
    titles = [Method.parse(decoder).title.removeprefix("ours: ") for decoder in _REPAIR_DECODERS]
    return table(["CRF-trained model", *titles], body)


def choice_table(experiment: Experiment, results: Results) -> str:
    """Return the scores on dev of an experiment that chooses how mean field is trained.

    The columns are Viterbi and the mean field decoders that begin as the training does. The best
    mean of a row is bold.
    """
    columns = [name for name in experiment.decoders if Method.parse(name).variant == ""]
    parts = []
    for group in run_groups(experiment, results):
        shown: dict[str, list[Statistic | None]] = {}
        for objective in results.objectives(group):
            start = "-uniform" if objective.endswith("-uniform") else ""
            names = [name if name == "viterbi" else name + start for name in columns]
            shown[objective] = [results.statistic(group, objective, name) for name in names]
        means = {
            objective: _mean([score.mean for score in scores if score is not None])
            for objective, scores in shown.items()
        }
        body = []
        for objective, scores in shown.items():
            mark = "**" if means[objective] == max(means.values()) else ""
            mean = f"{mark}{means[objective]:.2f}{mark}"
            body.append([f"`{objective}`", *map(score_text, scores), mean])
        titles = [Method.parse(name).title for name in columns]
        parts.append(table(["training", *titles, "mean"], body))
    return "\n".join(parts) or NOTHING_RUN


def all_rows_tables(experiment: Experiment, results: Results) -> str:
    """Return a table with every objective and decoder for each variant and network."""
    parts = []
    for variant, network, columns in _blocks(experiment, results):
        rows = [
            (objective, decoder)
            for objective in _objectives(results, columns)
            for decoder in ("unstructured", *experiment.decoders)
        ]
        rows = [row for row in rows if _was_run(results, columns, row)]
        title = f"### {_block_title(experiment, variant, network)}\n\n"
        text = _score_table(experiment, results, columns, rows)
        parts.append(title + text + "\n" + _editions(results, columns))
    return "\n".join(parts) or NOTHING_RUN


def ill_formed_tables(experiment: Experiment, results: Results) -> str:
    """Return tables of the share of test sentences whose labels needed repair."""
    parts = []
    for variant, network, columns in _blocks(experiment, results):
        body = []
        for objective in _objectives(results, columns):
            for decoder in ("unstructured", *experiment.decoders):
                shares = [
                    results.statistic(column.group, objective, decoder, "ill_formed")
                    for column in columns
                ]
                # A decoder with MBR repair has the same labels before repair, so it gets no row.
                if any(shares) and not Method.parse(decoder).mbr:
                    cells = [_EMPTY if s is None else f"{s.mean:.1f} %" for s in shares]
                    body.append([objective_title(objective), Method.parse(decoder).title, *cells])
        if body:
            title = f"### {_block_title(experiment, variant, network)}: ill-formed sentences\n\n"
            head = ["training", "decoding", *(column.title for column in columns)]
            parts.append(title + table(head, body, left=2))
    return "\n".join(parts) or NOTHING_RUN


def score_text(statistic: Statistic | None, form: str = "{:.2f}") -> str:
    """Return a text with the mean and the standard deviation over seeds."""
    if statistic is None:
        return _EMPTY
    deviation = "" if statistic.deviation is None else f" ± {statistic.deviation:.2f}"
    return form.format(statistic.mean) + deviation


def _paper_columns(experiment: Experiment, results: Results) -> list[Column]:
    """Return the columns of the paper's table that were run, or a stand-in of their network."""
    first = next(iter(experiment.variants))
    columns = [_column(experiment, group) for group in run_groups(experiment, results)]
    in_paper = {(key[1], key[2]) for key in experiment.paper}
    return [
        column
        for column in columns
        if column.group[1] == first and (column.paper, column.group[3]) in in_paper
    ]


def _column(experiment: Experiment, group: RunGroup) -> Column:
    network = experiment.networks[group[2]]
    title = f"{corpus_title(group[3])}, {network.title}"
    if network.stands_in_for and not experiment.corpora[group[3]].extra:
        title += f" (stand-in for {experiment.networks[network.stands_in_for].title})"
    return Column(group, title, network.stands_in_for or network.name)


def _score_table(
    experiment: Experiment, results: Results, columns: Sequence[Column], rows: Iterable[Row]
) -> str:
    """Return a table of test scores, with the paper's number in small type beside each score."""
    body = []
    for objective, decoder in rows:
        cells = [objective_title(objective), Method.parse(decoder).title]
        for column in columns:
            variant, corpus = column.group[1], column.group[3]
            paper = experiment.paper.get((variant, column.paper, corpus, objective, decoder))
            text = score_text(results.statistic(column.group, objective, decoder))
            cells.append(text if paper is None else f"{text} <small>{paper:.1f}</small>")
        body.append(cells)
    return table(["training", "decoding", *(column.title for column in columns)], body, left=2)


def _was_run(results: Results, columns: Iterable[Column], row: Row) -> bool:
    return any(results.seeds(column.group, *row, "score") for column in columns)


def _our_objectives(
    experiment: Experiment, results: Results, groups: Iterable[RunGroup]
) -> list[str]:
    """Return the CRF and BCRF objectives that the paper does not have, in order."""
    found = {name for group in groups for name in results.objectives(group)}
    ours = {name: Objective.parse(name) for name in found - set(experiment.objectives)}
    names = [name for name, objective in ours.items() if objective.family in ("crf", "bregman")]
    return sorted(names, key=lambda name: ours[name].order)


def _seeds(results: Results, columns: Sequence[Column], rows: Iterable[Row]) -> str:
    """Return a sentence with the number of seeds of each objective."""
    counts: dict[str, set[int]] = {}
    for objective, decoder in rows:
        for column in columns:
            if found := results.seeds(column.group, objective, decoder, "score"):
                counts.setdefault(objective, set()).add(len(found))
    texts = [
        f"{objective} {'–'.join(dict.fromkeys(map(str, (min(found), max(found)))))}"
        for objective, found in counts.items()
    ]
    return f"Seeds: {', '.join(texts)}."


def _left_out(experiment: Experiment, columns: Sequence[Column]) -> str:
    """Return a sentence that names the parts of the paper's table that were not run, and why."""
    run = {(column.paper, column.group[3]) for column in columns}
    reasons: dict[str, list[str]] = {}
    for network, corpus in dict.fromkeys((key[1], key[2]) for key in experiment.paper):
        if (network, corpus) in run:
            continue
        absent = experiment.corpora[corpus].not_run
        if absent is not None:
            reasons.setdefault(absent, []).append(corpus_title(corpus))
        else:
            title = experiment.networks[network].title
            reason = experiment.networks[network].not_run or "not run yet"
            reasons.setdefault(reason, []).append(f"{corpus_title(corpus)}, {title}")
    if not reasons:
        return ""
    texts = (f"{'; '.join(dict.fromkeys(names))} ({why})" for why, names in reasons.items())
    return f"Left out: {'; '.join(texts)}."


def _blocks(experiment: Experiment, results: Results) -> Iterator[tuple[str, str, list[Column]]]:
    """Yield the variants and networks that were run, each with its columns."""
    groups = run_groups(experiment, results)
    for variant in experiment.variants:
        for network in experiment.networks:
            columns = [
                Column(group, corpus_title(group[3]), network)
                for group in groups
                if group[1:3] == (variant, network)
            ]
            if columns:
                yield variant, network, columns


def _block_title(experiment: Experiment, variant: str, network: str) -> str:
    reading = experiment.variants[variant].title
    title = f"{experiment.short_title}, {experiment.networks[network].title}"
    return f"{title} ({reading})" if reading else title


def _objectives(results: Results, columns: Iterable[Column]) -> list[str]:
    return list(dict.fromkeys(name for c in columns for name in results.objectives(c.group)))


def _editions(results: Results, columns: Iterable[Column]) -> str:
    """Return notes on the editions of the corpora and the number of training sentences."""
    lines = []
    for column in columns:
        rows = list(results.of(column.group))
        editions = dict.fromkeys(row["edition"] for row in rows)
        sizes = dict.fromkeys(f"{row['training']['sentences']:,}" for row in rows)
        lines.append(
            f"- {column.title}: {'; '.join(editions)}; {' or '.join(sizes)} training sentences.\n"
        )
    return "".join(lines)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / max(1, len(values))
