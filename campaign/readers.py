"""Give mutated files to every reader. It must read them, or raise its own kind of error.

Each reader gets mutations of small valid files: flipped, deleted and inserted bytes, repeated
lines, swapped fields, spliced files, unusual characters, huge numbers, deep nesting. Each file must
pass these checks:

- The reader raises no exception other than DataError, UserError or FetchError.
- The blocks of the sentences, joined, equal the file byte for byte.
- Filling a sentence with its own tags gives the same bytes (CoNLL-U and columns), or the same words
  and tags (JSON lines).
- A sentence that is written as CoNLL-U, columns or JSON lines and read again has the same words.
- Reading takes less than a second.

A full run also fuzzes the readers with inputs chosen by coverage, if `atheris` is installed
(`pip install '.[fuzz]'`). `repeat(name, seed)` repeats one mutation.
"""

from __future__ import annotations

import importlib.util
import io
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bcrf.cli.errors import UserError, explain
from bcrf.cli.train import load_config
from bcrf.tagger import tasks
from bcrf.tagger.data import DataError, Sentence, Word, format_named, read_with_errors, surface
from bcrf.tagger.fetching import FetchError
from bcrf.tagger.fetching.cache import parse_checksums, read_checksums
from bcrf.tagger.fetching.download import find_partial_download
from bcrf.tagger.fetching.treebanks import load_cached_treebank

from .mutations import mutate
from .outcome import PartOutcome
from .reader_seeds import SEEDS, URL

__all__ = ["READERS", "failure_of", "repeat", "run"]

ROOT = Path(__file__).parent.parent

MUTATIONS, SAMPLE_MUTATIONS = 20_000, 125  # for each reader
GUIDED_RUNS = 10_000  # for each reader
SECONDS = 1.0
SHOWN_FAILURES = 10  # for each reader


def run(sample: bool) -> PartOutcome:
    """Read mutated inputs with every reader."""
    outcome = PartOutcome()
    for name in READERS:
        failures = 0
        for seed in range(SAMPLE_MUTATIONS if sample else MUTATIONS):
            outcome.count("mutated inputs")
            failure = repeat(name, seed)
            if failure is not None:
                failures += 1
                if failures <= SHOWN_FAILURES:
                    outcome.fail(f"{name}, seed {seed}: {failure}")
        if failures > SHOWN_FAILURES:
            outcome.fail(f"{name}: {failures - SHOWN_FAILURES} more failures")
    if not sample and importlib.util.find_spec("atheris") is not None:
        for name in READERS:
            _run_guided(name, outcome)
    return outcome


def repeat(name: str, seed: int) -> str | None:
    """Read one mutated input; return what went wrong, with the input, or None."""
    return failure_of(name, mutate(SEEDS[name], random.Random(f"{name} {seed}")))


def failure_of(name: str, data: bytes) -> str | None:
    """Read `data` with a reader; return what went wrong, or None."""
    start = time.process_time()
    try:
        READERS[name](data)
    except Exception as error:
        return f"{type(error).__name__}: {error!s:.200}; input {_shown(data)}"
    seconds = time.process_time() - start
    return f"took {seconds:.1f} s; input {_shown(data)}" if seconds > SECONDS else None


def _shown(data: bytes) -> str:
    return repr(data) if len(data) <= 600 else f"{data[:300]!r} ... {data[-300:]!r}"


def _run_guided(name: str, outcome: PartOutcome) -> None:
    """Fuzz a reader with atheris. It ends its process, so we run it in another process."""
    with tempfile.TemporaryDirectory() as folder:
        for number, data in enumerate(SEEDS[name]):
            Path(folder, f"seed-{number}").write_bytes(data)
        done = subprocess.run(
            [sys.executable, "-m", "campaign.guided", name, str(GUIDED_RUNS), folder],
            capture_output=True,
            text=True,
            errors="replace",
            cwd=ROOT,
        )
    found = re.search(
        r"^#(\d+)\s+DONE +cov: ", done.stderr, re.MULTILINE
    )  # libFuzzer omits this line if it measured no coverage
    if found is None:
        outcome.fail(f"{name}, guided: ended with code {done.returncode}: {done.stderr[-300:]!r}")
        return
    outcome.count("inputs chosen by coverage", int(found[1]))
    for line in done.stdout.splitlines():
        if line.startswith("failure: "):
            outcome.fail(f"{name}, guided: {line.removeprefix('failure: ')}")


# ---------------------------------------------------------------------------------- what is checked


def _read_sentences(format: str) -> Callable[[bytes], None]:
    def check(data: bytes) -> None:
        sentences: list[Sentence] = []
        whole = True
        try:
            for found in read_with_errors(io.BytesIO(data), format, "x"):
                if isinstance(found, DataError):
                    whole = False
                else:
                    sentences.append(found)
        except DataError:
            whole = False  # nothing can be read from there on
        if whole:
            blocks = "".join(line for s in sentences for line in s.block.lines)
            assert blocks.encode() == data, "the joined blocks differ from the file"
        for sentence in sentences:
            _check_filling(sentence)
            _check_composing(sentence)
            _allow(DataError, surface, sentence)
        for name in tasks.TASKS:
            task = _allow(DataError, tasks.fit, name, sentences)
            if task is not None:
                _allow(DataError, task.annotated, sentences)

    return check


def _allow(expected: type[Exception], function: Callable[..., Any], *arguments: Any) -> Any:
    """Return the result of a call; None if the call raises the expected error."""
    try:
        return function(*arguments)
    except expected as error:
        if expected is ValueError and isinstance(error, UnicodeError | DataError):
            raise
        return None


def _check_filling(sentence: Sentence) -> None:
    own = sentence.format
    for column in ("upos", "xpos", "ner"):
        tags = _allow(DataError, own.tags, sentence, column)
        if tags is None or not own.fills:
            continue
        filled = own.fill(sentence, tags, column)
        if own.name == "jsonl":
            again = _reread(filled, "jsonl")
            assert again.words == sentence.words, f"filling changed the words: {filled!r:.200}"
            if len(sentence):
                assert own.tags(again, column) == tags, f"filling changed the tags: {filled!r:.200}"
        else:
            assert filled == "".join(sentence.block.lines), (
                f"filling {column} changed the file: {filled!r:.200}"
            )


def _check_composing(sentence: Sentence) -> None:
    words = [Word(word, "O", 0.5, " ") for word in sentence.words]
    if not words:
        return
    for name in ("conllu", "columns", "jsonl"):
        text = _allow(ValueError, format_named(name).compose, words, "xpos", sentence.text)
        if text is None:
            continue
        if name == "columns" and not _fits_columns(sentence.words):
            continue
        again = _reread(text, name).words
        assert again == sentence.words, f"composing as {name} changed the words: {text!r:.200}"


def _fits_columns(words: Sequence[str]) -> bool:
    """Whether a column file can hold these words.

    It cannot if a word looks like a document mark or begins with a byte order mark.
    """
    marked = any(word.startswith("\ufeff") and len(word) > 1 for word in words)
    return not marked and words[0] != "-DOCSTART-"


def _reread(text: str, format: str) -> Sentence:
    (sentence,) = read_with_errors(io.BytesIO(text.encode()), format, "written")
    if isinstance(sentence, DataError):
        raise AssertionError(f"the written sentence is malformed: {sentence}; {text!r:.200}")
    return sentence


def _read_settings(suffix: str) -> Callable[[bytes], None]:
    def check(data: bytes) -> None:
        path = _SCRATCH / f"config.{suffix}"
        path.write_bytes(data)
        try:
            load_config(str(path), {})
        except (UserError, OSError) as error:  # OSError: too long
            message = explain(error) or ""
            if not message.startswith(f"{path}: ") or "\n" in message:
                raise AssertionError(
                    f"expected an error of one line that names the file, got {message!r}"
                ) from error

    return check


def _read_checksums(data: bytes) -> None:
    _allow(FetchError, parse_checksums, data.decode("utf-8", "replace"), "x")
    (_SCRATCH / "SHA256SUMS").write_bytes(data)
    _allow(FetchError, read_checksums, _SCRATCH)


def _read_note(data: bytes) -> None:
    """Read the note that an interrupted download leaves next to its data."""
    note, part = _SCRATCH / "x.part.json", _SCRATCH / "x.part"
    note.write_bytes(data)
    part.write_bytes(b"1\t")
    size, validator = find_partial_download(URL, part, note)
    assert size in (0, 2)
    assert isinstance(validator, str)
    assert "\n" not in validator, (
        "the validator contains a line end, which would start another header"
    )


def _read_origin(data: bytes) -> None:
    """Read the file that names the source of a treebank."""
    folder = _SCRATCH / "xx_toy"
    folder.mkdir(exist_ok=True)
    (folder / "SOURCE").write_bytes(data)
    _allow(FetchError, load_cached_treebank, "xx_toy", folder)


# This folder exists until the process ends. It is in memory if the system has /dev/shm.
_FOLDER = tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
_SCRATCH = Path(_FOLDER.name)

_SENTENCES = ("conllu", "columns", "conll2003", "uner", "jsonl", "text", "auto")

READERS: dict[str, Callable[[bytes], None]] = {
    **{name: _read_sentences(name) for name in _SENTENCES},
    **{name: _read_settings(name) for name in ("toml", "yaml", "json")},
    "checksums": _read_checksums,
    "download note": _read_note,
    "treebank note": _read_origin,
}
"""Name of a reader -> function that reads its argument and raises if a check fails."""
