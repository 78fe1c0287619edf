"""Load tampered model folders. Each must load, or be refused by a one-line error with a file name.

Loading runs in a forked process with limits on time and memory. Most tampered folders have correct
checksums, because an attacker would update them.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from bcrf.tagger import ModelError, Tagger
from tests.tagger_cases import config, trained
from tests.tagger_cases import run as train
from tests.tampering import change_description, reseal

from .outcome import PartOutcome
from .processes import Child, limit_memory

__all__ = ["run"]

_FULL, _SAMPLE = 2000, 200

# A tiny model loads in 0.1 s and needs 50 MB. The limits leave room for a busy machine.
_SECONDS = 20.0
_MEMORY = 1 << 30

# Replacements for values in JSON files.
_VALUES: list[Any] = [
    None, True, False, 0, -1, 1, 2, 1.5, -0.0, 10**9, 10**18, -(10**9), 10**400, 1e308,
    float("nan"), float("inf"), "", "x", "\ud800", "../x", "/dev/zero", "a" * 10_000, [], {}, [[]],
    [1, 2], {"a": 1}, ["x"] * 10_000, list(range(10_000)), {"auto_map": {"AutoConfig": "x.Y"}},
    "bregman-1000000000", "mean_field-1000000000", "bregman-0", "viterbi", "O", "BIOES",
]  # fmt: skip

# Exit codes of a process that loads a model. All others are failures.
_LOADED, _REFUSED = 0, 3
_ENDS = {_LOADED: "loaded and used", _REFUSED: "refused in one line"}

_DEEP = "[" * 50_000 + "]" * 50_000


def run(sample: bool) -> PartOutcome:
    """Load tampered model folders, and count how loading ends."""
    outcome = PartOutcome()
    torch.set_num_threads(1)  # a forked process has only one thread
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        originals = [_plain_model(root / "plain"), _encoder_model(root / "encoder")]
        for original in originals:
            Tagger.load(original).tag([["the", "cat"]])  # imports the modules that the forks need
        for seed in range(_SAMPLE if sample else _FULL):
            _try(seed, originals[seed % 2], root / "tampered", outcome)
    return outcome


def _try(seed: int, original: Path, folder: Path, outcome: PartOutcome) -> None:
    shutil.copytree(original, folder)
    choice = random.Random(seed)
    changes = [choice.choice(_CHANGES) for _ in range(choice.choice([1, 1, 1, 2, 3]))]
    changes.sort(
        key=_CHANGES.index
    )  # JSON values change first, while the files are still valid JSON
    names = ", ".join(change.__name__.strip("_") for change in changes)
    for change in changes:
        change(choice, folder)
    code, text = Child(lambda: _load(folder)).wait(_SECONDS)
    shutil.rmtree(folder)
    outcome.count("tampered folders")
    if code in _ENDS:
        outcome.count(_ENDS[code])
    else:
        outcome.fail(
            f"seed {seed} ({original.parent.name}; {names}): exit code {code}, {text:.300}"
        )


def _load(folder: Path) -> int:
    """Load the model and tag with it; return an exit code of `_ENDS`. Other errors are raised."""
    limit_memory(_MEMORY)
    try:
        Tagger.load(folder).tag([["the", "cat", "saw"], []])
    except ModelError as error:
        line = str(error)
        if "\n" in line or not line.startswith((str(folder), "<input>:")):
            raise AssertionError(
                f"expected an error of one line that names a file, got {line!r}"
            ) from error
        return _REFUSED
    return _LOADED


# Models to tamper with


def _plain_model(folder: Path) -> Path:
    folder.mkdir()
    trained(folder, "ner", training={"epochs": 1}).save(folder / "model")
    return folder / "model"


def _encoder_model(folder: Path) -> Path:
    from tests.tagger.test_nn_pretrained import bert, tokenizer

    bert().save_pretrained(folder / "source")
    tokenizer().save_pretrained(folder / "source")
    settings = config(folder, model={"pretrained": str(folder / "source")}, training={"epochs": 1})
    train(settings)
    Tagger.load(settings.output).save(folder / "model")
    return folder / "model"


# Functions that tamper; the arguments are a random number generator and the folder


def _change_a_value(choice: random.Random, folder: Path) -> None:
    change_description(folder, lambda values: _mutate(choice, values))


def _change_an_encoder_value(choice: random.Random, folder: Path) -> None:
    files = sorted((folder / "encoder").glob("*.json"))
    if not files:
        return _change_a_value(choice, folder)
    path = choice.choice(files)
    values = json.loads(path.read_text(encoding="utf-8"))
    _mutate(choice, values)
    path.write_text(json.dumps(values), encoding="utf-8")
    return _seal(folder)


def _mutate(choice: random.Random, values: Any) -> None:
    """Replace, delete or add a value somewhere in a JSON document."""
    while True:
        keys = list(values) if isinstance(values, dict) else list(range(len(values)))
        if not keys:
            return
        key = choice.choice(keys)
        if isinstance(values[key], dict | list) and values[key] and choice.random() < 0.7:
            values = values[key]
            continue
        action = choice.random()
        if action < 0.75:
            values[key] = choice.choice(_VALUES)
        elif action < 0.9:
            del values[key]
        elif isinstance(values, dict):
            values[choice.choice(["x", "../x", "auto_map", "layers"])] = choice.choice(_VALUES)
        return


def _change_weights(choice: random.Random, folder: Path) -> None:
    """Fill a tensor, or one entry of it, with an extreme number."""
    weights = safetensors.torch.load_file(folder / "model.safetensors")
    tensor = weights[choice.choice(sorted(weights))].flatten()  # a view: tensors are contiguous
    place = slice(None) if choice.random() < 0.5 else choice.randrange(len(tensor))
    tensor[place] = choice.choice([1e38, -1e38, 1e30, 1e20, 1e-45, float("nan"), float("-inf")])
    safetensors.torch.save_file(weights, folder / "model.safetensors")
    _seal(folder)


def _change_bytes(choice: random.Random, folder: Path) -> None:
    """Flip, cut or insert bytes in a file. Half of the time, update the checksums."""
    path = _some_file(choice, folder)
    content = bytearray(path.read_bytes())
    place = choice.randrange(len(content) + 1)
    action = choice.choice(["flip", "cut", "insert", "head"])
    if action == "flip" and place < len(content):
        content[place] ^= 1 << choice.randrange(8)
    elif action == "cut":
        del content[place:]
    elif action == "insert":
        content[place:place] = choice.choice([b"\0", b"\xff" * 9, b"{", b"[" * 5000, b"9" * 5000])
    else:  # a safetensors file begins with the length of its header
        content[: min(8, len(content))] = choice.randbytes(min(8, len(content)))
    path.write_bytes(content)
    if path.name != "model.json" and choice.random() < 0.5:
        _seal(folder)


def _change_the_header(choice: random.Random, folder: Path) -> None:
    """Change a value in the header of the weights file."""
    path = folder / "model.safetensors"
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    _mutate(choice, header)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + size :])
    _seal(folder)


def _replace_a_file(choice: random.Random, folder: Path) -> None:
    """Remove a file, or replace it by a link, a pipe, a folder, a sparse file or deep JSON."""
    path = _some_file(choice, folder)
    content = path.read_bytes()
    path.unlink()
    kind = choice.choice(["nothing", "device", "link", "pipe", "folder", "sparse", "deep"])
    if kind == "device":
        path.symlink_to(choice.choice(["/dev/zero", "/dev/random", "/dev/stdin", "/dev/null"]))
    elif kind == "link":
        path.symlink_to(choice.choice(["/etc/hostname", "..", path.name, "nowhere"]))
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "sparse":
        with path.open("wb") as stream:
            stream.write(content)
            stream.truncate(1 << choice.randrange(33, 43))
    elif kind == "deep":
        path.write_text(_DEEP)


def _add_a_file(choice: random.Random, folder: Path) -> None:
    """Add a file. Half of the time, add it to the checksums."""
    encoder = folder / "encoder"
    place = encoder if encoder.is_dir() and choice.random() < 0.7 else folder
    name = choice.choice(["x.py", "added_tokens.json", "vocab.txt", "x.bin", "x", "é.json"])
    (place / name).write_text(choice.choice(["", "{}", "import os", _DEEP, '{"a": 1}']))
    if choice.random() < 0.5:
        _seal(folder)


def _seal(folder: Path) -> None:
    """Write correct checksums, if `model.json` can still be read."""
    with suppress(ValueError):  # `model.json` is no longer valid JSON
        reseal(folder)


def _some_file(choice: random.Random, folder: Path) -> Path:
    files = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return choice.choice(sorted(path for path in files if path.stat().st_size < 1 << 26))


_CHANGES: list[Callable[[random.Random, Path], None]] = [
    _change_a_value,
    _change_a_value,
    _change_a_value,
    _change_an_encoder_value,
    _change_an_encoder_value,
    _change_an_encoder_value,
    _change_weights,
    _change_the_header,
    _add_a_file,
    _change_bytes,
    _change_bytes,
    _replace_a_file,
]
