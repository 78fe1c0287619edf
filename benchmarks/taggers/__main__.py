"""Compare taggers that are trained from scratch on the same files.

    python -m benchmarks.taggers --data DIR            # train, measure, log, and write the page
    python -m benchmarks.taggers --report              # write docs/taggers.md from the log
    python -m benchmarks.taggers --data DIR --systems spaCy --corpora wnut17 --seeds 0 1

Each training is one row of the log. A row that is in the log is not measured again, unless it is an
error; so the same command continues after an interruption.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from bcrf.tagger.data import DataError
from bcrf.tagger.files import JsonlError, atomic_write
from measurement.machine import source_commit
from reproduction.experiment import ExperimentError

from ..log import BenchmarkLog
from .corpora import CORPORA, read_corpus
from .report import render, summary_line
from .run import Plan, measure
from .systems import SYSTEMS

__all__ = ["LOG", "PAGE", "main"]

LOG = Path(__file__).resolve().parents[1] / "results" / "taggers.jsonl"
PAGE = Path(__file__).resolve().parents[2] / "docs" / "taggers.md"


def main(arguments: Sequence[str] | None = None) -> None:
    options = _options(arguments)
    log = BenchmarkLog(options.log, "benchmarks.taggers")
    try:
        if not options.report:
            _measure(options, log)
        rows = log.rows()
    except (DataError, ExperimentError, FileNotFoundError, JsonlError) as error:
        raise SystemExit(f"error: {error}") from error
    if not rows:
        raise SystemExit(f"error: {options.log} has no rows; measure first, with --data DIR")
    with atomic_write(options.page) as page:
        page.write(render(rows))
    print(f"wrote {options.page.name}")


def _measure(options: argparse.Namespace, log: BenchmarkLog) -> None:
    # SystemExit ends the process that trains, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    source_commit()  # the log names the commit at which the command began
    # All files are read first: a mistake in one should not show after hours of training.
    corpora = {name: read_corpus(name, options.data) for name in options.corpora}
    plan = Plan(
        options.systems,
        options.corpora,
        options.seeds,
        options.threads,
        options.limit,
        options.again,
        options.keep,
    )
    for row in measure(log, plan, corpora):
        print(summary_line(row), flush=True)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "python -m benchmarks.taggers", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--data", type=Path, metavar="DIR", help="folder of the corpora")
    parser.add_argument(
        "--systems",
        nargs="+",
        choices=SYSTEMS,
        default=list(SYSTEMS),
        metavar="NAME",
        help=", ".join(SYSTEMS),
    )
    parser.add_argument(
        "--corpora",
        nargs="+",
        choices=CORPORA,
        default=list(CORPORA),
        metavar="NAME",
        help=", ".join(CORPORA),
    )
    parser.add_argument("--seeds", nargs="+", type=int, default=[0], metavar="N", help="default: 0")
    parser.add_argument(
        "--threads",
        type=int,
        choices=(1, 2),
        default=1,
        help="threads of a training; taggers tag with one (default: 1)",
    )
    parser.add_argument(
        "--limit",
        type=float,
        default=4 * 3600,
        metavar="S",
        help="stop a training after S seconds (default: 14400)",
    )
    parser.add_argument("--again", action="store_true", help="repeat what the log has")
    parser.add_argument(
        "--keep", type=Path, metavar="DIR", help="keep the models, and what taggers print, in DIR"
    )
    parser.add_argument(
        "--report", action="store_true", help="write the page from the log, without measuring"
    )
    parser.add_argument("--log", type=Path, default=LOG, help="/".join(LOG.parts[-3:]))
    parser.add_argument("--page", type=Path, default=PAGE, help="/".join(PAGE.parts[-2:]))
    options = parser.parse_args(arguments)
    if not options.report:
        if options.data is None:
            parser.error("--data DIR is required, unless --report is given")
        if not options.data.is_dir():
            parser.error(f"--data {options.data}: there is no such folder")
    return options


if __name__ == "__main__":
    main()
