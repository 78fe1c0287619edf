"""`bcrf train`: train a tagger with settings from a file and the command line."""

from __future__ import annotations

import argparse
import re
import sys
import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from .arguments import add_threads_option, command_parser, use_threads
from .config_file import read_config
from .errors import UsageError, UserError, one_line_warnings
from .settings import add_settings, nested, read_task_defaults
from .terminal import Update, percent, progress_bar

if TYPE_CHECKING:
    from ..tagger.training import Config, Event, Started, Step

__all__ = ["TrainingDisplay", "load_config", "run"]

_EPILOG = """\
CONFIG is a TOML, YAML or JSON file with these settings: output = "runs/en", and the tables [data],
[model], [optimizer], [training] and [decoding]. Settings of the command line replace those of the
file. CONFIG may be left out if the command line gives all required settings. The value null means
that an optional setting is not set.

  bcrf train configs/pos.toml --training.epochs 3
  bcrf train --output runs/en --data.train train.conllu --data.dev dev.conllu
  bcrf train --init-from runs/en --output runs/mine --data.train mine.conllu
"""


def run(arguments: list[str]) -> int:
    """Train a tagger with the settings that the arguments give; return the exit code."""
    parser = command_parser(
        "bcrf train",
        "Train a tagger.",
        _EPILOG + _describe_task_defaults(),
        usage="bcrf train [CONFIG] [--SETTING VALUE ...] [--resume | --overwrite] [--threads N]",
    )
    parser.add_argument("config", nargs="?", metavar="CONFIG", help="file with settings")
    parser.add_argument(
        "--resume",
        action="store_true",
        help="continue the run in OUTPUT after its last complete epoch",
    )
    parser.add_argument(
        "--overwrite", action="store_true", help="start again, and replace the run in OUTPUT"
    )
    parser.add_argument(
        "--init-from",
        metavar="MODEL",
        dest="training.init_from",
        default=argparse.SUPPRESS,
        help="fine-tune the model in this folder: begin with its weights and settings, and add the "
        "new tags and words (the same as --training.init_from)",
    )
    add_threads_option(parser)
    add_settings(parser)
    given = vars(parser.parse_args(arguments))
    path, threads = given.pop("config"), given.pop("threads")
    resume, overwrite = given.pop("resume"), given.pop("overwrite")
    if resume and overwrite:
        parser.error("--resume and --overwrite cannot be used together")
    if path is None and not given:
        parser.error("expected CONFIG, or at least --output and --data.train")
    try:
        config = load_config(path, given)
    except UsageError as error:
        parser.error(str(error))
    use_threads(threads)

    from ..tagger.training import train

    try:
        with one_line_warnings(), progress_bar() as update:
            display = TrainingDisplay(update, "; raise --training.epochs to continue")
            update("reading the data", 0, None)
            for event in _reporting_setup_errors(train(config, resume=resume, overwrite=overwrite)):
                display.show(event)
        if display.is_finished:  # under torchrun, only the main process gets events
            _print_next_steps(config)
    except KeyboardInterrupt:
        print(
            f"bcrf: stopped; the completed epochs are in {config.output}; continue with --resume",
            file=sys.stderr,
        )
        raise
    return 0


def _print_next_steps(config: Config) -> None:
    output, file = config.output, config.data.dev or "FILE"
    print(
        f"next: bcrf evaluate {output} {file} --report {output}/report, or bcrf tag {output} FILE"
    )


def load_config(path: str | None, given: dict[str, Any]) -> Config:
    """Return the configuration of a file, overridden by the settings of the command line.

    Args:
        path: the configuration file; None: there is none.
        given: settings of the command line, by dotted name, such as "model.layers".

    Raises:
        UsageError: a setting of the command line is wrong, or a required setting is missing and
            there is no file.
        UserError: the file is wrong, or does not fit the settings of the command line.
    """
    from ..tagger.config_tables import deep_merge
    from ..tagger.training import Config

    values = deep_merge({} if path is None else read_config(path), nested(given))
    try:
        return Config.from_dict(values)
    except (TypeError, ValueError) as error:
        message = str(error)  # begins with the dotted name of the setting
        setting = re.match(r"[\w.]*", message)
        if path is None or (setting is not None and setting[0] in given):
            raise UsageError(f"--{message}") from error
        sources = [path, *(["the command line"] if given else [])]
        raise UserError(f"{' with the settings of '.join(sources)}: {message}") from error


class TrainingDisplay:
    """Prints a line for each epoch, and shows the steps in a progress bar.

    Args:
        update: moves the progress bar.
        how_to_extend: what the message about a run that has all its epochs adds, such as the option
            that continues it.
    """

    # Weight of the newest step in the running mean of the loss, so about the last 20 steps count.
    _SMOOTHING = 0.05

    def __init__(self, update: Update, how_to_extend: str = "") -> None:
        self._update, self._how_to_extend = update, how_to_extend
        self._first_epoch = 1
        self._epochs = 0
        self._dev_sentences = 0
        self._loss: float | None = None
        self.is_finished = False

    def show(self, event: Event) -> None:
        """Show one event of `bcrf.tagger.training.train`."""
        from ..tagger.training import Epoch, Finished, Started, Step

        match event:
            case Started():
                self._epochs, self._dev_sentences = event.epochs, event.dev_sentences
                self._first_epoch, self._loss = event.first_epoch, None
                self._print_start(event)
            case Step():
                self._show_step(event)
            case Epoch():
                score = (
                    f"  {event.metric} {percent(event.score)}" if event.score is not None else ""
                )
                best = "  best so far" if event.improved and score else ""
                print(
                    f"epoch {event.epoch}/{event.epochs}  loss {event.loss:.4f}{score}  "
                    f"time {event.seconds + event.dev_seconds:.1f} s{best}"
                )
            case Finished():
                self.is_finished = True
                dev_score = event.best_score
                score = "" if dev_score is None else f", {percent(dev_score)} on dev"
                print(
                    f"{event.model}: the model of epoch {event.best_epoch}{score} ({event.reason})"
                )
        sys.stdout.flush()  # someone may be following the output through a pipe

    def _print_start(self, event: Started) -> None:
        last = event.first_epoch - 1
        if event.reason == "done":
            print(
                f"{event.output} is finished ({last} of {event.epochs} epochs){self._how_to_extend}"
            )
        elif event.reason is not None:
            print(
                f"{event.output} is finished ({event.reason} after {last} of {event.epochs} epochs)"
            )
        else:
            dev = f", {event.dev_sentences} for dev" if event.dev_sentences else ""
            resumed = f", continuing with epoch {event.first_epoch}" if last else ""
            print(
                f"{event.output}: {event.sentences} sentences{dev}; {event.labels} labels, "
                f"{event.words} words, {event.parameters} parameters on {event.device}{resumed}"
            )

    def _show_step(self, step: Step) -> None:
        """Advance the bar, which covers all epochs of this process; show the running mean loss."""
        mean = step.loss if self._loss is None else self._loss
        self._loss = mean + self._SMOOTHING * (step.loss - mean)
        text = f"epoch {step.epoch}/{self._epochs}  loss {self._loss:.3f}"
        if step.step == step.steps and self._dev_sentences:
            text = f"epoch {step.epoch}/{self._epochs}  tagging {self._dev_sentences} dev sentences"
        done = (step.epoch - self._first_epoch) * step.steps + step.step
        self._update(text, done, (self._epochs - self._first_epoch + 1) * step.steps)


def _reporting_setup_errors(events: Iterator[Event]) -> Iterator[Event]:
    """Yield the events; a ValueError before the first one means that settings and data disagree."""
    try:
        first = next(events, None)
    except ValueError as error:
        raise UserError(str(error)) from error
    if first is not None:
        yield first
    yield from events


def _describe_task_defaults() -> str:
    """Return the defaults that differ from those of the options: of all tasks, then of each."""
    found = {
        task: [
            f"{part}.{name} {value}".lower()
            for part, values in parts.items()
            for name, value in values.items()
        ]
        for task, parts in read_task_defaults().items()
    }
    common = [text for text in next(iter(found.values())) if all(text in t for t in found.values())]
    lines = ["\nWithout settings of another network, the network reads features. Its defaults are:"]
    for task, settings in {"all tasks": common, **found}.items():
        shown = settings if task == "all tasks" else [s for s in settings if s not in common]
        text = f"  {task}: {', '.join(shown)}"
        lines += textwrap.wrap(text, 98, subsequent_indent="    ", break_on_hyphens=False)
    return "\n".join(lines)
