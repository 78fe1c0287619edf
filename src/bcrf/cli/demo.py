"""`bcrf demo`: tag with the bundled model, and compare the four families on a small corpus."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .arguments import add_threads_option, command_parser, use_threads, whole_number
from .terminal import Update, percent, progress_bar, show_table

if TYPE_CHECKING:
    from ..tagger import Tagger

__all__ = ["run"]

FAMILIES = {
    "unstructured": "unstructured",
    "CRF": "crf",
    "mean field": "mean_field",
    "Bregman": "bregman",
}
"""The training objective of each family."""

# A small network that learns quickly. The paper's settings are for 30 times as many sentences.
_SETTINGS: dict[str, dict[str, Any]] = {
    "model": {"width": 128, "score_width": 64},
    "optimizer": {"learning_rate": 5e-3},
    "training": {"epochs": 8, "batch": 16},
}

TEXT = "Ada visited Turin again. She didn't stay: the museums weren't open."

# "watch" and "book" are nouns and verbs in the corpus; "play" does not occur in it.
EXAMPLE = "We watch the play , and they book a room for the stranger ."

# The network is so small that a second thread does not make it faster: see docs/cli.md.
_THREADS = 1

_EPILOG = """\
Tags a text with the English model that comes with the package:

  {text}

Then trains the same small network with each family on 354 English sentences, and measures the
parts of speech on 62 other sentences. It takes less than a minute. Each family tags the sentence

  {example}

and shows the probability of each tag.
"""


@dataclass(frozen=True)
class Trained:
    """The tagger of a family, its accuracy on dev, and its speed."""

    tagger: Tagger
    accuracy: float
    unknown_accuracy: float
    seconds: float
    tokens_per_second: float


def run(arguments: list[str]) -> int:
    """Tag a text, train a small tagger of each family, and compare them; return the exit code."""
    epilog = _EPILOG.format(text=TEXT, example=EXAMPLE)
    about = "Tag a text, then train four small taggers and compare them."
    parser = command_parser("bcrf demo", about, epilog)
    parser.add_argument(
        "--seed",
        type=whole_number(least=0),
        default=0,
        metavar="N",
        help="seed of the random numbers (default: %(default)s)",
    )
    parser.add_argument(
        "--keep",
        metavar="DIR",
        help="save the models in DIR, so that `bcrf tag DIR/bregman` can use them",
    )
    add_threads_option(parser, f"{_THREADS}, or OMP_NUM_THREADS")
    options = parser.parse_args(arguments)
    set_by_environment = "OMP_NUM_THREADS" in os.environ
    use_threads(options.threads or (None if set_by_environment else _THREADS))
    _show_bundled_model()
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
    from ..tagger import Tagger
    from ..tagger.training import Config, Epoch, Step, train

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
            text = f"training {objective}, epoch {event.epoch}/{config.training.epochs}"
            update(text, done, config.training.epochs * event.steps)
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


def _show_bundled_model() -> None:
    from ..tagger import Tagger
    from ..tagger.model_folder.bundled import BUNDLED_FOLDER, DEFAULT_MODEL

    print(f"The bundled model {DEFAULT_MODEL} divides a text into sentences and words.")
    for tagged in Tagger.load(BUNDLED_FOLDER / DEFAULT_MODEL, "cpu").tag_text(TEXT):
        print("  " + " ".join(map("/".join, zip(tagged.words, tagged.tags, strict=True))))
    print("`bcrf tag` does this with your text. Now four small taggers are trained:\n", flush=True)


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
    show_table(
        "Parts of speech of 62 English sentences that were not used for training", columns, rows
    )


def _show_example(trained: dict[str, Trained]) -> None:
    words = EXAMPLE.split()
    tagged = [one.tagger.tag([words], probabilities=True)[0] for one in trained.values()]
    rows = [
        [word, *(f"{t.tags[i]} {(t.probabilities or ())[i]:.3f}" for t in tagged)]
        for i, word in enumerate(words)
    ]
    show_table("\nA sentence with the tags and their probabilities", ["", *trained], rows)
