"""Train the models that come with the package, and write them into it.

    python -m bundled_models --data DIR
    python -m bundled_models --data DIR --models en

The training runs are in --output; an interrupted run continues there. The weights are stored as
integers of 8 bits; a model that loses more than 0.1 points of a test score by that is refused.
Each model that is written adds a row to bundled_models/log.jsonl.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from bcrf.cli.errors import UserError
from bcrf.cli.main import run_reporting_errors
from bcrf.cli.terminal import progress_bar
from bcrf.cli.train import TrainingDisplay

__all__ = ["LOG", "main"]

ROOT = Path(__file__).resolve().parents[1]
LOG = Path(__file__).with_name("log.jsonl")


def main(arguments: list[str] | None = None) -> int:
    """Run the command, and return the exit code, as `bcrf.cli.main` does."""
    return run_reporting_errors(_run, arguments)


def _run(arguments: list[str]) -> int:
    options = _parse(arguments)

    from bcrf.tagger.files import JsonlLog
    from measurement.machine import provenance
    from reproduction.experiment import ExperimentError

    from .building import BuildError, build, find_files, train_parts
    from .recipes import RECIPES

    try:
        for name in options.models or RECIPES:
            if name not in RECIPES:
                raise UserError(f"--models {name}: expected {', '.join(RECIPES)}")
        for name in options.models or RECIPES:
            origin = provenance("bundled_models")  # before the run: the checkout may change
            recipe, runs = RECIPES[name], Path(options.output, name)
            files = find_files(recipe, Path(options.data))
            with progress_bar() as update:
                display = TrainingDisplay(update)
                for event in train_parts(recipe, files, runs):
                    display.show(event)
            result = build(recipe, files, runs, Path(options.target, name))
            JsonlLog(Path(options.log)).append({"model": name, **origin, **result})
            scores = ", ".join(f"{key} {100 * one:.2f}" for key, one in result["scores"].items())
            print(f"{name}: {result['bytes'] / 1e6:.1f} MB, {scores}")
    except (BuildError, ExperimentError) as error:
        raise UserError(str(error)) from error
    return 0


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "python -m bundled_models",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--data", required=True, metavar="DIR", help="folder of the treebanks")
    parser.add_argument("--models", nargs="+", metavar="NAME", help="default: all of them")
    parser.add_argument(
        "--output",
        default=str(ROOT / "runs" / "bundled_models"),
        metavar="DIR",
        help="folder of the training runs (default: runs/bundled_models)",
    )
    parser.add_argument(
        "--target",
        default=str(ROOT / "src" / "bcrf" / "models"),
        metavar="DIR",
        help="folder of the models (default: src/bcrf/models)",
    )
    parser.add_argument(
        "--log", default=str(LOG), metavar="FILE", help="default: bundled_models/log.jsonl"
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
