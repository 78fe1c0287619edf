"""`bcrf tag`: tag sentences."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from .arguments import (
    OUTPUT_FORMATS,
    add_cluster_options,
    add_input_format,
    add_prediction_options,
    command_parser,
    one_of,
    probability,
    use_threads,
    whole_number,
)
from .errors import UserError
from .streams import is_terminal, standard_input
from .terminal import progress_bar

if TYPE_CHECKING:
    from ..tagger import Tagged, Tagger
    from ..tagger.data import Sentence

__all__ = ["run"]

_STDIN = "-"
_BOM = "\ufeff"
_WHITESPACE = "whitespace"

# Not after a single letter or a digit: "J." and "3." may be words.
_WITH_PUNCTUATION = re.compile(r"[^\W\d_]{2}[.,;:!?]$")

_EPILOG = """\
The output has the sentences of the input, in the same order. In CoNLL-U, columns and JSON lines
only the tags change. The output of raw text is CoNLL-U by default. The tokenizer of the model, or
that of --tokenizer, divides raw text into sentences and words. If there is none, raw text must have
one sentence per line, with spaces between words and punctuation marks ("again ."). A MODEL of the
task tokenization writes the sentences and words without tags. Without MODEL, the English model that
comes with the package tags standard input; `bcrf models` lists all such models.

  echo "Ada visited Turin again. She didn't stay." | bcrf tag
  bcrf tag en input.txt --format jsonl
  bcrf tag runs/en_ewt input.conllu > output.conllu
  echo "Ada visited Turin again ." | bcrf tag runs/en_ewt --format jsonl --probabilities
  bcrf tag runs/en_ewt input.conllu --threshold 0.9
  bcrf tag runs/en_ewt --engine ray 'corpus/*.jsonl' --output tagged
"""


def run(arguments: list[str]) -> int:
    """Tag the sentences of the files that the arguments name; return the exit code."""
    options = _parse(arguments)
    options.model = str(_model(options.model))
    if options.engine == "ray":
        from .tag_shards import run_shards

        return run_shards(options)
    _check_no_cluster_options(options)
    if options.window is None:
        options.window = 1 if is_terminal() else 1024
    files = options.files or [_STDIN]
    use_threads(options.threads)

    from ..tagger import Tagger, Tokenizer
    from ..tagger.files import atomic_write_bytes
    from ..tagger.tasks import Tokenization

    to_file = options.output is not None
    # Sentences that are printed to the same terminal would mix with the progress bar.
    with progress_bar(to_file or not sys.stdout.isatty()) as update:
        update("loading the model", 0, None)
        tagger = Tagger.load(options.model, options.device)
        if options.tokenizer == _WHITESPACE:
            tagger.tokenizer = None
        elif options.tokenizer is not None:
            tagger.tokenizer = Tokenizer.load(options.tokenizer, options.device)
        if isinstance(tagger.task, Tokenization):
            _check_tokenizer_options(options)
        _check_readable(files)
        output: AbstractContextManager[BinaryIO] = (
            atomic_write_bytes(options.output) if to_file else nullcontext(sys.stdout.buffer)
        )
        with output as stream:
            for count, _ in enumerate(_tag_files(tagger, files, options, stream), start=1):
                if options.window == 1:
                    stream.flush()
                update("tagged sentences", count, None)
    return 0


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = command_parser(
        "bcrf tag", "Tag sentences.", _EPILOG, usage="bcrf tag [MODEL [FILE ...]] [OPTIONS]"
    )
    parser.add_argument(
        "model",
        nargs="?",
        metavar="MODEL",
        help="folder of a model or of a training run, or the name of a bundled model (default: the "
        "bundled English model)",
    )
    parser.add_argument(
        "files", nargs="*", metavar="FILE", help="sentences (default: -, standard input)"
    )
    add_input_format(parser, "--input-format", "all files")
    parser.add_argument(
        "--format",
        metavar="NAME",
        type=one_of(*OUTPUT_FORMATS),
        help=f"format of the output: {', '.join(OUTPUT_FORMATS)} "
        "(default: the format of the input)",
    )
    parser.add_argument(
        "--output",
        metavar="FILE",
        help="write to this file; it appears only after all sentences are tagged "
        "(default: standard output)",
    )
    parser.add_argument(
        "--probabilities", action="store_true", help="also write the probability of each tag"
    )
    parser.add_argument(
        "--threshold",
        type=probability,
        metavar="P",
        help="leave out tags whose probability is below P: a word then has the tag _, and a "
        "mention becomes O; implies --probabilities (default: give all tags)",
    )
    parser.add_argument(
        "--window",
        type=whole_number(least=1),
        metavar="N",
        help="read N sentences before the first one is written; 1 answers each sentence at once "
        "(default: 1 at a terminal, else 1024)",
    )
    parser.add_argument(
        "--tokenizer",
        metavar="FOLDER",
        help=f"how to divide raw text: the folder of a model of the task tokenization, or of a "
        f"model that has a tokenizer, such as the bundled model en; or {_WHITESPACE}: one sentence "
        f"per line, with white space between words (default: the tokenizer of the model, or "
        f"{_WHITESPACE} if it has none)",
    )
    parser.add_argument(
        "--split-lines",
        action="store_true",
        help="with a tokenizer: a line end always ends a sentence (default: an empty line does; at "
        "another line end, the model decides)",
    )
    add_prediction_options(parser)
    add_cluster_options(parser)
    return parser.parse_args(arguments)


def _model(name: str | None) -> str | Path:
    """Return the model to load; by default the bundled one, whatever the current folder holds."""
    from ..tagger.model_folder.bundled import BUNDLED_FOLDER, DEFAULT_MODEL

    if name is None:
        return BUNDLED_FOLDER / DEFAULT_MODEL
    if os.path.isfile(name):
        raise UserError(
            f"{name}: the first argument is the model, but this is a file; `bcrf tag "
            f"{DEFAULT_MODEL} {name}` tags it with the bundled English model"
        )
    return name


def _check_no_cluster_options(options: argparse.Namespace) -> None:
    """Raise for options that only an engine for clusters has."""
    for name, value in (("--workers", options.workers), ("--ray-address", options.ray_address)):
        if value is not None:
            raise UserError(f"{name} needs --engine ray")


def _check_tokenizer_options(options: argparse.Namespace) -> None:
    """Raise for options that make no sense if the model is itself a tokenizer."""
    if options.tokenizer is not None:
        raise UserError(f"{options.model} is itself a tokenizer; leave out --tokenizer")
    if options.probabilities or options.threshold is not None:
        raise UserError(f"{options.model} is a tokenizer, which gives no tags with probabilities")
    if options.input_format not in ("auto", "text"):
        raise UserError(
            f"{options.model} is a tokenizer, which reads raw text; leave out --input-format"
        )


def _check_readable(files: Sequence[str]) -> None:
    """Raise if a file cannot be read.

    Called before any output is written, and after the model is loaded: if the model is missing as
    well, the message should name the first wrong argument.
    """
    for file in files:
        if file == _STDIN:
            standard_input()  # raises if the caller has closed it (`<&-`)
            continue
        if not os.path.exists(file):
            raise UserError(f"{file}: there is no such file")
        if os.path.isdir(file):
            raise UserError(f"{file}: is a folder; expected a file")
        if not os.access(file, os.R_OK):
            raise UserError(f"{file}: cannot be read; check its permissions")


def _tag_files(
    tagger: Tagger, files: Sequence[str], options: argparse.Namespace, stream: BinaryIO
) -> Iterator[None]:
    """Tag the sentences of all files and write them, one sentence per iteration."""
    layout: str | None = None
    last = ""
    for file in files:
        source, name = (standard_input(), "<stdin>") if file == _STDIN else (file, file)
        begins = True
        for tagged in _tag_source(tagger, source, name, options):
            found = tagged.sentence.format.name
            layout = layout or found
            if begins and options.format is None:
                _check_layout(tagged.sentence, layout, files[0])
            for line in _render(tagged, options.format):
                if begins and last:
                    if options.format in (None, found):  # in other formats a BOM is a word
                        line = line.removeprefix(_BOM)
                    line = _gap(last, options.format or layout) + line
                begins = False
                stream.write(line.encode())
                last = line
            del tagged  # so that a long sentence is freed before the next one is read
            yield


def _tag_source(
    tagger: Tagger, source: str | BinaryIO, name: str, options: argparse.Namespace
) -> Iterator[Tagged]:
    """Yield the tagged sentences of a file; at a terminal, those of a line before the next line."""
    from ..tagger import Tokenizer
    from ..tagger.data import read, read_lines
    from ..tagger.tasks import Tokenization

    lines = {"line_by_line": options.window == 1, "split_lines": options.split_lines}
    if isinstance(tagger.task, Tokenization):
        return Tokenizer(tagger).stream(read_lines(source, name), name, **lines)
    split = None
    if tagger.tokenizer is not None:
        split = partial(tagger.tokenizer.sentences, **lines)
    sentences = read(source, options.input_format, name, split)
    if split is None and options.tokenizer is None and not tagger.task.is_on_text:
        sentences = _warn_of_unsplit_words(sentences, options.model)
    return tagger.stream(
        sentences,
        options.probabilities or options.threshold is not None,
        options.decoder,
        options.repair,
        options.window,
        options.threshold,
    )


def _warn_of_unsplit_words(sentences: Iterable[Sentence], model: str) -> Iterator[Sentence]:
    """Yield the sentences; warn once if a word of raw text ends in a punctuation mark."""
    is_warned = False
    for sentence in sentences:
        if not is_warned and sentence.format.name == "text":
            word = next(filter(_WITH_PUNCTUATION.search, sentence.words), None)
            is_warned = word is not None
            if is_warned:
                print(
                    f"bcrf: warning: {sentence.path}:{sentence.first_line}: {word!r} is tagged as "
                    f"one word, because {model} has no tokenizer; name one with --tokenizer "
                    "FOLDER (for English: en), or put spaces around punctuation marks and pass "
                    f"--tokenizer {_WHITESPACE}",
                    file=sys.stderr,
                )
        yield sentence
        del sentence  # so that a long sentence is freed before the next one is read


def _render(tagged: Tagged, format: str | None) -> Iterator[str]:
    """Yield the lines of a sentence; errors name its file and line."""
    from ..tagger.data import DataError

    try:
        yield from tagged.render_lines(format)
    except DataError:
        raise  # the message already names the file and line
    except ValueError as error:  # a word that the format cannot represent
        sentence = tagged.sentence
        raise UserError(f"{sentence.path}:{sentence.first_line}: {error}") from error


def _check_layout(sentence: Sentence, expected: str, first: str) -> None:
    """Raise if the format of a file differs from that of the first file."""
    found = sentence.format.name
    if found != expected:
        raise UserError(
            f"{sentence.path} is {found}, but {first} is {expected}: choose the format of "
            f"the output with --format {' or '.join(OUTPUT_FORMATS)}"
        )


def _gap(last: str, layout: str) -> str:
    """Return the line ends to write between the last line of a file and the next file.

    The last line of a file may have no line end, and its last sentence no empty line after it.
    """
    gap = "" if last.endswith("\n") else "\n"
    # Not `splitlines`: words may contain other line ends, such as U+2028.
    *_, line = last.removesuffix("\n").split("\n")
    if layout != "jsonl" and line.strip(" \t\r"):
        gap += "\n"
    return gap
