"""`bcrf check`: count what data files contain, and report their mistakes."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from .arguments import add_input_format, command_parser, one_of, whole_number
from .terminal import percent

if TYPE_CHECKING:
    from ..tagger.tasks.checking import FileReport, Report

__all__ = ["run"]

_EPILOG = """\
Prints how many sentences, words and tags each file has, and how many sentences two files share.
Prints every malformed line and every illegal tag as FILE:LINE: MESSAGE. The exit code is 1 if there
are any.

  bcrf check train.conllu dev.conllu test.conllu
  bcrf check --task ner train.conll
"""


def run(arguments: list[str]) -> int:
    """Check the files that the arguments name; return 1 if there are mistakes, otherwise 0."""
    parser = command_parser("bcrf check", "Look for mistakes in data files.", _EPILOG)
    parser.add_argument("files", nargs="+", metavar="FILE")
    parser.add_argument(
        "--task",
        metavar="NAME",
        type=one_of("pos", "segmentation", "ner", "tokenization"),
        default="pos",
        help="check the files as data for this task: pos, segmentation, ner or tokenization "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--column",
        metavar="NAME",
        type=one_of("upos", "xpos"),
        default="upos",
        help="pos and segmentation: the column with the tags, upos or xpos (default: %(default)s)",
    )
    add_input_format(parser, "--format", "all files")
    parser.add_argument(
        "--limit",
        type=whole_number(least=0),
        default=50,
        metavar="N",
        help="print at most N mistakes of each file; 0: all of them (default: %(default)s)",
    )
    options = parser.parse_args(arguments)

    from ..tagger.tasks import check

    report = check(options.files, options.task, options.column, options.format)
    _print(report, options.limit)
    return 0 if report.ok else 1


def _print(report: Report, limit: int) -> None:
    for file in report.files:
        if file.format is not None or not file.problems:  # otherwise the file cannot be read
            print(_summary(file))
        if file.tags:
            print(f"  tags: {', '.join(f'{tag} {count}' for tag, count in file.tags.items())}")
    for overlap in report.overlaps:
        if overlap.sentences:
            share = f"{percent(overlap.share)} of the sentences ({overlap.sentences})"
            print(f"{overlap.second}: {share} are also in {overlap.first}")
    for file in report.files:
        shown = file.problems[:limit] if limit > 0 else file.problems
        for problem in shown:
            print(problem)
        if len(shown) < len(file.problems):
            more = len(file.problems) - len(shown)
            print(f"{file.path}: {more} more mistakes (--limit 0 prints all)")
    count = sum(len(file.problems) for file in report.files)
    files = f"{len(report.files)} file" + ("s" if len(report.files) > 1 else "")
    sys.stdout.flush()
    print(f"{files}, {count or 'no'} mistake{'' if count == 1 else 's'}", file=sys.stderr)


def _summary(file: FileReport) -> str:
    if file.format is None:
        return f"{file.path}: no sentences"
    scheme = f", {file.scheme}" if file.scheme else ""
    return (
        f"{file.path}: {file.format}{scheme}; sentences: {file.sentences} (repeated: "
        f"{file.repeated}, empty: {file.empty}), words: {file.words} (distinct: "
        f"{file.distinct_words}, in the longest sentence: {file.longest})"
    )
