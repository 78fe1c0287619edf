"""The entry point of `bcrf`: select the command, run it, turn errors into exit codes."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module, metadata

from .arguments import CommandParser, command_parser
from .errors import explain
from .streams import prepare_output_streams, reserved_standard_input

__all__ = ["COMMANDS", "WAIT_VARIABLES", "main", "run_reporting_errors"]

COMMANDS = {
    "demo": "tag with a bundled model; train four small taggers and compare them",
    "train": "train a tagger",
    "evaluate": "measure a tagger on annotated sentences",
    "tag": "tag sentences",
    "models": "list the bundled models",
    "export": "write a tagger as a file that runs without torch",
    "check": "look for mistakes in data files",
    "data": "fetch treebanks of Universal Dependencies",
}
"""What each command does. Its module in this package has `run(arguments) -> exit code`."""

# Names that a user of the paper may try: the experiments are not part of the installed package.
_REPRODUCTION_NAMES = ("reproduce", "reproduction")

_USAGE_ERROR = 2
# 128 + the number of the signal, as shells report it: SIGINT, SIGPIPE, SIGTERM.
_INTERRUPTED, _BROKEN_PIPE, _TERMINATED = 130, 141, 143

WAIT_VARIABLES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
"""Environment variables that set how long waiting OpenMP threads spin."""


class _Terminated(KeyboardInterrupt):
    """Raised when SIGTERM arrives, so that a command ends as it does after Ctrl-C."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command `bcrf` and return its exit code.

    0: success. 1: the data, or the settings in a file, are wrong, or a check has found mistakes;
    standard error says which. 2: the command line is wrong. 130: interrupted (Ctrl-C). 141: the
    reader of the output has closed it. 143: terminated (SIGTERM).

    Args:
        arguments: the arguments of the command line; None: those of this process.
    """
    return run_reporting_errors(_run, arguments)


def run_reporting_errors(
    run: Callable[[list[str]], int], arguments: Sequence[str] | None = None
) -> int:
    """Call `run` with the command line's arguments; turn errors into messages and exit codes."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    prepare_output_streams()
    _let_waiting_threads_sleep()
    try:
        with reserved_standard_input(), _raising_at_sigterm():
            code = run(arguments)
            sys.stdout.flush()  # inside the `try`, where a closed pipe is expected
    except _Terminated:
        print("bcrf: terminated", file=sys.stderr)
        return _TERMINATED
    except KeyboardInterrupt:
        print("bcrf: interrupted", file=sys.stderr)
        return _INTERRUPTED
    except BrokenPipeError:
        # The reader has seen enough (`bcrf tag ... | head`). Python flushes standard output again
        # at exit, and would complain that the pipe is closed.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _BROKEN_PIPE
    except Exception as error:
        message = explain(error)
        if message is None:
            raise  # a bug: the user needs the traceback for a report
        print(f"bcrf: error: {message}", file=sys.stderr)
        return 1
    return code


def _let_waiting_threads_sleep() -> None:
    """Set OpenMP's wait policy to passive, unless the user has chosen one.

    By default, threads of libgomp that wait for each other spin for a while. If all cores are busy,
    a spinning thread occupies the core that another thread needs to finish its work. Two threads
    then take ten to a hundred times as long as one. OpenMP reads the variable when torch is
    imported. `import bcrf` leaves it alone: on an idle machine, spinning threads are faster.
    """
    if "torch" not in sys.modules and not any(name in os.environ for name in WAIT_VARIABLES):
        os.environ["OMP_WAIT_POLICY"] = "passive"


def _run(arguments: list[str]) -> int:
    name = arguments[0] if arguments else ""
    if name in COMMANDS:
        command = import_module(f".{name}", __package__)
        code: int = command.run(arguments[1:])
        return code
    parser = _parser()
    if not arguments:
        parser.print_help()
        return _USAGE_ERROR
    if not name.startswith("-"):
        parser.error(f"there is no command {name!r}{_suggest_command(name)}")
    parser.parse_args(arguments)  # exits, unless "--" is the only argument
    return _USAGE_ERROR


def _suggest_command(name: str) -> str:
    """Return what to type instead of an unknown command, beginning with "; "."""
    from ..suggestions import did_you_mean

    if name in _REPRODUCTION_NAMES:
        return (
            "; in a checkout of the project, `python -m reproduction` runs the experiments of the "
            "paper"
        )
    return did_you_mean(name, COMMANDS) or f"; expected {', '.join(COMMANDS)}"


@contextmanager
def _raising_at_sigterm() -> Iterator[None]:
    """Raise `_Terminated` in the block when SIGTERM arrives, unless the caller ignores it."""
    in_main_thread = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGTERM)  # None: a handler that Python did not install
    if not in_main_thread or before in (signal.SIG_IGN, None):  # other threads cannot set handlers
        yield
        return
    signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _terminate(number: int, frame: object) -> None:
    raise _Terminated


def _parser() -> CommandParser:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:{width}}  {purpose}" for name, purpose in COMMANDS.items()]
    parser = command_parser(
        "bcrf",
        "Sequence labeling with Bregman conditional random fields.",
        "\n".join(["commands:", *lines, "", "bcrf COMMAND --help explains a command."]),
        usage="bcrf COMMAND ...",
    )
    parser.add_argument("--version", action="version", version=f"bcrf {metadata.version('bcrf')}")
    return parser
