"""`bcrf reproduce`: the paper's tables, run by run, and the report that is made of them."""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from .arguments import command_parser
from .config_file import read_config
from .errors import UserError
from .progress import progress_bar
from .train import tell

if TYPE_CHECKING:
    from ..reproduction import Book, Job, Log

__all__ = ["run"]

_REPORT = "report"

_EPILOG = """\
TABLE is the name of a file in the folder of the experiments, such as pos for experiments/pos.toml.
Its default runs are the paper's. Files of corpora are found by name anywhere below the data folder;
what is not there is named and skipped. Each run is a folder below the output folder, and goes on
where it was stopped; when it is over, a line is added to experiments/results/TABLE.jsonl, and it is
never run again. Several processes may share the work: each takes runs that no other is at.

  bcrf reproduce pos --data ud-treebanks-v2.15 --list
  bcrf reproduce pos --data ud-treebanks-v2.15 --languages english --layers 0 --seeds 0
  bcrf reproduce ner --data data --languages conll2003 --layers base --pretrained base=FOLDER
  bcrf reproduce timing --data ud-treebanks-v2.15 --languages english
  bcrf reproduce report
"""


def run(arguments: list[str]) -> int:
    options = _parse(arguments)

    from ..reproduction import ExperimentError, LogError

    try:
        book = _book(Path(options.experiments))
        return _report(book, options) if options.table == _REPORT else _reproduce(book, options)
    except (ExperimentError, LogError) as error:
        raise UserError(str(error)) from error


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = command_parser(
        "reproduce", "Run the experiments of a table, or report what came of all of them.", _EPILOG
    )
    parser.add_argument("table", metavar="TABLE", help=f"name of a table, or {_REPORT!r}")
    chosen = parser.add_argument_group("which runs of the table (default: all of the paper's)")
    chosen.add_argument("--languages", nargs="+", metavar="NAME", help="corpora")
    chosen.add_argument(
        "--layers", nargs="+", metavar="NAME", help="networks: numbers of layers, base, large"
    )
    chosen.add_argument("--seeds", nargs="+", type=_seed, metavar="N")
    chosen.add_argument(
        "--objectives", nargs="+", metavar="NAME", help="of training; also others than the paper's"
    )
    parser.add_argument("--list", action="store_true", help="show what is done and what is missing")
    parser.add_argument("--data", metavar="DIR", default="data", help="folder of the corpora")
    parser.add_argument(
        "--output",
        metavar="DIR",
        default="runs/reproduction",
        help="folder of the training runs (default: %(default)s)",
    )
    parser.add_argument(
        "--experiments",
        metavar="DIR",
        default="experiments",
        help="folder of the tables and their results (default: %(default)s)",
    )
    parser.add_argument(
        "--pretrained",
        nargs="+",
        metavar="NAME=FOLDER",
        type=_pretrained,
        default=[],
        help="where the encoder of a network is (default: its name on the hub)",
    )
    parser.add_argument(
        "--device", metavar="NAME", default="auto", help="auto, cpu, cuda or cuda:N"
    )
    report = parser.add_argument_group("of the report")
    report.add_argument(
        "--page",
        metavar="FILE",
        default="docs/reproduction.md",
        help="what to write (default: %(default)s); plots go beside it",
    )
    report.add_argument("--no-plots", action="store_true", help="leave the plots as they are")
    return parser.parse_args(arguments)


def _seed(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise argparse.ArgumentTypeError(f"expected a number such as 0, got {text!r}")
    return int(text)


def _pretrained(text: str) -> tuple[str, str]:
    name, separator, folder = text.partition("=")
    if not (name and separator and folder):
        raise argparse.ArgumentTypeError(f"expected NAME=FOLDER, got {text!r}")
    return name, folder


def _book(folder: Path) -> Book:
    """The tables of a folder."""
    from ..reproduction import Book

    paths = sorted(folder.glob("*.toml"))
    if not paths:
        raise UserError(f"{folder}: holds no tables; expected the folder of the *.toml files")
    return Book.from_dicts(folder, {path.stem: read_config(str(path)) for path in paths})


def _report(book: Book, options: argparse.Namespace) -> int:
    from ..reproduction import write_report

    template = book.folder / "template.md"
    for path in write_report(book, template, Path(options.page), not options.no_plots):
        print(path)
    return 0


def _reproduce(book: Book, options: argparse.Namespace) -> int:
    from ..reproduction import Selection, Workplace
    from ..tagging import choose_device

    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UserError("runs are shared by starting the command several times, without torchrun")
    try:
        choose_device(options.device)
    except ValueError as error:
        raise UserError(str(error)) from error
    selection = Selection(
        *(None if v is None else tuple(v) for v in (options.languages, options.layers)),
        *(None if v is None else tuple(v) for v in (options.seeds, options.objectives)),
    )
    workplace = Workplace(
        book.experiments,
        Path(options.data),
        Path(options.output),
        options.device,
        dict(options.pretrained),
    )
    jobs = list(book.jobs(options.table, selection, workplace))
    if not jobs:
        raise UserError("no run of the table is chosen; --list without a choice shows all")
    log = book.log(options.table)
    return _list(jobs, log) if options.list else _work(jobs, log)


def _list(jobs: list[Job], log: Log) -> int:
    from ..reproduction import progress

    states = list(progress(jobs, log))
    for one in states:
        print(f"{one.state:8}{one.title}" + (f" ({one.detail})" if one.detail else ""))
    counts = Counter(one.state for one in states)
    sys.stdout.flush()
    print(", ".join(f"{count} {state}" for state, count in counts.items()), file=sys.stderr)
    return 0


def _work(jobs: list[Job], log: Log) -> int:
    """Exit code 1 if something failed; what lacks its data does not count as failed."""
    from ..reproduction import Notice, work

    failed = 0
    try:
        with progress_bar() as update:
            for event in work(jobs, log):
                if isinstance(event, Notice):
                    failed += event.kind == "failed"
                    print(f"{event.kind}: {event.text}", flush=True)
                else:
                    tell(event, update)
    except KeyboardInterrupt:
        print("bcrf: stopped; the same command goes on where it was", file=sys.stderr)
        raise
    return 1 if failed else 0
