"""`bcrf train`: a tagger from a configuration file."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from .config_file import overlaid, read_config
from .errors import UserError
from .progress import Update, progress_bar
from .settings import add_settings, given_settings, settings_parser
from .tables import percent

if TYPE_CHECKING:
    from ..training import Config, Event

__all__ = ["run", "tell"]

_EPILOG = """\
CONFIG is TOML, YAML or JSON, with the settings above: output = "runs/en", and tables [data],
[model], [optimizer], [training], [decoding]. Settings on the command line overrule it.
"""


def run(arguments: list[str]) -> int:
    from ..training import Config, train

    parser = settings_parser("train", "Train a tagger.", _EPILOG + _recipes())
    parser.add_argument("config", metavar="CONFIG", help="file with the settings")
    parser.add_argument(
        "--resume", action="store_true", help="go on after the last epoch that was completed"
    )
    parser.add_argument(
        "--overwrite", action="store_true", help="begin anew, even if there is a run in OUTPUT"
    )
    add_settings(parser, Config)
    given = given_settings(parser, arguments)
    path, resume, overwrite = (given.pop(name, False) for name in ("config", "resume", "overwrite"))
    if resume and overwrite:
        parser.error("--resume and --overwrite exclude each other")
    config = _config(path, given)
    try:
        with _one_line_warnings(), progress_bar() as update:
            for event in _begun(train(config, resume=resume, overwrite=overwrite)):
                tell(event, update)
    except KeyboardInterrupt:
        print(
            f"bcrf: stopped; what was completed is in {config.output}, and --resume goes on",
            file=sys.stderr,
        )
        raise
    return 0


def tell(event: Event, update: Update) -> None:
    """Print what has been reached; steps only move the bar."""
    from ..training import Epoch, Finished, Started, Step

    match event:
        case Started():
            dev = f", {event.dev_sentences} for dev" if event.dev_sentences else ""
            resumed = f", going on with epoch {event.first_epoch}" if event.first_epoch > 1 else ""
            print(
                f"{event.output}: {event.sentences} sentences{dev}; {event.labels} labels, "
                f"{event.words} words, {event.parameters} parameters on {event.device}{resumed}"
            )
        case Step():
            update(f"epoch {event.epoch}  loss {event.loss:.3f}", event.step, event.steps)
        case Epoch():
            score = f"  {event.metric} {percent(event.score)}" if event.score is not None else ""
            best = " *" if event.improved and score else ""
            print(
                f"epoch {event.epoch}/{event.epochs}  loss {event.loss:.4f}{score}{best}  "
                f"{event.seconds + event.dev_seconds:.1f} s"
            )
        case Finished():
            score = f", {percent(event.best_score)} on dev" if event.best_score is not None else ""
            print(f"{event.model}: the model of epoch {event.best_epoch}{score} ({event.reason})")
    sys.stdout.flush()  # for those who look on through a pipe


@contextmanager
def _one_line_warnings() -> Iterator[None]:
    """Show warnings as the messages that they are, without the line of code they come from."""

    def show(message: Warning | str, *_: object, **__: object) -> None:
        print(f"bcrf: warning: {message}", file=sys.stderr)

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield


def _begun(events: Iterator[Event]) -> Iterator[Event]:
    """The events; before the first one, settings that do not fit the data are the user's."""
    try:
        first = next(events, None)
    except ValueError as error:
        raise UserError(str(error)) from error
    if first is not None:
        yield first
    yield from events


def _config(path: str, given: dict[str, Any]) -> Config:
    from ..training import Config

    values = overlaid(read_config(path), given)
    try:
        return Config.from_dict(values)
    except (TypeError, ValueError) as error:
        where = f"{path} with the settings of the command line" if given else path
        raise UserError(f"{where}: {error}") from error


def _recipes() -> str:
    """The defaults that are not the same for all tasks."""
    from ..tasks import TASKS
    from ..training import recipe

    lines = ["The default of some settings depends on the task:"]
    for task in TASKS:
        settings = [
            f"{part}.{name} {value}".lower()
            for part, values in recipe(task).items()
            for name, value in values.items()
        ]
        lines.append(f"  {task}: {', '.join(settings)}")
    return "\n".join(lines)
