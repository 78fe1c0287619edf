"""`bcrf models`: list the models that come with the package."""

from __future__ import annotations

from .arguments import command_parser
from .terminal import show_table

__all__ = ["run"]

_EPILOG = """\
Commands take the name of a model in place of a folder; in Python, bcrf.Tagger.load("en") loads it.
A folder of the same name wins. The scores are those on the test file of the treebank. The weights
have the licence of the treebank, not that of the program.

  echo "Ada visited Turin again. She didn't stay." | bcrf tag en
  bcrf evaluate en en_ewt-ud-test.conllu
  bcrf train --init-from en --data.train mine.conllu --data.dev mine-dev.conllu --output runs/mine
"""


def run(arguments: list[str]) -> int:
    """Print what each bundled model does; return the exit code."""
    command_parser(
        "bcrf models", "List the models that come with the package.", _EPILOG
    ).parse_args(arguments)
    from ..tagger import bundled_models

    models = bundled_models()
    rows = [
        [model.name, model.does, f"{model.size / 1e6:.1f} MB", model.licence] for model in models
    ]
    show_table("Bundled models", ["name", "does", "size", "licence"], rows)
    scores = [[model.name, model.data, _shown(model.scores)] for model in models]
    show_table("\nScores on test, in percent", ["name", "treebank", "scores"], scores)
    return 0


def _shown(scores: dict[str, float]) -> str:
    return ", ".join(f"{name} {100 * score:.2f}" for name, score in scores.items())
