"""`bcrf demo`: the four families side by side, on a small corpus that comes with the library."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .arguments import command_parser
from .progress import Update, progress_bar
from .tables import percent, show_table

if TYPE_CHECKING:
    from ..tagging import Tagger

__all__ = ["run"]

FAMILIES = {
    "unstructured": "unstructured",
    "CRF": "crf",
    "mean field": "mean_field",
    "Bregman": "bregman",
}
"""The training objective of each family."""

# A small network that learns quickly; the paper's recipe is for thirty times as many sentences.
_SETTINGS: dict[str, dict[str, Any]] = {
    "model": {"width": 128, "score_width": 64},
    "optimizer": {"learning_rate": 5e-3},
    "training": {"epochs": 8, "batch": 16},
}

# Nouns and verbs in the corpus: "watch", "book". Not in it: "play".
EXAMPLE = "We watch the play , and they book a room for the stranger ."

_EPILOG = """\
Trains the four families on some 350 English sentences, with the same small network, and measures
parts of speech on 60 others. It takes less than a minute. Then it tags

  {example}

and says how probable each family thinks its tags.
"""


@dataclass(frozen=True)
class Trained:
    """A family, what it reached on dev, and what it took."""

    tagger: Tagger
    accuracy: float
    unknown_accuracy: float
    seconds: float
    tokens_per_second: float


def run(arguments: list[str]) -> int:
    epilog = _EPILOG.format(example=EXAMPLE)
    parser = command_parser("demo", "Train four small taggers, and compare them.", epilog)
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of all that is random")
    parser.add_argument(
        "--keep",
        metavar="DIR",
        help="keep the models here, for `bcrf tag DIR/bregman` and the like",
    )
    options = parser.parse_args(arguments)
    with ExitStack() as stack:
        train = stack.enter_context(_sample("english-train.conllu"))
        dev = stack.enter_context(_sample("english-dev.conllu"))
        folder = options.keep or stack.enter_context(tempfile.TemporaryDirectory())
        update = stack.enter_context(progress_bar())
        trained = {
            family: _train(objective, train, dev, Path(folder), options.seed, update)
            for family, objective in FAMILIES.items()
        }
    _show_scores(trained)
    _show_example(trained)
    if options.keep:
        print(f"The models are in {options.keep}.")
    return 0


@contextmanager
def _sample(name: str) -> Iterator[Path]:
    with resources.as_file(resources.files("bcrf") / "samples" / name) as path:
        yield path


def _train(
    objective: str, train_file: Path, dev_file: Path, folder: Path, seed: int, update: Update
) -> Trained:
    from ..tagging import Tagger
    from ..training import Config, Epoch, Step, train

    values = {
        "output": str(folder / objective),
        "data": {"train": str(train_file), "dev": str(dev_file)},
        **_SETTINGS,
        "model": _SETTINGS["model"] | {"objective": objective},
        "training": _SETTINGS["training"] | {"seed": seed},
    }
    config = Config.from_dict(values)
    seconds = 0.0
    for event in train(config, overwrite=True):
        if isinstance(event, Step):
            done = (event.epoch - 1) * event.steps + event.step
            update(objective, done, config.training.epochs * event.steps)
        elif isinstance(event, Epoch):
            seconds += event.seconds
    tagger = Tagger.load(config.output)
    evaluation = tagger.evaluate(dev_file)
    return Trained(
        tagger,
        evaluation.scores["accuracy"],
        evaluation.scores["unknown_accuracy"],
        seconds,
        evaluation.tokens / max(evaluation.seconds, 1e-9),
    )


def _show_scores(trained: dict[str, Trained]) -> None:
    columns = ["training", "decoder", "accuracy", "unknown words", "training time", "tagging"]
    rows = [
        [
            family,
            one.tagger.decoder,
            percent(one.accuracy),
            percent(one.unknown_accuracy),
            f"{one.seconds:.1f} s",
            f"{one.tokens_per_second:.0f} tokens/s",
        ]
        for family, one in trained.items()
    ]
    show_table("Parts of speech of the English sample, on sentences not trained on", columns, rows)


def _show_example(trained: dict[str, Trained]) -> None:
    words = EXAMPLE.split()
    tagged = [one.tagger.tag([words], probabilities=True)[0] for one in trained.values()]
    rows = [
        [word, *(f"{t.tags[i]} {(t.probabilities or ())[i]:.3f}" for t in tagged)]
        for i, word in enumerate(words)
    ]
    show_table("\nAn example, and how probable its tags are", ["", *trained], rows)
