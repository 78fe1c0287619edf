"""Mutated inputs: every reader either reads them or says in its own kind of error why not.

Each reader gets mutations of small valid files: flipped, deleted and inserted bytes, repeated
lines, swapped fields, spliced files, odd characters, huge numbers, deep nesting. For each of them

- nothing but DataError, UserError or FetchError is raised;
- the blocks of the sentences that are read make up the file, byte for byte;
- writing a sentence's own tags into it gives its own bytes (CoNLL-U and columns), or the same words
  and tags (JSON lines);
- a sentence that is written anew in CoNLL-U, columns or JSON lines has the same words when it is
  read again;
- it takes less than a second.

The long version adds executions guided by the coverage of the readers, where `atheris` is installed
(`pip install 'bcrf[fuzz]'`). `repeat(name, seed)` runs one mutation again.
"""

from __future__ import annotations

import importlib.util
import io
import json
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

from bcrf import tasks
from bcrf.cli.errors import UserError, explain
from bcrf.cli.train import _config
from bcrf.data import DataError, Sentence, Word, format_named, read_with_errors, surface
from bcrf.fetching import FetchError
from bcrf.fetching.checksums import parse_sums, read_sums
from bcrf.fetching.download import _left_over
from bcrf.fetching.universal import _present

from .tally import Tally

__all__ = ["READERS", "failure_of", "repeat", "run", "seeds_of"]

ROOT = Path(__file__).parent.parent
SAMPLES = ROOT / "src" / "bcrf" / "samples"

MUTATIONS, SAMPLE_MUTATIONS = 20_000, 125  # of each reader
GUIDED_RUNS = 10_000  # of each reader
SECONDS = 1.0
SHOWN_FAILURES = 10  # of each reader


def run(sample: bool) -> Tally:
    """Read mutated inputs with every reader."""
    tally = Tally()
    for name in READERS:
        failures = 0
        for seed in range(SAMPLE_MUTATIONS if sample else MUTATIONS):
            tally.count("mutated inputs")
            failure = repeat(name, seed)
            if failure is not None:
                failures += 1
                if failures <= SHOWN_FAILURES:
                    tally.fail(f"{name}, seed {seed}: {failure}")
        if failures > SHOWN_FAILURES:
            tally.fail(f"{name}: {failures - SHOWN_FAILURES} more")
    if not sample and importlib.util.find_spec("atheris") is not None:
        for name in READERS:
            _run_guided(name, tally)
    return tally


def repeat(name: str, seed: int) -> str | None:
    """Read one mutated input; what went wrong with it, with its bytes."""
    return failure_of(name, mutate(seeds_of(name), random.Random(f"{name} {seed}")))


def failure_of(name: str, data: bytes) -> str | None:
    """Let a reader read `data`; what went wrong, None if nothing did."""
    start = time.process_time()
    try:
        READERS[name](data)
    except Exception as error:
        return f"{type(error).__name__}: {error!s:.200}; input {_shown(data)}"
    seconds = time.process_time() - start
    return f"took {seconds:.1f} s; input {_shown(data)}" if seconds > SECONDS else None


def _shown(data: bytes) -> str:
    return repr(data) if len(data) <= 600 else f"{data[:300]!r} ... {data[-300:]!r}"


def _run_guided(name: str, tally: Tally) -> None:
    """Let atheris choose inputs, in a process of its own because it ends the one that it is in."""
    with tempfile.TemporaryDirectory() as folder:
        for number, data in enumerate(seeds_of(name)):
            Path(folder, f"seed-{number}").write_bytes(data)
        done = subprocess.run(
            [sys.executable, "-m", "campaign.guided", name, str(GUIDED_RUNS), folder],
            capture_output=True,
            text=True,
            errors="replace",
            cwd=ROOT,
        )
    found = re.search(r"^#(\d+)\s+DONE +cov: ", done.stderr, re.MULTILINE)  # not without coverage
    if found is None:
        tally.fail(f"{name}, guided: ended with code {done.returncode}: {done.stderr[-300:]!r}")
        return
    tally.count("inputs chosen by coverage", int(found[1]))
    for line in done.stdout.splitlines():
        if line.startswith("failure: "):
            tally.fail(f"{name}, guided: {line.removeprefix('failure: ')}")


# --------------------------------------------------------------------------------------- mutations

_ODD = [
    b"\xef\xbb\xbf",
    b"\0",
    b"\r",
    b"\r\n",
    b"\n\n",
    b"\t",
    b" ",
    "\u2028".encode(),
    "\x85".encode(),
    "\xa0".encode(),
    "\U0001f600".encode(),
    b"\xff\xfe",
    b"\xed\xa0\x80",
    rb"\ud800",
    b"-DOCSTART-",
    b"#",
    b"# text = ",
    b"NER=",
    b"SpaceAfter=No",
    b"SpacesAfter=\\s\\n",
    b"1-2",
    b"1.1",
    b"0",
    b"-1",
    b"9" * 5000,
    b"1e999",
    b"NaN",
    b"null",
    b"true",
    b"[]",
    b"{}",
    b'"',
    b"'",
    b"&a",
    b"*a",
    b"<<: ",
    b"!!python/name:os.system ",
    b"[" * 2000,
    b'{"a":' * 2000,
    b"- " * 2000,
    b"a." * 2000,
    b"../",
    b"B-",
    b"I-PER",
    b"A|B",
    b"?",
    b"_",
]


def mutate(seeds: list[bytes], chance: random.Random) -> bytes:
    """One of the seeds after some random changes."""
    data = chance.choice(seeds)
    for _ in range(chance.randint(1, 4)):
        data = chance.choice(_CHANGES)(data, seeds, chance)
    return data[:100_000]


def _flip(data: bytes, seeds: list[bytes], chance: random.Random) -> bytes:
    at = chance.randrange(len(data) + 1)
    return data[:at] + bytes([chance.randrange(256)]) + data[at + 1 :]


def _delete(data: bytes, seeds: list[bytes], chance: random.Random) -> bytes:
    at = chance.randrange(len(data) + 1)
    return data[:at] + data[at + chance.choice([1, 2, 5, 50]) :]


def _insert(data: bytes, seeds: list[bytes], chance: random.Random) -> bytes:
    at = chance.choice([0, len(data), chance.randrange(len(data) + 1)])
    return data[:at] + chance.choice(_ODD) + data[at:]


def _truncate(data: bytes, seeds: list[bytes], chance: random.Random) -> bytes:
    return data[: chance.randrange(len(data) + 1)]


def _splice(data: bytes, seeds: list[bytes], chance: random.Random) -> bytes:
    other = chance.choice(seeds)
    return data[: chance.randrange(len(data) + 1)] + other[chance.randrange(len(other) + 1) :]


def _change_lines(data: bytes, seeds: list[bytes], chance: random.Random) -> bytes:
    lines = data.splitlines(keepends=True)
    if lines:
        at, to = chance.randrange(len(lines)), chance.randrange(len(lines))
        change = chance.randrange(4)
        if change == 0:
            lines.insert(to, lines[at] * chance.choice([1, 2, 30]))
        elif change == 1:
            del lines[at]
        elif change == 2:
            lines[at], lines[to] = lines[to], lines[at]
        else:
            lines[at] = lines[at].rstrip(b"\r\n")
    return b"".join(lines)


def _change_fields(data: bytes, seeds: list[bytes], chance: random.Random) -> bytes:
    """Swap, remove, repeat or replace what stands between separators."""
    fields = re.split(rb"([\t \n|=,:])", data)
    at, to = (2 * chance.randrange(len(fields) // 2 + 1) for _ in range(2))
    change = chance.randrange(4)
    if change == 0:
        fields[at], fields[to] = fields[to], fields[at]
    elif change == 1:
        fields[at] = b""
    elif change == 2:
        fields[at] += chance.choice([b"\t", b" "]) + fields[to]
    else:
        fields[at] = chance.choice(_ODD)
    return b"".join(fields)


_CHANGES = [_flip, _delete, _insert, _truncate, _splice, _change_lines, _change_fields]


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
            assert blocks.encode() == data, "the blocks are not the file"
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
    """The result of a call; None if it raises the error that it may raise."""
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
            assert again.words == sentence.words, f"other words after filling: {filled!r:.200}"
            if len(sentence):
                assert own.tags(again, column) == tags, f"other tags: {filled!r:.200}"
        else:
            assert filled == "".join(sentence.block.lines), f"{column} changed: {filled!r:.200}"


def _check_composing(sentence: Sentence) -> None:
    words = [Word(word, "O", 0.5, " ") for word in sentence.words]
    if not words:
        return
    for name in ("conllu", "columns", "jsonl"):
        text = _allow(ValueError, format_named(name).compose, words, "xpos", sentence.text)
        if text is None:
            continue
        if name == "columns" and not _is_told_by_columns(sentence.words):
            continue
        again = _reread(text, name).words
        assert again == sentence.words, f"other words when composed as {name}: {text!r:.200}"


def _is_told_by_columns(words: Sequence[str]) -> bool:
    """Whether a column file tells words from the start of a document and from byte order marks."""
    marked = any(word.startswith("\ufeff") and len(word) > 1 for word in words)
    return not marked and words[0] != "-DOCSTART-"


def _reread(text: str, format: str) -> Sentence:
    (sentence,) = read_with_errors(io.BytesIO(text.encode()), format, "written")
    if isinstance(sentence, DataError):
        raise AssertionError(f"what was written is malformed: {sentence}; {text!r:.200}")
    return sentence


def _read_settings(suffix: str) -> Callable[[bytes], None]:
    def check(data: bytes) -> None:
        path = _SCRATCH / f"config.{suffix}"
        path.write_bytes(data)
        try:
            _config(str(path), {})
        except (UserError, OSError) as error:  # OSError: too long
            message = explain(error) or ""
            if not message.startswith(f"{path}: ") or "\n" in message:
                raise AssertionError(f"not one line with the file: {message!r}") from error

    return check


def _read_checksums(data: bytes) -> None:
    _allow(FetchError, parse_sums, data.decode("utf-8", "replace"), "x")
    (_SCRATCH / "SHA256SUMS").write_bytes(data)
    _allow(FetchError, read_sums, _SCRATCH)


def _read_note(data: bytes) -> None:
    """What a download leaves beside its beginning."""
    note, part = _SCRATCH / "x.part.json", _SCRATCH / "x.part"
    note.write_bytes(data)
    part.write_bytes(b"1\t")
    size, validator = _left_over(_URL, part, note)
    assert size in (0, 2)
    assert isinstance(validator, str)
    assert "\n" not in validator, "a validator that makes another header"


def _read_origin(data: bytes) -> None:
    """What says where a treebank came from."""
    folder = _SCRATCH / "xx_toy"
    folder.mkdir(exist_ok=True)
    (folder / "SOURCE").write_bytes(data)
    _allow(FetchError, _present, "xx_toy", folder)


# Kept until the process ends; memory where there is such a file system.
_FOLDER = tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
_SCRATCH = Path(_FOLDER.name)
_URL = "http://host/x"

_SENTENCES = ("conllu", "columns", "conll2003", "uner", "jsonl", "text", "auto")

READERS: dict[str, Callable[[bytes], None]] = {
    **{name: _read_sentences(name) for name in _SENTENCES},
    **{name: _read_settings(name) for name in ("toml", "yaml", "json")},
    "checksums": _read_checksums,
    "download note": _read_note,
    "treebank note": _read_origin,
}
"""Each reads its argument, and raises whatever is wrong with how it did so."""


# -------------------------------------------------------------------------------- what is mutated

_CONLL2003 = """-DOCSTART- -X- -X- O

EU NNP B-NP B-ORG
rejects VBZ B-VP O
German JJ B-NP B-MISC

Peter NNP B-NP B-PER
Blackburn NNP I-NP I-PER
"""
_UNER = """# newdoc id = x
# text = 我們
1\t我\tO\t-\t-
2\t們\tB-PER\tA\t-

# text = du pain
1-2\tdu\t_\t_\t_
1\tde\tO\t-\t-
1.1\te\t_\t_\t_
2\tle\tO\t-\t-
3\tpain\tB-LOC\t-\t-
"""
_MULTIWORD = """# sent_id = 1
# text = Du pain, là.
1-2\tDu\t_\t_\t_\t_\t_\t_\t_\tSpaceAfter=No
1\tDe\tde\tADP\tP\tX=Y\t3\tcase\t_\t_
2\tle\tle\tDET\tD\t_\t3\tdet\t_\t_
3\tpain\tpain\tNOUN\tN\t_\t0\troot\t_\tSpaceAfter=No|NER=B-FOOD
4\t,\t,\tPUNCT\t,\t_\t3\tpunct\t_\t_
4.1\tx\tx\tX\t_\t_\t_\t_\t3:dep\t_
5\tlà\tlà\tADV\tA\t_\t3\tadvmod\t_\tSpaceAfter=No|SpacesAfter=\\s\\n
6\t.\t.\tPUNCT\t.\t_\t3\tpunct\t_\t_

"""
_JSONL = """{"id": 7, "words": ["a b", "c"], "tags": ["X", ["Y", "Z"]]}

{"words": [], "tags": []}
{"words": ["d"], "tags": [null], "x": {"y": [1, 2.5, "é"]}}\r
{"text": "un  mot"}
{"text": "deux\\r\\nlignes\\n"}
{"text": "du pain", "words": ["de", "le", "pain"], "tags": ["A", "B", "C"], "starts": [0, 0, 3]}
"""
_SETTINGS: dict[str, Any] = {
    "output": "runs/x",
    "data": {"train": "train.conllu", "dev": None, "task": "ner", "strict": True, "min_count": 1},
    "model": {"objective": "bregman", "layers": 2, "dropout": 0.3},
    "optimizer": {"learning_rate": 3e-4, "schedule": "linear", "lazy": False},
    "training": {"epochs": 12, "batch": 32, "patience": None},
    "decoding": {"decoder": "bregman-10", "repair": "mbr"},
}
_TOML = "\n".join(
    [
        'output = "runs/x"',
        *(
            line
            for part, values in _SETTINGS.items()
            if isinstance(values, dict)
            for line in (
                f"[{part}]",
                *(f"{k} = {json.dumps(v)}" for k, v in values.items() if v is not None),
            )
        ),
    ]
)
_YAML = "\n".join(
    [
        "output: runs/x  # comment",
        *(
            line
            for part, values in _SETTINGS.items()
            if isinstance(values, dict)
            for line in (f"{part}:", *(f"  {k}: {json.dumps(v)}" for k, v in values.items()))
        ),
    ]
)
_SUMS = f"{'0a' * 32}  xx_toy-ud-train.conllu\n{'F' * 64} *./xx_toy-ud-dev.conllu\r\n\n"


def _pieces(name: str) -> list[bytes]:
    """Some short pieces of a sample corpus, cut at empty lines."""
    blocks = (SAMPLES / name).read_bytes().split(b"\n\n")
    return [b"\n\n".join(blocks[at : at + 3]) + b"\n\n" for at in range(0, 30, 10)]


def seeds_of(name: str) -> list[bytes]:
    """Valid files of a reader."""
    return _SEEDS[name]


_TREES = [
    _MULTIWORD.encode(),
    b"\xef\xbb\xbf" + _MULTIWORD.replace("\n", "\r\n").encode(),
    *_pieces("english-dev.conllu"),
    *_pieces("chinese-dev.conllu"),
]
_COLUMNS = [
    "#bcrf\tO\nnew york\tB-LOC\n\t\na\xa0b\tO\n \t\n\n".encode(),
    b"Ann  B-PER \nsees O\n\nBob B-PER\n",
    b"an\napple\n\n-DOCSTART-\n\nx\n",
    b"a B-PER|O\nb ?\n\n",
    *_pieces("english-ner-dev.conll"),
]
_TEXTS = ["\ufeffA  b.\n\n c\u3000d \r\nx\u2028y".encode(), b"Ada visited Turin again .\n" * 3]
_SEEDS: dict[str, list[bytes]] = {
    "conllu": _TREES,
    "columns": [*_COLUMNS, _CONLL2003.encode()],
    "conll2003": [_CONLL2003.encode(), b"\xef\xbb\xbf" + _CONLL2003.replace(" ", "\t").encode()],
    "uner": [_UNER.encode(), _UNER.replace("\n", "\r\n").encode()],
    "jsonl": [_JSONL.encode(), b"\xef\xbb\xbf" + _JSONL.encode()],
    "text": _TEXTS,
    "auto": [*_TREES[:3], *_COLUMNS, _CONLL2003.encode(), _UNER.encode(), _JSONL.encode(), *_TEXTS],
    "toml": [_TOML.encode(), (ROOT / "configs" / "ner.toml").read_bytes()],
    "yaml": [_YAML.encode(), json.dumps(_SETTINGS).encode()],
    "json": [json.dumps(_SETTINGS).encode(), json.dumps(_SETTINGS, indent=1).encode()],
    "checksums": [_SUMS.encode(), _SUMS.encode() * 5],
    "download note": [
        json.dumps({"url": _URL, "validator": validator}).encode()
        for validator in ('"abc"', "Wed, 21 Oct 2015 07:28:00 GMT", None)
    ],
    "treebank note": [b"http://host/x\n", "/data/tr\u00e9sor\n".encode()],
}
