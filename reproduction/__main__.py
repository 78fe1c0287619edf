"""`python -m reproduction`: run the experiments of the paper's tables, and report them."""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from bcrf.cli.arguments import command_parser
from bcrf.cli.config_file import read_config
from bcrf.cli.errors import UserError
from bcrf.cli.main import run_reporting_errors
from bcrf.cli.terminal import progress_bar
from bcrf.cli.train import TrainingDisplay

if TYPE_CHECKING:
    from bcrf.tagger.files import JsonlLog

    from . import ExperimentSet, Job

__all__ = ["main"]

_REPORT = "report"

_EPILOG = """\
TABLE is the name of a file in the folder of the experiments, such as pos for experiments/pos.toml.
By default the command runs all runs of the paper. It finds the files of the corpora by name,
anywhere below the data folder. If files are missing, it names them and skips the run. Each run has
a folder below the output folder, where an interrupted run continues. A finished run is a line of
experiments/results/TABLE.jsonl and is not run again. Several processes may share the work: each
process takes runs that no other process works on.

  python -m reproduction pos --data ud-treebanks-v2.15 --list
  python -m reproduction pos --data ud-treebanks-v2.15 --languages english --layers 0 --seeds 0
  python -m reproduction ner --data data --layers base --pretrained base=FOLDER
  python -m reproduction timing --data ud-treebanks-v2.15 --languages english
  python -m reproduction report
"""


def main(arguments: list[str] | None = None) -> int:
    """Run the command, and return the exit code, as `bcrf.cli.main` does."""
    return run_reporting_errors(_run, arguments)


def _run(arguments: list[str]) -> int:
    options = _parse(arguments)

    from bcrf.tagger.files import JsonlError

    from . import ExperimentError

    try:
        experiment_set = _read_tables(Path(options.experiments))
        return (
            _report(experiment_set, options)
            if options.table == _REPORT
            else _reproduce(experiment_set, options)
        )
    except (ExperimentError, JsonlError) as error:
        raise UserError(str(error)) from error


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = command_parser(
        "python -m reproduction",
        "Run the experiments of a table of the paper, or write the report of all tables.",
        _EPILOG,
    )
    parser.add_argument("table", metavar="TABLE", help=f"name of a table, or {_REPORT!r}")
    chosen = parser.add_argument_group("selection of runs (default: all runs of the paper)")
    chosen.add_argument("--languages", nargs="+", metavar="NAME", help="names of corpora")
    chosen.add_argument(
        "--layers",
        nargs="+",
        metavar="NAME",
        help="names of networks: a number of layers, base, large",
    )
    chosen.add_argument("--seeds", nargs="+", type=_seed, metavar="N", help="seeds of the runs")
    chosen.add_argument(
        "--objectives",
        nargs="+",
        metavar="NAME",
        help="training objectives, including those that are not in the paper",
    )
    parser.add_argument(
        "--list", action="store_true", help="show the state and the score of each run"
    )
    parser.add_argument(
        "--again", action="store_true", help="run finished runs again; new results replace old ones"
    )
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
        help="folder of the pretrained encoder of a network (default: its name on the hub)",
    )
    parser.add_argument(
        "--device", metavar="NAME", default="auto", help="auto, cpu, cuda or cuda:N"
    )
    report = parser.add_argument_group("options of the report")
    report.add_argument(
        "--page",
        metavar="FILE",
        default="docs/reproduction.md",
        help="page to write (default: %(default)s); its appendix and plots are written beside it",
    )
    report.add_argument("--no-plots", action="store_true", help="do not draw the plots")
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


def _read_tables(folder: Path) -> ExperimentSet:
    """Return the tables that the TOML files of a folder describe."""
    from . import ExperimentSet

    paths = sorted(folder.glob("*.toml"))
    if not paths:
        raise UserError(
            f"{folder}: has no tables; expected a folder with *.toml files (--experiments)"
        )
    return ExperimentSet.from_dicts(folder, {path.stem: read_config(str(path)) for path in paths})


def _report(experiment_set: ExperimentSet, options: argparse.Namespace) -> int:
    from . import write_report

    for path in write_report(experiment_set, Path(options.page), not options.no_plots):
        print(path)
    return 0


def _reproduce(experiment_set: ExperimentSet, options: argparse.Namespace) -> int:
    from bcrf.tagger import choose_device

    from . import RunContext, Selection

    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UserError(
            "torchrun is not supported; to share the runs, start the command several times"
        )
    try:
        choose_device(options.device)
    except ValueError as error:
        raise UserError(str(error)) from error
    if not Path(options.data).is_dir():
        raise UserError(
            f"--data {options.data}: there is no such folder; expected the folder of the corpora"
        )
    selection = Selection(
        *(None if v is None else tuple(v) for v in (options.languages, options.layers)),
        *(None if v is None else tuple(v) for v in (options.seeds, options.objectives)),
    )
    context = RunContext(
        experiment_set.experiments,
        Path(options.data),
        Path(options.output),
        options.device,
        dict(options.pretrained),
    )
    jobs = list(experiment_set.jobs(options.table, selection, context))
    if not jobs:
        raise UserError(
            "the options select no run of the table; --list without them shows all runs"
        )
    log = experiment_set.log(options.table)
    return _list(jobs, log) if options.list else _work(jobs, log, options.again)


def _list(jobs: list[Job], log: JsonlLog) -> int:
    from . import job_statuses

    states = list(job_statuses(jobs, log))
    for one in states:
        form = ": {}" if one.state == "done" else " ({})"
        print(f"{one.state:8}{one.title}" + (form.format(one.detail) if one.detail else ""))
    counts = Counter(one.state for one in states)
    sys.stdout.flush()
    print(", ".join(f"{count} {state}" for state, count in counts.items()), file=sys.stderr)
    return 0


def _work(jobs: list[Job], log: JsonlLog, again: bool) -> int:
    """Run the jobs; return 1 if one failed. A job without its data does not count as failed."""
    from . import JobMessage, run_jobs

    failed = 0
    try:
        with progress_bar() as update:
            display = TrainingDisplay(update)
            for event in run_jobs(jobs, log, again):
                if isinstance(event, JobMessage):
                    failed += event.kind == "failed"
                    print(f"{event.kind}: {event.text}", flush=True)
                else:
                    display.show(event)
    except KeyboardInterrupt:
        print("bcrf: stopped; run the same command again to continue", file=sys.stderr)
        raise
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
