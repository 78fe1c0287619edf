"""`bcrf evaluate`: measure a tagger on annotated sentences."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from .arguments import (
    add_input_format,
    add_prediction_options,
    command_parser,
    decoder_name,
    use_threads,
)
from .errors import UserError, one_line_warnings
from .terminal import WIDTH, Update, percent, progress_bar, show_table

if TYPE_CHECKING:
    from ..tagger import Evaluation, Tagger
    from ..tagger.report import TaggingSystem
    from ..tagger.tasks import Example

__all__ = ["run"]

_EPILOG = """\
The scores depend on the task of the model. pos: accuracy of all words, and of the words that are
not in the training data. segmentation: precision, recall and F1 of words with their tags. ner:
precision, recall and F1 of mentions, in total and for each type.

  bcrf evaluate runs/en_ewt en_ewt-ud-test.conllu
  bcrf evaluate runs/zh_gsd test.conllu --decoder viterbi --decoder bregman-10 --json
  bcrf evaluate runs/en_ewt test.conllu --report report --against runs/other
"""


def run(arguments: list[str]) -> int:
    """Measure a model on the file that the arguments name; return the exit code."""
    parser = command_parser(
        "bcrf evaluate",
        "Measure a tagger on annotated sentences.",
        _EPILOG,
        usage="bcrf evaluate MODEL FILE [OPTIONS]",
    )
    parser.add_argument("model", metavar="MODEL", help="folder of a model or of a training run")
    parser.add_argument("file", metavar="FILE", help="annotated sentences")
    add_input_format(parser, "--format", "FILE")
    parser.add_argument("--json", action="store_true", help="print one line of JSON per decoder")
    parser.add_argument(
        "--report",
        metavar="DIR",
        help="write DIR/report.html (scores with intervals, errors in context, confusion matrix, "
        "calibration) and the same numbers as DIR/report.json",
    )
    parser.add_argument(
        "--against",
        metavar="MODEL",
        help="compare with this model on the same sentences, by a paired test",
    )
    parser.add_argument(
        "--against-decoder",
        metavar="NAME",
        type=decoder_name,
        help="compare with this decoder, of the model of --against, or else of MODEL",
    )
    add_prediction_options(parser, several_decoders=True)
    options = parser.parse_args(arguments)
    compares = options.against is not None or options.against_decoder is not None
    if (compares or options.report is not None) and len(options.decoder or ()) > 1:
        parser.error("--report, --against and --against-decoder need one --decoder at most")
    use_threads(options.threads)

    from ..tagger import Tagger
    from ..tagger.data import read
    from ..tagger.tasks import check_gold_labels

    with one_line_warnings(), progress_bar() as update:
        update("loading the model", 0, None)
        tagger = Tagger.load(options.model, options.device)
        update("reading the sentences", 0, None)
        examples = tagger.task.annotated(list(read(options.file, options.format)))
        warning = check_gold_labels(tagger.task, examples, options.file)
        if warning is not None:
            print(f"bcrf: warning: {warning}", file=sys.stderr)
        if options.report is not None:
            from ..tagger.report import check_report_folder

            check_report_folder(options.report)
        other = _other_system(tagger, examples, options, update) if compares else None
        evaluations = []
        for decoder in options.decoder or [tagger.decoder]:
            update(f"tagging {len(examples)} sentences, decoder {decoder}", 0, None)
            evaluations.append(tagger.evaluate_examples(examples, decoder, options.repair))
        report = None
        if compares or options.report is not None:
            report = _report(tagger, examples, other, options, update)
    if options.json:
        for evaluation in evaluations:
            print(json.dumps({"model": options.model, "file": options.file} | evaluation.to_dict()))
    else:
        _show(f"{options.model} on {options.file}", evaluations)
    if report is not None:
        _show_comparison(report, options.json)
    if options.report is not None:
        print(f"report: {options.report}/report.html", file=sys.stderr if options.json else None)
    return 0


def _other_system(
    tagger: Tagger, examples: Sequence[Example], options: argparse.Namespace, update: Update
) -> TaggingSystem:
    """Return the system with which the options ask to compare."""
    from ..tagger import Tagger
    from ..tagger.report import TaggingSystem
    from ..tagger.tasks import check_gold_labels

    decoder = options.against_decoder
    if options.against is None:
        return TaggingSystem(options.model, tagger, examples, decoder, options.repair)
    update("loading the other model", 0, None)
    rival = Tagger.load(options.against, options.device)
    rival_examples = rival.task.annotated([example.sentence for example in examples])
    if rival.task.name == tagger.task.name:  # otherwise `build_report` raises
        check_gold_labels(rival.task, rival_examples, options.file)
    return TaggingSystem(options.against, rival, rival_examples, decoder, options.repair)


def _report(
    tagger: Tagger,
    examples: Sequence[Example],
    other: TaggingSystem | None,
    options: argparse.Namespace,
    update: Update,
) -> dict[str, Any]:
    """Build the report, and write it if the options name a folder."""
    from ..tagger.report import TaggingSystem, build_report, write_report

    system = TaggingSystem(
        options.model, tagger, examples, (options.decoder or [None])[0], options.repair
    )
    update("building the report", 0, None)
    try:
        report = build_report(system, other, file=options.file)
    except ValueError as error:
        raise UserError(str(error)) from error
    if options.report is not None:
        write_report(report, options.report)
    return report


def _show_comparison(report: dict[str, Any], as_json: bool) -> None:
    """Print the comparison of a report, if there is one."""
    comparison = report.get("comparison")
    if comparison is None:
        return
    if as_json:
        sentences = {k: v for k, v in comparison["sentences"].items() if k != "shown"}
        print(json.dumps({"comparison": comparison | {"sentences": sentences}}))
        return
    other = comparison["system"]
    rows = [
        [
            row["name"],
            percent(row["first"]),
            percent(row["second"]),
            f"{100 * row['difference']:+.2f}",
            f"{100 * row['low']:+.2f} to {100 * row['high']:+.2f}",
            f"{row['p']:.4f}",
        ]
        for row in comparison["scores"]
    ]
    show_table(
        f"\nAgainst {other['name']}, decoder {other['decoder']} (p: approximate randomisation)",
        ["", "first", "second", "difference", "95 % interval", "p"],
        rows,
    )


def _show(title: str, evaluations: Sequence[Evaluation]) -> None:
    """Print a table with a column for each decoder, and tables by type if there are types."""
    for group in _groups_that_fit(evaluations):
        _show_totals(title, group)
    for evaluation in evaluations:
        _show_types(evaluation)


def _groups_that_fit(evaluations: Sequence[Evaluation]) -> Iterator[list[Evaluation]]:
    """Yield the evaluations in groups; the table of a group is at most `WIDTH` characters wide."""
    group: list[Evaluation] = []
    for evaluation in evaluations:
        columns = [*group, evaluation]
        # 18: the names of the rows; 12: the widest cell; 3: the space between columns.
        if group and 18 + sum(max(len(e.decoder), 12) + 3 for e in columns) > WIDTH:
            yield group
            columns = [evaluation]
        group = columns
    yield group


def _show_totals(title: str, evaluations: Sequence[Evaluation]) -> None:
    first = evaluations[0]
    by_type = tuple(f"/{type_}" for type_ in _types(first))
    names = [name for name in first.scores if not name.endswith(by_type)]
    names.sort(key=lambda name: name != first.main)  # main score first; the others keep their order
    rows = [[name, *(_number(e.scores[name]) for e in evaluations)] for name in names]
    rows.append(["sentences repaired", *(f"{e.repaired} of {e.sentences}" for e in evaluations)])
    rows.append(["tokens/s", *(f"{e.tokens / max(e.seconds, 1e-9):.0f}" for e in evaluations)])
    show_table(title, ["", *(evaluation.decoder for evaluation in evaluations)], rows)


def _show_types(evaluation: Evaluation) -> None:
    """Print a row with precision, recall, F1 and the number of gold mentions for each type."""
    types = _types(evaluation)
    if not types:
        return
    scores = ("precision", "recall", "f1", "mentions")
    rows = [
        [type_, *(_number(evaluation.scores[f"{score}/{type_}"]) for score in scores)]
        for type_ in types
    ]
    show_table(
        f"\nBy type, decoder {evaluation.decoder}",
        ["type", "precision", "recall", "F1", "mentions"],
        rows,
    )


def _types(evaluation: Evaluation) -> list[str]:
    """Return the types of mentions; the scores of a type are named "f1/PER", "mentions/PER"."""
    prefix = "mentions/"
    return [name.removeprefix(prefix) for name in evaluation.scores if name.startswith(prefix)]


def _number(value: float) -> str:
    """Return a number as text: a count as it is, a share as a percentage."""
    return str(value) if isinstance(value, int) else percent(value)
