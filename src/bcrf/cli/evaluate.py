"""`bcrf evaluate`: how well a tagger does."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from .arguments import INPUT_FORMATS, add_methods, command_parser
from .tables import percent, show_table

if TYPE_CHECKING:
    from ..tagging import Evaluation

__all__ = ["run"]

_EPILOG = """\
Accuracy for pos (also of words that were not seen in training), F1 of tagged words for
segmentation, F1 of mentions for ner.

  bcrf evaluate runs/en_ewt en_ewt-ud-test.conllu
  bcrf evaluate runs/zh_gsd test.conllu --decoder viterbi --decoder bregman-10 --json
"""


def run(arguments: list[str]) -> int:
    parser = command_parser("evaluate", "Measure a tagger on annotated sentences.", _EPILOG)
    parser.add_argument("model", metavar="MODEL", help="folder of a model, or of a training run")
    parser.add_argument("file", metavar="FILE", help="annotated sentences")
    parser.add_argument("--format", choices=INPUT_FORMATS, default="auto", help="of FILE")
    parser.add_argument("--json", action="store_true", help="print one line of JSON per decoder")
    add_methods(parser, several=True)
    options = parser.parse_args(arguments)

    from ..data import read
    from ..tagging import Tagger

    tagger = Tagger.load(options.model, options.device)
    examples = tagger.task.annotated(list(read(options.file, options.format)))
    evaluations = [
        tagger.evaluate_examples(examples, decoder, options.repair)
        for decoder in options.decoder or [None]
    ]
    if options.json:
        for evaluation in evaluations:
            print(json.dumps({"model": options.model, "file": options.file} | evaluation.to_dict()))
    else:
        _show(f"{options.model} on {options.file}", evaluations)
    return 0


def _show(title: str, evaluations: Sequence[Evaluation]) -> None:
    """A row per number, a column per decoder; the main one first."""
    first = evaluations[0]
    names = sorted(first.scores, key=lambda name: name != first.main)  # stable
    rows = [[name, *(_number(e.scores[name]) for e in evaluations)] for name in names]
    rows.append(["sentences repaired", *(f"{e.repaired} of {e.sentences}" for e in evaluations)])
    rows.append(["tokens/s", *(f"{e.tokens / max(e.seconds, 1e-9):.0f}" for e in evaluations)])
    show_table(title, ["", *(evaluation.decoder for evaluation in evaluations)], rows)


def _number(value: float) -> str:
    """Counts are integers, all else are shares."""
    return str(value) if isinstance(value, int) else percent(value)
