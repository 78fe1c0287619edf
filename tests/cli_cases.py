"""Run the command `bcrf` as a process, and train small models for it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from bcrf.tagger.training import Config, train

COMMAND = [sys.executable, "-m", "bcrf"]
REPRODUCTION = [sys.executable, "-m", "reproduction"]


def environment(**changes: str) -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "error:::bcrf", **changes}


def bcrf(
    *arguments: str | Path, stdin: str | bytes = b"", code: int = 0, **changes: str
) -> subprocess.CompletedProcess[str]:
    """Run `bcrf`; check its exit code, and that it prints no traceback."""
    return _run(COMMAND, arguments, stdin, code, changes)


def reproduction(*arguments: str | Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Run `python -m reproduction` with the same checks."""
    return _run(REPRODUCTION, arguments, b"", code, {})


def _run(
    command: list[str],
    arguments: tuple[str | Path, ...],
    stdin: str | bytes,
    code: int,
    changes: dict[str, str],
) -> subprocess.CompletedProcess[str]:
    result = subprocess.run(
        [*command, *map(str, arguments)],
        input=stdin.encode() if isinstance(stdin, str) else stdin,
        capture_output=True,
        env=environment(**changes),
        timeout=120,
    )
    output, errors = result.stdout.decode(), result.stderr.decode()
    assert result.returncode == code, f"exit code {result.returncode}:\n{output}\n{errors}"
    assert "Traceback" not in errors, errors
    return subprocess.CompletedProcess(result.args, result.returncode, output, errors)


def at_terminal(*arguments: str | Path, stdout_too: bool) -> tuple[str, str]:
    """Run `bcrf` at a terminal of 80 columns.

    Returns the text on the terminal, and the standard output if it is a pipe.
    """
    import pty  # only on POSIX

    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        stdout=theirs if stdout_too else subprocess.PIPE,
        stderr=theirs,
        env=environment(TERM="xterm", COLUMNS="80"),
    )
    os.close(theirs)
    output = b"" if process.stdout is None else process.stdout.read()
    shown = b""
    while True:
        try:
            chunk = os.read(ours, 1 << 16)
        except OSError:  # Linux raises it when the other side is closed
            break
        if not chunk:
            break
        shown += chunk
    os.close(ours)
    if process.stdout is not None:
        process.stdout.close()
    assert process.wait(60) == 0, shown.decode()
    return shown.decode(), output.decode()


def conllu(*sentences: str) -> str:
    """Return CoNLL-U of sentences such as "the/DET cat/NOUN"."""
    blocks = []
    for sentence in sentences:
        rows = [item.rpartition("/") for item in sentence.split()]
        blocks.append(
            "".join(
                f"{i}\t{word}\t_\t{tag}\t_\t_\t0\troot\t_\t_\n"
                for i, (word, _, tag) in enumerate(rows, start=1)
            )
        )
    return "".join(f"{block}\n" for block in blocks)


WORDS = {
    "DET": ["the", "a", "every"],
    "NOUN": ["cat", "dog", "house", "tree"],
    "VERB": ["sees", "likes", "finds"],
}
SENTENCES = [
    f"{a}/DET {n}/NOUN {v}/VERB {b}/DET {m}/NOUN"
    for a, b in zip(WORDS["DET"], reversed(WORDS["DET"]), strict=True)
    for n, m in zip(WORDS["NOUN"], reversed(WORDS["NOUN"]), strict=True)
    for v in WORDS["VERB"]
]
SENTENCES += [f"{word}/{tag}" for tag, words in WORDS.items() for word in words]
"""All tags of these follow from the word alone, so that any model learns them."""

SMALL: dict[str, Any] = {
    "model": {"width": 16, "score_width": 8, "dropout": 0.0, "unknown_rate": 0.0},
    "optimizer": {"learning_rate": 0.02},
    "training": {"epochs": 4, "batch": 4},
}


def small_config(output: Path, train_file: Path, **parts: dict[str, Any]) -> dict[str, Any]:
    values = {"output": str(output), **SMALL, "data": {"train": str(train_file)}}
    return values | {name: values.get(name, {}) | part for name, part in parts.items()}


def small_model(folder: Path, text: str, suffix: str = ".conllu", **parts: dict[str, Any]) -> Path:
    """Train a model on `text`, and return its folder."""
    file = folder / f"train{suffix}"
    file.write_text(text, encoding="utf-8")
    for _ in train(Config.from_dict(small_config(folder / "run", file, **parts))):
        pass
    return folder / "run" / "best"
