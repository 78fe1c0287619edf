"""The folder of a run: locking, disk errors, numbers that are not finite, threads."""

from __future__ import annotations

import errno
import json
import math
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from bcrf.tagger import Tagger
from bcrf.tagger.training import Epoch, Finished, Step, train
from bcrf.tagger.training.optimization import Optimization
from tests.tagger_cases import config, epochs, run, trained, weights_equal

ROOT = Path(__file__).resolve().parents[2]


def names(folder: str | Path) -> list[str]:
    return sorted(entry.name for entry in Path(folder).iterdir())


# --------------------------------------------------------------------------------- one at a time


@pytest.mark.parametrize("options", [{}, {"resume": True}, {"overwrite": True}])
def test_a_second_training_is_refused_and_names_the_holder(tmp_path, options):
    settings = config(tmp_path)
    first = train(settings)
    next(first)
    Path(settings.data.train).rename(
        tmp_path / "elsewhere"
    )  # the lock is taken before the data are read
    message = rf"run is in use by another training \(process {os.getpid()} on .* since 20.* UTC\)"
    with pytest.raises(FileExistsError, match=message):
        run(settings, **options)
    assert isinstance(list(first)[-1], Finished)
    assert names(settings.output) == ["best", "last", "metrics.jsonl"]


def test_a_closed_training_releases_the_folder(tmp_path):
    settings = config(tmp_path)
    for event in train(settings):
        if isinstance(event, Epoch):
            break
    assert names(settings.output) == ["best", "last", "metrics.jsonl"]
    assert isinstance(run(settings, resume=True)[-1], Finished)


def test_a_training_that_cannot_begin_leaves_no_folder(tmp_path):
    settings = config(tmp_path)
    Path(settings.data.train).unlink()
    with pytest.raises(ValueError, match="cannot be read"):
        run(settings)
    assert not Path(settings.output).exists()


# ------------------------------------------------------------------------- numbers not finite


class ReplaceGradient(torch.autograd.Function):
    """The identity function with a given gradient."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, gradient: float) -> torch.Tensor:
        ctx.gradient = gradient
        return value.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient * ctx.gradient, None


def replace_loss_gradients(monkeypatch: pytest.MonkeyPatch, step: int, gradient: float) -> None:
    """Replace the gradient of the loss in one step; the loss itself is unchanged."""
    from bcrf.tagger.nn import TaggerModel

    loss, count = TaggerModel.loss, 0

    def poisoned(self: TaggerModel, *arguments: Any) -> torch.Tensor:
        nonlocal count
        count += 1
        value = loss(self, *arguments)
        return ReplaceGradient.apply(value, gradient) if count == step else value

    monkeypatch.setattr(TaggerModel, "loss", poisoned)


@pytest.mark.parametrize("gradient", [math.nan, math.inf])
@pytest.mark.parametrize(
    ("step", "log_every", "where"),
    [
        (3, 50, "epoch 1, steps 1 to 3"),  # three steps an epoch: the state is about to be saved
        (6, 50, "epoch 2, steps 1 to 3"),
        (5, 2, "epoch 2, steps 1 to 2"),
        (6, 2, "epoch 2, step 3"),
        (4, 1, "epoch 2, step 1"),
    ],
)
def test_a_gradient_that_is_not_finite_is_never_saved(
    tmp_path, monkeypatch, step, log_every, where, gradient
):
    settings = config(tmp_path, training={"log_every": log_every})
    replace_loss_gradients(monkeypatch, step, gradient)
    message = rf"^{where}: training diverges \(a gradient is not finite\); lower optimizer\.learn"
    with pytest.raises(FloatingPointError, match=message):
        run(settings)
    if step <= 3:
        assert names(settings.output) == ["metrics.jsonl"]
        return
    for name in ("best", "last"):
        saved = Tagger.load(Path(settings.output, name))
        assert saved.info["epoch"] == 1
        assert all(p.isfinite().all() for p in saved.model.parameters())
    assert [epoch.epoch for epoch in epochs(run(settings, resume=True))] == [2, 3]


@pytest.mark.parametrize("lazy", [True, False])
@pytest.mark.parametrize("clip", [None, 1.0])
def test_gradients_of_embedding_rows_are_checked_too(tmp_path, monkeypatch, lazy, clip):
    """No other sentence of the epoch reads the wrong row, so that no loss shows the error."""
    settings = config(tmp_path, optimizer={"lazy": lazy, "clip": clip})
    step = Optimization.step

    def poisoned(self: Optimization, number: int) -> float:
        table = self.model.encoder.table.weight
        assert table.grad.is_sparse == lazy
        if number == 2:
            table.grad = table.grad.coalesce() if lazy else table.grad
            (table.grad.values() if lazy else table.grad)[-1, 0] = math.inf
        return step(self, number)

    monkeypatch.setattr(Optimization, "step", poisoned)
    with pytest.raises(FloatingPointError, match=r"epoch 1, steps 1 to 3: .*a gradient is not fin"):
        run(settings)
    assert names(settings.output) == ["metrics.jsonl"]


def test_weights_that_are_not_finite_are_never_saved(tmp_path, monkeypatch):
    """The last step of an epoch may overflow although all gradients are finite."""
    settings = config(tmp_path)
    step = Optimization.step

    def overflowing(self: Optimization, number: int) -> float:
        rate = step(self, number)
        if number == 5:
            with torch.no_grad():
                next(self.model.scorer.parameters()).view(-1)[0] = math.inf
        return rate

    monkeypatch.setattr(Optimization, "step", overflowing)
    with pytest.raises(FloatingPointError, match=r"epoch 2, step 3: .* \(a weight is not finite\)"):
        run(settings)
    assert Tagger.load(Path(settings.output, "last")).info["epoch"] == 1


# ---------------------------------------------------------------------------- failing disks


def test_a_full_disk_leaves_the_last_epoch(tmp_path, monkeypatch):
    settings, reference = config(tmp_path / "a"), config(tmp_path / "b")
    run(reference)
    events = train(settings)
    for event in events:
        if isinstance(event, Epoch):
            break

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("bcrf.tagger.training.checkpoint.save_tensors", full)
        message = (
            "cannot save epoch 2: No space left on device; epoch 1 is saved; continue after it "
            "with --resume"
        )
        with pytest.raises(OSError, match=message) as caught:
            list(events)
    assert caught.value.filename == settings.output
    assert names(settings.output) == ["best", "last", "metrics.jsonl"]
    run(settings, resume=True)
    found = [Tagger.load(Path(one.output, "last")) for one in (settings, reference)]
    assert weights_equal(*found)


def test_a_full_disk_in_the_first_epoch_leaves_its_model(tmp_path, monkeypatch):
    """The best model is saved before the last state, which here does not fit on the disk."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    settings = config(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr("bcrf.tagger.training.checkpoint.save_tensors", full)
        message = (
            "cannot save epoch 1: No space left on device; no epoch can be continued yet; `best` "
            "holds the complete model of epoch 1"
        )
        with pytest.raises(OSError, match="cannot save") as caught:
            run(settings)
    assert caught.value.strerror == message
    assert names(settings.output) == ["best", "metrics.jsonl"]
    assert Tagger.load(settings.output).info["epoch"] == 1
    run(settings)


LIMITED = """
import resource, sys
from bcrf.cli import main

resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), -1))
sys.exit(main(sys.argv[2:]))
"""


@pytest.mark.skipif(os.name != "posix", reason="needs limits")
@pytest.mark.parametrize("size", [400, 4000])
def test_write_errors_are_one_line_on_the_command_line(tmp_path, size):
    """Writing fails at the first line of the log, or at the weights."""
    settings = config(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(settings.to_dict()))
    command = [sys.executable, "-c", LIMITED, str(size), "train", str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.stderr == (
        f"bcrf: error: {settings.output}: cannot save epoch 1: File too large; no epoch is saved "
        "yet\n"
    )
    assert done.returncode == 1
    assert names(settings.output) == ["metrics.jsonl"]
    run(settings)


# ------------------------------------------------------------------------------- overwriting

# A process that dies when it has removed one file of the old run.
KILLED = """
import json, os, signal, sys
from bcrf.tagger.training import Config, train

unlink, removed = os.unlink, 0

def unlink_and_die(path, *arguments, **options):
    global removed
    if str(path).endswith((".json", ".safetensors")):
        if removed == int(sys.argv[2]):
            os.kill(os.getpid(), signal.SIGKILL)
        removed += 1
    unlink(path, *arguments, **options)

os.unlink = unlink_and_die
for event in train(Config.from_dict(json.loads(sys.argv[1])), overwrite=True):
    pass
"""


@pytest.mark.skipif(os.name != "posix", reason="needs SIGKILL")
@pytest.mark.parametrize("removed", [1, pytest.param(4, marks=pytest.mark.slow), 5])
def test_overwriting_after_a_killed_overwrite(tmp_path, removed):
    settings = config(tmp_path)
    reference = trained(tmp_path / "reference")
    run(settings)
    command = [sys.executable, "-c", KILLED, json.dumps(settings.to_dict()), str(removed)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    left = shutil.copytree(settings.output, tmp_path / "left")
    for options in ({"overwrite": True}, {"resume": True}, {}):
        shutil.rmtree(settings.output)
        shutil.copytree(left, settings.output)
        assert [epoch.epoch for epoch in epochs(run(settings, **options))] == [1, 2, 3]
        assert weights_equal(Tagger.load(settings.output), reference)
        assert names(settings.output) == ["best", "last", "metrics.jsonl"]


# ---------------------------------------------------------------------------------- threads


def test_a_changed_number_of_threads_is_a_warning(tmp_path):
    settings = config(tmp_path)
    for event in train(settings):
        if isinstance(event, Step) and event.epoch == 2:
            break
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(before + 1)
        message = f"was started with {before} threads, but now there are {before + 1}, .* last bits"
        with pytest.warns(UserWarning, match=message):
            run(settings, resume=True)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("line", ["", "[]", "{}", '{"threads": "many"}', "[" * 100_000])
def test_a_log_without_the_number_of_threads_is_accepted(tmp_path, line):
    settings = config(tmp_path, training={"epochs": 1})
    run(settings)
    Path(settings.output, "metrics.jsonl").write_text(line + "\n")
    assert len(run(settings, resume=True)) == 2


# ------------------------------------------------------------------------------------------- limits


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": {"layers": 10**9}}, r"found 1000000000 layers; a model may have at most 256"),
        ({"model": {"objective": "bregman-1000000000"}}, r"objective .* 1000000000 iterations"),
        ({"decoding": {"decoder": "mean_field-1000000000"}}, r"decoder .* 1000000000 iterations"),
        (
            {"model": {"width": 10**12}},
            r"the network has weights of .* bytes; .* Lower model\.width",
        ),
    ],
)
def test_models_beyond_the_limits_of_loading_are_not_trained(tmp_path, changes, message):
    settings = config(tmp_path, **changes)
    with pytest.raises(ValueError, match=message):
        run(settings)
    assert not Path(settings.output).exists()
