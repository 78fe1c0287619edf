"""The command `bcrf`: finds the command that is meant, and turns errors into messages."""

from __future__ import annotations

import argparse
import codecs
import io
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module, metadata

from .errors import explain
from .standard_input import reserved_standard_input

__all__ = ["COMMANDS", "main"]

COMMANDS = {
    "demo": "train four small taggers on a sample corpus and compare them",
    "train": "train a tagger as a configuration file says",
    "evaluate": "measure a tagger on annotated sentences",
    "tag": "tag sentences",
    "check": "look for mistakes in data files",
    "data": "fetch treebanks of Universal Dependencies",
    "reproduce": "run the experiments of the paper, and report them",
}
"""What each command does. Its module in this package has `run(arguments) -> exit code`."""

_USAGE = 2
# As a shell says it of a program that was stopped by SIGINT, SIGPIPE or SIGTERM.
_INTERRUPTED, _BROKEN_PIPE, _TERMINATED = 130, 141, 143


class _Terminated(KeyboardInterrupt):
    """SIGTERM has arrived. Commands end as they do after Ctrl-C."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the exit code.

    0: done. 1: the user's data, files or settings are at fault, or a check has found something;
    standard error says what. 2: the command line is wrong. 130: interrupted (Ctrl-C). 143:
    terminated (SIGTERM).
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    _repair_streams()
    try:
        with reserved_standard_input(), _raising_at_sigterm():
            code = _run(arguments)
            sys.stdout.flush()  # here, where a closed pipe is expected
    except _Terminated:
        print("bcrf: terminated", file=sys.stderr)
        return _TERMINATED
    except KeyboardInterrupt:
        print("bcrf: interrupted", file=sys.stderr)
        return _INTERRUPTED
    except BrokenPipeError:
        # The reader has seen enough (`bcrf tag ... | head`). Python would complain when it flushes
        # what is left at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _BROKEN_PIPE
    except Exception as error:
        message = explain(error)
        if message is None:
            raise  # a bug, and its traceback is what we want to be sent
        print(f"bcrf: error: {message}", file=sys.stderr)
        return 1
    return code


def _repair_streams() -> None:
    """Let standard output and error take all that is printed."""
    if sys.stdout is None:  # closed by the caller (`>&-`)
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    # The name of a file may be no valid text, and tags may be in letters that the encoding lacks.
    if isinstance(sys.stdout, io.TextIOWrapper):
        utf8 = codecs.lookup(sys.stdout.encoding).name == "utf-8"
        sys.stdout.reconfigure(errors="surrogateescape" if utf8 else "backslashreplace")


def _run(arguments: list[str]) -> int:
    if not arguments or arguments[0] not in COMMANDS:
        parser = _parser()
        if not arguments:
            parser.print_help()
            return _USAGE
        parser.parse_args(arguments)  # help, version, or no command of ours: exits
    command = import_module(f".{arguments[0]}", __package__)
    code: int = command.run(arguments[1:])
    return code


@contextmanager
def _raising_at_sigterm() -> Iterator[None]:
    """Raise `_Terminated` in the block when SIGTERM arrives, unless the caller ignores it."""
    handled = threading.current_thread() is threading.main_thread()  # others must not set handlers
    before = signal.getsignal(signal.SIGTERM)
    if not handled or before in (signal.SIG_IGN, None):  # None: not a handler of Python
        yield
        return
    signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _terminate(number: int, frame: object) -> None:
    raise _Terminated


def _parser() -> argparse.ArgumentParser:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:{width}}  {purpose}" for name, purpose in COMMANDS.items()]
    parser = argparse.ArgumentParser(
        prog="bcrf",
        usage="bcrf COMMAND ...",
        description="Sequence labeling with Bregman conditional random fields.",
        epilog="\n".join(["commands:", *lines, "", "bcrf COMMAND --help says more."]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("command", choices=COMMANDS, metavar="COMMAND", help=argparse.SUPPRESS)
    parser.add_argument("--version", action="version", version=f"bcrf {metadata.version('bcrf')}")
    return parser
