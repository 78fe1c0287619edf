"""`bcrf tag`: sentences in, tagged sentences out."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, BinaryIO

from .arguments import INPUT_FORMATS, OUTPUT_FORMATS, add_methods, command_parser
from .errors import UserError
from .progress import progress_bar
from .standard_input import is_terminal, standard_input

if TYPE_CHECKING:
    from ..data import Sentence
    from ..tagging import Tagged, Tagger

__all__ = ["run"]

_STDIN = "-"
_BOM = "\ufeff"

_EPILOG = """\
Each input sentence gives one output sentence, in the same order. CoNLL-U, columns and JSON lines
stay as they are but for the tags; raw text (one sentence per line) becomes CoNLL-U.

  bcrf tag runs/en_ewt input.conllu > output.conllu
  echo "Ada visited Turin again ." | bcrf tag runs/en_ewt --format jsonl --probabilities
"""


def run(arguments: list[str]) -> int:
    options = _parse(arguments)
    files = options.files or [_STDIN]
    _check_readable(files)

    from ..data import atomic_write_bytes
    from ..tagging import Tagger

    tagger = Tagger.load(options.model, options.device)
    at_once = options.window == 1
    to_file = options.output is not None
    output: AbstractContextManager[BinaryIO] = (
        atomic_write_bytes(options.output) if to_file else nullcontext(sys.stdout.buffer)
    )
    with output as stream, progress_bar(to_file or not sys.stdout.isatty()) as update:
        for count, _ in enumerate(_tag_files(tagger, files, options, stream), start=1):
            if at_once:
                stream.flush()
            update("sentences", count, None)
    return 0


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = command_parser("tag", "Tag sentences.", _EPILOG)
    parser.add_argument("model", metavar="MODEL", help="folder of a model, or of a training run")
    parser.add_argument(
        "files", nargs="*", metavar="FILE", help="sentences; - or none: standard input"
    )
    parser.add_argument(
        "--input-format",
        choices=INPUT_FORMATS,
        default="auto",
        help="of all files (default: by the file's name and first lines)",
    )
    parser.add_argument(
        "--format", choices=OUTPUT_FORMATS, help="of the output (default: that of the input)"
    )
    parser.add_argument(
        "--output", metavar="FILE", help="write here, when all is done (default: standard output)"
    )
    parser.add_argument(
        "--probabilities", action="store_true", help="write how probable each tag is, too"
    )
    parser.add_argument(
        "--window",
        type=int,
        metavar="N",
        default=1 if is_terminal() else 1024,
        help="read so many sentences before the first comes out; 1: answer each at once "
        "(default: 1 at a terminal, else 1024)",
    )
    add_methods(parser)
    options = parser.parse_args(arguments)
    if options.window < 1:
        parser.error(f"argument --window: expected at least 1, got {options.window}")
    return options


def _check_readable(files: Sequence[str]) -> None:
    """Before a model is loaded and half of the output written."""
    for file in files:
        if file == _STDIN:
            standard_input()  # an error, if the caller has closed it (`<&-`)
            continue
        if not os.path.exists(file):
            raise UserError(f"{file}: there is no such file")
        if os.path.isdir(file) or not os.access(file, os.R_OK):
            raise UserError(f"{file}: cannot be read; expected a file")


def _tag_files(
    tagger: Tagger, files: Sequence[str], options: argparse.Namespace, stream: BinaryIO
) -> Iterator[None]:
    """Write the sentences of all files, one at each step."""
    from ..data import read

    layout: str | None = None
    last = ""
    for file in files:
        source, name = (standard_input(), "<stdin>") if file == _STDIN else (file, file)
        begins = True
        for tagged in tagger.stream(
            read(source, options.input_format, name),
            options.probabilities,
            options.decoder,
            options.repair,
            options.window,
        ):
            found = tagged.sentence.format.name
            layout = layout or found
            if begins and options.format is None:
                _check_layout(tagged.sentence, layout, files[0])
            for line in _render(tagged, options.format):
                if begins and last:
                    if options.format in (None, found):  # else a BOM is a word
                        line = line.removeprefix(_BOM)
                    line = _gap(last, options.format or layout) + line
                begins = False
                stream.write(line.encode())
                last = line
            del tagged  # a long one would stay in memory while the next one is read
            yield


def _render(tagged: Tagged, format: str | None) -> Iterator[str]:
    from ..data import DataError

    try:
        yield from tagged.render_lines(format)
    except DataError:
        raise  # it names the line
    except ValueError as error:  # a word that this format cannot hold
        sentence = tagged.sentence
        raise UserError(f"{sentence.path}:{sentence.first_line}: {error}") from error


def _check_layout(sentence: Sentence, expected: str, first: str) -> None:
    found = sentence.format.name
    if found != expected:
        raise UserError(
            f"{sentence.path} is {found}, but {first} is {expected}: choose the format of the "
            f"output (--format {', '.join(OUTPUT_FORMATS)})"
        )


def _gap(last: str, layout: str) -> str:
    """What must stand between the last sentence of a file and the first of the next, lest they run
    together: a file may lack the end of its last line, and the empty line after it."""
    gap = "" if last.endswith("\n") else "\n"
    *_, line = last.removesuffix("\n").split("\n")  # other ends of lines occur in words
    if layout != "jsonl" and line.strip(" \t\r"):
        gap += "\n"
    return gap
