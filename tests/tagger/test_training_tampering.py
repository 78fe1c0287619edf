"""Saved states of a training run that were changed by hand: each is refused with its reason."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from bcrf.tagger import ModelError
from bcrf.tagger.model_folder.description import write_description
from bcrf.tagger.model_folder.tensors import load_tensors, save_tensors
from bcrf.tagger.training import Config
from tests.tagger_cases import config, run

ROOT = Path(__file__).resolve().parents[2]


def sign(folder: Path) -> None:
    """Update the checksums in model.json, so that changed files are accepted."""
    path = folder / "model.json"
    values = json.loads(path.read_text())
    path.unlink()
    own = ("format", "version", "bcrf", "files", "sha256")
    write_description(folder, {key: value for key, value in values.items() if key not in own})


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Config:
    settings = config(tmp_path_factory.mktemp("finished"), training={"epochs": 2})
    run(settings)
    return settings


@pytest.fixture
def last(finished, tmp_path) -> tuple[Config, Path]:
    """Return the last state in a copy of the run."""
    output = tmp_path / "run"
    shutil.copytree(finished.output, output)
    return Config.from_dict(finished.to_dict() | {"output": str(output)}), output / "last"


def progress(**changes: object) -> Callable[[dict[str, Any]], object]:
    return lambda state: state["progress"].update(changes)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state.pop("progress"), "progress is missing"),
        (lambda state: state.pop("config"), "config is missing"),
        (lambda state: state.pop("fingerprint"), "fingerprint is missing"),
        (lambda state: state.update(more=1), "unknown key 'more'; expected progress, config"),
        (lambda state: state.update(progress=[]), r"progress must be an object, found \[\]"),
        (lambda state: state.update(config="x"), "config must be an object, found 'x'"),
        (lambda state: state["progress"].pop("epoch"), r"progress\.epoch is missing"),
        (lambda state: state["progress"].pop("reason"), r"progress\.reason is missing"),
        (progress(more=1), r"unknown key 'progress\.more'; expected epoch, best_epoch"),
        (
            progress(epoch=10**9),
            r"progress\.epoch must be a whole number from 1 to 2, found 1000000000",
        ),
        (progress(epoch=0), r"progress\.epoch must be a whole number from 1 to 2, found 0"),
        (progress(epoch=-1), r"progress\.epoch must be .*found -1"),
        (progress(epoch=True), r"progress\.epoch must be .*found True"),
        (progress(epoch=1.0), r"progress\.epoch must be .*found 1\.0"),
        (progress(epoch="1"), r"progress\.epoch must be .*found '1'"),
        (progress(epoch=None), r"progress\.epoch must be .*found None"),
        (progress(epoch=[1] * 10**4), r"progress\.epoch must be .*found \[1, 1[^\]]*$"),
        (
            progress(best_epoch=3),
            r"progress\.best_epoch must be a whole number from 1 to 2, found 3",
        ),
        (progress(epoch=1, best_epoch=2), r"progress\.best_epoch must be .*found 2"),
        (progress(best_epoch=False), r"progress\.best_epoch must be .*found False"),
        (
            progress(best_score=math.nan),
            r"progress\.best_score must be a number from 0 to 1, found nan",
        ),
        (progress(best_score=math.inf), r"progress\.best_score must be .*found inf"),
        (progress(best_score=None), r"progress\.best_score must be .*found None"),
        (progress(best_score="0.5"), r"progress\.best_score must be .*found '0\.5'"),
        (progress(best_score=True), r"progress\.best_score must be .*found True"),
        (progress(best_score=10**400), r"progress\.best_score must be .*found 1000"),
        (
            progress(log_size=-1),
            r"progress\.log_size must be a whole number from 0 to inf, found -1",
        ),
        (progress(improved_epoch=4), r"progress\.improved_epoch must be .*found 4"),
        (progress(improved_epoch="1"), r"progress\.improved_epoch must be .*found '1'"),
        (progress(log_size=1.5), r"progress\.log_size must be .*found 1\.5"),
        (progress(log_size=None), r"progress\.log_size must be .*found None"),
        (progress(reason="bored"), r"progress\.reason must be \"done\", found 'bored'"),
        (progress(reason=None), r"progress\.reason must be \"done\", found None"),
        (
            progress(epoch=1, best_epoch=1, improved_epoch=1),
            r"progress\.reason must be null, found 'done'",
        ),
        (
            progress(epoch=1, best_epoch=1, improved_epoch=1, reason="early stopping"),
            r"progress\.reason must be null, found 'early stopping'",
        ),
        (progress(reason=[]), r"progress\.reason must be .*found \[\]"),
        (progress(reason=0), r"progress\.reason must be .*found 0"),
    ],
)
def test_a_tampered_state_is_refused(last, change, message):
    settings, folder = last
    path = folder / "training.json"
    state = json.loads(path.read_text())
    change(state)
    path.write_text(json.dumps(state))
    sign(folder)
    with pytest.raises(ModelError, match=rf"last/training\.json: {message}"):
        run(settings, resume=True)


def test_a_log_size_beyond_the_log_is_harmless(last):
    settings, folder = last
    path = folder / "training.json"
    state = json.loads(path.read_text())
    state["progress"]["log_size"] = 10**18
    path.write_text(json.dumps(state))
    sign(folder)
    assert len(run(settings, resume=True)) == 2


def test_a_score_without_dev_is_refused(tmp_path):
    settings = config(tmp_path, data={"dev": None}, training={"epochs": 1})
    run(settings)
    folder = Path(settings.output, "last")
    state = json.loads((folder / "training.json").read_text())
    assert state["progress"]["best_score"] is None
    assert len(run(settings, resume=True)) == 2
    state["progress"]["best_score"] = 0.5
    (folder / "training.json").write_text(json.dumps(state))
    sign(folder)
    with pytest.raises(
        ModelError, match=r"best_score must be null, because there are no dev sentences"
    ):
        run(settings, resume=True)


TABLE = "encoder.table.weight"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.update(more=torch.ones(1)), "more: does not belong to the optimizer"),
        (lambda t: t.update({f"{TABLE}.more": torch.ones(1)}), rf"{TABLE}\.more: does not belong"),
        (lambda t: t.pop(f"{TABLE}.step"), rf"{TABLE}\.step: is missing"),
        (lambda t: t.pop(f"{TABLE}.exp_avg"), rf"{TABLE}\.exp_avg: is missing"),
        (
            lambda t: t.update({f"{TABLE}.exp_avg": torch.ones(2)}),
            rf"{TABLE}\.exp_avg: expected torch\.float32 of the shape \[\d+, 16\], found "
            r"torch\.float32 of the shape \[2\]",
        ),
        (
            lambda t: t.update({f"{TABLE}.exp_avg_sq": t[f"{TABLE}.exp_avg_sq"].double()}),
            r"found torch\.float64",
        ),
        (
            lambda t: t.update({f"{TABLE}.step": torch.tensor(1e30)}),
            rf"{TABLE}\.step: expected a number of steps up to 6, found 1\.0",
        ),
        (lambda t: t.update({f"{TABLE}.step": torch.tensor(math.nan)}), "up to 6, found nan"),
        (lambda t: t.update({f"{TABLE}.step": torch.tensor(-1.0)}), r"up to 6, found -1\.0"),
        (lambda t: t.update({f"{TABLE}.step": torch.tensor(0.5)}), r"up to 6, found 0\.5"),
    ],
)
def test_the_state_of_another_optimiser_is_refused(last, change, message):
    settings, folder = last
    path = folder / "optimizer.safetensors"
    tensors = load_tensors(path)
    assert f"{TABLE}.exp_avg" in tensors
    change(tensors)
    path.unlink()  # the tensors are still mapped to it
    save_tensors(path, tensors)
    sign(folder)
    with pytest.raises(ModelError, match=rf"last/optimizer\.safetensors: .*{message}"):
        run(settings, resume=True)


def test_a_state_without_an_optimiser_is_refused(last):
    settings, folder = last
    (folder / "optimizer.safetensors").unlink()
    sign(folder)
    with pytest.raises(ModelError, match=r"last/optimizer\.safetensors: is missing; expected the"):
        run(settings, resume=True)


def test_the_weights_of_another_network_are_refused(last):
    settings, folder = last
    save_tensors(folder / "model.safetensors", {"w": torch.ones(2)})
    sign(folder)
    with pytest.raises(
        ModelError, match=r"last: its weights do not fit the network of this run: .*Missing"
    ):
        run(settings, resume=True)
