"""Let several processes use one folder: two training runs; two savers and a reader of a model.

Exactly one of two training runs must get the folder. The other must end at once and name the
process that holds the folder. Saving must never fail, and the reader must always load
one complete model.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import time
from pathlib import Path
from typing import Any

import torch

from bcrf.cli import main
from bcrf.tagger import Tagger
from bcrf.tagger.files import JsonlLog, atomic_folder
from bcrf.tagger.training import loop
from tests.tagger_cases import config, trained, weights_equal

from .outcome import PartOutcome
from .processes import Child, folder_in_memory

__all__ = ["run"]

_EPOCHS = 25
_TIMEOUT_SECONDS = 60  # how long one training waits for the other


def run(sample: bool) -> PartOutcome:
    """Run the processes for two minutes, or for some seconds as a sample."""
    torch.set_num_threads(1)  # a process with threads must not be forked
    outcome = PartOutcome()
    with folder_in_memory("bcrf-writers-") as folder:
        for number in range(3 if sample else 30):
            _train_twice(folder / f"pair-{number}", number, outcome)
        models = (
            trained(folder / "one", training={"epochs": 1}),
            trained(folder / "two", "ner", training={"epochs": 1}),
        )
        for exchange in (True, False):
            path = folder / f"models-{exchange}" / "model"
            _save_and_load(path, models, 3 if sample else 45, exchange, outcome)
    return outcome


# -------------------------------------------------------------------------------- two trainings


def _train_twice(folder: Path, number: int, outcome: PartOutcome) -> None:
    settings = config(folder, training={"epochs": _EPOCHS})
    file = folder / "config.json"
    file.write_text(json.dumps(settings.to_dict()))
    option = ([], ["--resume"], ["--overwrite"])[number % 3]
    start = time.time() + 0.1

    def work(errors: Path, other: Path) -> int:
        time.sleep(max(0.0, start - time.time()))
        _wait_in_training(errors, other)
        with (
            errors.open("w") as stream,
            contextlib.redirect_stderr(stream),
            contextlib.redirect_stdout(io.StringIO()),
        ):
            code = main(["train", str(file), *option])
        _done(errors).touch()
        return code

    outputs = [folder / f"errors-{rank}" for rank in (0, 1)]
    children = [
        Child(lambda path=path, other=other: work(path, other))
        for path, other in zip(outputs, reversed(outputs), strict=True)
    ]
    codes = [child.wait()[0] for child in children]
    outcome.count("pairs of trainings")

    def fail(text: str) -> None:
        said = [path.read_text() for path in outputs]
        outcome.fail(f"two trainings {' '.join(option)}: {text}; exit codes {codes}, errors {said}")

    if sorted(codes) != [0, 1]:
        return fail("expected that exactly one training gets the folder")
    winner = children[codes.index(0)].process
    message = outputs[codes.index(1)].read_text()
    if f"is in use by another training (process {winner} on" not in message:
        return fail(f"expected an error that names process {winner}")
    output = Path(settings.output)
    names = sorted(path.name for path in output.iterdir())
    log = output / "metrics.jsonl"
    if not log.read_bytes().endswith(b"\n"):
        return fail("the last line of metrics.jsonl is incomplete")
    rows = JsonlLog(log).rows()
    epochs = [row["epoch"] for row in rows if row["event"] == "epoch"]
    if names != ["best", "last", "metrics.jsonl"] or epochs != list(range(1, _EPOCHS + 1)):
        return fail(f"found {names} with the epochs {epochs}")
    Tagger.load(output)
    Tagger.load(output / "last")


def _wait_in_training(errors: Path, other: Path) -> None:
    """Make the training of this process wait in its first epoch until the other one has tried.

    Without this, a busy machine may run one training after the other. A training that gets the
    folder waits until the other one has ended or is training, too; the latter is the defect that we
    look for.
    """
    train_epoch = loop._Run._train_epoch

    def waiting(run: loop._Run, epoch: int) -> Any:
        _inside(errors).touch()
        end = time.monotonic() + _TIMEOUT_SECONDS
        while not (_inside(other).exists() or _done(other).exists()):
            if time.monotonic() > end:
                raise TimeoutError(f"the other training did not begin within {_TIMEOUT_SECONDS} s")
            time.sleep(0.01)
        return train_epoch(run, epoch)

    loop._Run._train_epoch = waiting  # type: ignore[method-assign]


def _inside(errors: Path) -> Path:
    return errors.with_name(f"{errors.name}-inside")


def _done(errors: Path) -> Path:
    return errors.with_name(f"{errors.name}-done")


# ---------------------------------------------------------------------- two savers and a reader


def _save_and_load(
    path: Path, models: tuple[Tagger, Tagger], seconds: float, exchange: bool, outcome: PartOutcome
) -> None:
    if not exchange:
        atomic_folder._renameat2 = lambda: (
            None
        )  # simulates a system that cannot exchange folders in one step
    models[0].save(path)
    end = time.monotonic() + seconds

    def save(model: Tagger, count: Path) -> None:
        saves = 0
        while time.monotonic() < end:
            model.save(path)
            saves += 1
        count.write_text(str(saves))

    counts = [path.parent.parent / f"saves-{exchange}-{rank}" for rank in (0, 1)]
    children = [
        Child(lambda model=model, count=count: save(model, count))
        for model, count in zip(models, counts, strict=True)
    ]
    found = [0, 0]
    while time.monotonic() < end:
        try:
            loaded = Tagger.load(path)
        except Exception as error:
            outcome.fail(f"load: {type(error).__name__}: {error}")
            continue
        origin = [
            number
            for number, model in enumerate(models)
            if model.task == loaded.task and weights_equal(model, loaded)
        ]
        if origin:
            found[origin[0]] += 1
        else:
            outcome.fail("load: the loaded model is a mixture of two models")
    for child in children:
        code, text = child.wait()
        if code:
            outcome.fail(f"save: exit code {code}: {text}")
    outcome.count("saves", sum(int(count.read_text()) for count in counts if count.exists()))
    outcome.count("loads", sum(found))
    if min(found) == 0:
        outcome.fail(f"load: one of the two models was never loaded; loads of each: {found}")
    left = os.listdir(path.parent)
    if left != ["model"]:
        outcome.fail(f"files left over: {left}")
