"""Interrupted, killed and resumed runs equal an uninterrupted run bit by bit."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from bcrf.tagger import ModelError, Tagger
from bcrf.tagger.files import current_path
from bcrf.tagger.training import Config, Epoch, Finished, Started, Step, train
from bcrf.tagger.training.training_data import TrainingData
from tests.tagger_cases import config, epochs, run, trained, weights_equal, write
from tests.tampering import reseal

ROOT = Path(__file__).resolve().parents[2]

# The settings have all kinds of randomness: dropout, unknown words, the order of batches.
RANDOM = {
    "model": {
        "dropout": 0.3,
        "unknown_rate": 0.2,
        "layers": 1,
        "layer_dropout": 0.1,
        "characters": "cnn",
        "character_width": 4,
        "objective": "bregman",
    },
    "training": {"epochs": 4, "log_every": 2, "calibrate": True},
    "optimizer": {"clip": 5.0},
}


def settings(folder: Path) -> Config:
    return config(folder, **RANDOM)


def test_the_fingerprint_of_the_data_is_that_of_older_versions(tmp_path):
    """Otherwise runs that an older version began could not be resumed."""
    begins = {}
    for task in ("pos", "segmentation", "ner"):
        own = config(tmp_path / task, task)
        data = TrainingData.read(own.data, own.model, own.training.seed)
        begins[task] = data.fingerprint()[:16]
    assert begins == {
        "pos": "6f5625187647452e",
        "segmentation": "44aa329fc1422e29",
        "ner": "973449a8e16255b6",
    }


def outcome(output: str) -> dict[str, object]:
    """Return the content of all files of a run, without times and paths."""
    folder = Path(output)
    found: dict[str, object] = {}
    for path in ("best/model.safetensors", "last/model.safetensors", "last/optimizer.safetensors"):
        found[path] = (folder / path).read_bytes()
    lines = []
    for line in (folder / "metrics.jsonl").read_text().splitlines():
        values = json.loads(line)
        for name in ("seconds", "dev_seconds", "tokens_per_second", "output", "config", "model"):
            values.pop(name, None)
        lines.append(values)
    found["metrics"] = lines
    found["info"] = [Tagger.load(folder / name).info["dev"] for name in ("best", "last")]
    names = sorted(entry.name for entry in folder.iterdir())
    assert names == ["best", "last", "metrics.jsonl"]  # no other files are left
    return found


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory) -> dict[str, object]:
    """The outcome of a run that is never interrupted."""
    whole = settings(tmp_path_factory.mktemp("uninterrupted"))
    assert isinstance(run(whole)[-1], Finished)
    return outcome(whole.output)


def assert_same(found: dict[str, object], expected: dict[str, object]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name] == value, name


def test_equal_configs_give_equal_outcomes(tmp_path, uninterrupted):
    again = settings(tmp_path)
    for event in train(again):
        if isinstance(event, Step):
            torch.rand(event.step)  # the caller may draw random numbers between events
    assert_same(outcome(again.output), uninterrupted)


# A process that kills itself: during a step; while it writes the last state; while the old folder
# has been moved aside and the new one is not yet there; before the last state follows the best.
KILLED = """
import json, os, signal, sys
from pathlib import Path
from bcrf.tagger.files import atomic_folder
from bcrf.tagger.training import Config, Step, checkpoint, output, train

config, moment, fatal = Config.from_dict(json.loads(sys.argv[1])), sys.argv[2], int(sys.argv[3])
die = lambda: os.kill(os.getpid(), signal.SIGKILL)
epoch = 0

if moment == "writing":
    save = checkpoint.save_tensors
    def save_and_die(path, tensors):
        save(path, tensors)
        if epoch == fatal:
            die()
    checkpoint.save_tensors = save_and_die
elif moment in ("last", "best"):
    rename = os.rename
    def rename_and_die(source, target):
        rename(source, target)
        if epoch == fatal and str(target).endswith(f".{moment}.old"):
            die()
    atomic_folder.os.rename = rename_and_die
    atomic_folder._exchange = lambda one, other: False  # a system that needs two renames
elif moment == "between":
    save = output.save_checkpoint
    def die_or_save(*arguments):
        die() if epoch == fatal else save(*arguments)
    output.save_checkpoint = die_or_save

for event in train(config, resume=True):
    if isinstance(event, Step):
        epoch = event.epoch
        if moment == "step" and (event.epoch, event.step) == (fatal, 2):
            die()
"""


@pytest.mark.skipif(os.name != "posix", reason="needs SIGKILL")
@pytest.mark.parametrize(
    "moment",
    [
        "step",
        pytest.param("writing", marks=pytest.mark.slow),
        "last",
        pytest.param("best", marks=pytest.mark.slow),
        pytest.param("between", marks=pytest.mark.slow),
    ],
)
def test_a_killed_run_is_resumed_with_the_same_outcome(tmp_path, uninterrupted, moment):
    killed = settings(tmp_path)
    # An epoch that is better than those before it, so that there is a best model to be replaced.
    lines = [line for line in uninterrupted["metrics"] if line["event"] == "epoch"]
    fatal = [line["epoch"] for line in lines if line["improved"]][1]
    command = [sys.executable, "-c", KILLED, json.dumps(killed.to_dict()), moment, str(fatal)]
    environment = os.environ | {"OMP_NUM_THREADS": str(torch.get_num_threads())}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    # Readers find a complete model, whenever the process was killed.
    output = Path(killed.output)
    for name in ("best", "last"):
        Tagger.load(current_path(output / name))
    Tagger.load(output)

    events = run(killed, resume=True)
    assert isinstance(events[0], Started)
    assert events[0].first_epoch == fatal
    assert events[0].best_score is not None
    assert [epoch.epoch for epoch in epochs(events)] == list(range(fatal, 5))
    assert_same(outcome(killed.output), uninterrupted)


@pytest.mark.parametrize("at", [(1, 2), (2, 1), (4, 3)])
def test_an_interrupted_run_is_resumed_with_the_same_outcome(tmp_path, uninterrupted, at):
    stopped = settings(tmp_path)
    events = train(stopped)
    for event in events:
        if isinstance(event, Step) and (event.epoch, event.step) == at:
            break
    with pytest.raises(KeyboardInterrupt):
        events.throw(KeyboardInterrupt)
    rest = run(stopped, resume=True)
    assert rest[0].first_epoch == at[0]
    assert_same(outcome(stopped.output), uninterrupted)


def test_an_incomplete_log_line_is_removed(tmp_path, uninterrupted):
    stopped = settings(tmp_path)
    for event in train(stopped):
        if isinstance(event, Step) and event.epoch == 3:
            break
    with Path(stopped.output, "metrics.jsonl").open("a") as log:
        log.write('{"event": "step", "epoch": 3, "step": 2, "lo')
    run(stopped, resume=True)
    assert_same(outcome(stopped.output), uninterrupted)


def test_a_missing_log_is_started_again(tmp_path):
    stopped = settings(tmp_path)
    for event in train(stopped):
        if isinstance(event, Step) and event.epoch == 3:
            break
    log = Path(stopped.output, "metrics.jsonl")
    log.write_text('{"event": "sta')
    run(stopped, resume=True)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["epoch"] for line in lines if line["event"] == "epoch"] == [3, 4]


def test_resuming_a_finished_run_changes_nothing(tmp_path):
    whole = settings(tmp_path)
    run(whole)
    before = outcome(whole.output)
    started, finished = run(whole, resume=True)
    assert started.first_epoch == 5
    assert finished.reason == "done"
    assert_same(outcome(whole.output), before)


def test_resuming_without_a_saved_state_starts_a_run(tmp_path, uninterrupted):
    fresh = settings(tmp_path)
    assert run(fresh, resume=True)[0].first_epoch == 1
    assert_same(outcome(fresh.output), uninterrupted)


def test_a_finished_run_is_not_overwritten_by_mistake(tmp_path, uninterrupted):
    whole = settings(tmp_path)
    run(whole)
    with pytest.raises(
        FileExistsError, match=r"run; continue it \(--resume.*replace it \(--overwrite"
    ):
        run(whole)
    assert run(whole, overwrite=True)[0].first_epoch == 1
    assert_same(outcome(whole.output), uninterrupted)


def test_a_run_under_its_temporary_name_is_not_overwritten_either(tmp_path):
    whole = config(tmp_path, training={"epochs": 1})
    run(whole)
    last = Path(whole.output, "last")
    last.rename(last.with_name(".last.old"))
    with pytest.raises(FileExistsError, match="already holds a training run"):
        run(whole)
    assert len(run(whole, resume=True)) == 2


@pytest.mark.parametrize("options", [{}, {"overwrite": True}, {"resume": True}])
def test_folders_with_other_files_are_never_overwritten(tmp_path, options):
    whole = config(tmp_path)
    precious = Path(whole.output, "best", "photo.jpg")
    precious.parent.mkdir(parents=True)
    precious.write_text("")
    with pytest.raises(FileExistsError, match=r"best holds files that do not belong to a model"):
        run(whole, **options)
    assert precious.exists()


# ---------------------------------------------------------------------------------------- extending

CONSTANT = {"schedule": "constant", "warmup": 0.0}


@pytest.mark.parametrize("seen", [1, 2])
def test_a_run_is_extended_by_more_epochs(tmp_path, seen):
    """With a constant learning rate it equals, bit by bit, a run that had them from the start."""
    whole = config(tmp_path / "whole", training={"epochs": 4}, optimizer=CONSTANT)
    run(whole)
    short = config(tmp_path / "short", training={"epochs": 2}, optimizer=CONSTANT)
    for event in train(short):
        if isinstance(event, Epoch) and event.epoch == seen:
            break
    longer = config(tmp_path / "short", training={"epochs": 4}, optimizer=CONSTANT)
    started, *_, finished = run(longer, resume=True)
    assert (started.first_epoch, started.epochs) == (seen + 1, 4)
    assert finished.reason == "done"
    for name in ("best", "last"):
        found, expected = (Tagger.load(Path(one.output, name)) for one in (longer, whole))
        assert weights_equal(found, expected)
    text = Path(longer.output, "metrics.jsonl").read_text()
    events = [json.loads(line) for line in text.splitlines()]
    assert [e["epoch"] for e in events if e["event"] == "epoch"] == [1, 2, 3, 4]
    assert [e["epochs"] for e in events if e["event"] == "extend"] == [4]
    assert len(run(longer, resume=True)) == 2  # it is over


def test_extending_a_decaying_schedule_is_a_warning(tmp_path):
    run(config(tmp_path, training={"epochs": 1}))
    with pytest.warns(UserWarning, match="is extended after epoch 1. The earlier epochs had"):
        events = run(config(tmp_path, training={"epochs": 2}), resume=True)
    assert [event.epoch for event in events if isinstance(event, Epoch)] == [2]


def test_extending_can_be_refused(tmp_path):
    run(config(tmp_path, training={"epochs": 1}))
    with pytest.raises(
        ValueError, match=r"epochs = 1, but now training\.epochs = 2; .* set training\.epochs to 1"
    ):
        run(config(tmp_path, training={"epochs": 2}), resume=True, extend=False)


def test_a_run_that_stopped_early_is_not_extended(tmp_path):
    patient = {"patience": 1, "epochs": 50}
    events = run(config(tmp_path, training=patient, optimizer={"learning_rate": 1e-9}))
    assert events[-1].reason == "early stopping"
    assert (
        len(
            run(
                config(
                    tmp_path, training=patient | {"epochs": 60}, optimizer={"learning_rate": 1e-9}
                ),
                resume=True,
            )
        )
        == 2
    )


def test_a_state_without_improved_epoch_is_read(tmp_path):
    """Older versions did not write this key."""
    whole = config(tmp_path, training={"epochs": 1})
    run(whole)
    last = Path(whole.output, "last")
    state = json.loads((last / "training.json").read_text())
    del state["progress"]["improved_epoch"]
    (last / "training.json").write_text(json.dumps(state))
    reseal(last)
    assert len(run(whole, resume=True)) == 2


# ------------------------------------------------------------------------------------------- errors


def test_resuming_with_another_config_is_refused(tmp_path):
    run(config(tmp_path, training={"epochs": 2}))
    with pytest.raises(
        ValueError, match=r"epochs = 2, but now training\.epochs = 1; .* to at least 2"
    ):
        run(config(tmp_path, training={"epochs": 1}), resume=True)
    with pytest.raises(
        ValueError, match=r"with model\.dropout = 0\.0, but now model\.dropout = 0\.5"
    ):
        run(config(tmp_path, training={"epochs": 2}, model={"dropout": 0.5}), resume=True)


def test_resuming_with_other_paths_is_accepted(tmp_path):
    first = config(tmp_path / "a", training={"epochs": 1})
    run(first)
    second = config(tmp_path / "b", training={"epochs": 1, "device": "auto"})
    Path(first.output).rename(second.output)
    assert len(run(second, resume=True)) == 2


def test_resuming_with_other_data_is_refused(tmp_path):
    whole = config(tmp_path, training={"epochs": 1})
    run(whole)
    for name in ("train", "dev"):
        write(tmp_path, "pos", name, skip=1)
        with pytest.raises(ValueError, match=r"the data in .*train\.conllu and .*dev\.conllu have"):
            run(whole, resume=True)
        write(tmp_path, "pos", name, skip={"train": 0, "dev": 3}[name])
    assert len(run(whole, resume=True)) == 2


@pytest.mark.parametrize("name", ["optimizer.safetensors", "training.json", "model.safetensors"])
def test_a_damaged_state_is_refused(tmp_path, name):
    whole = config(tmp_path, training={"epochs": 1})
    run(whole)
    path = Path(whole.output, "last", name)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ModelError, match=rf"last/{name}: has been changed .* or damaged"):
        run(whole, resume=True)
    path.unlink()
    with pytest.raises(ModelError, match=rf"last/{name}: is missing"):
        run(whole, resume=True)


def test_a_model_without_training_state_is_refused(tmp_path):
    tagger = trained(tmp_path)
    whole = config(tmp_path / "other")
    tagger.save(Path(whole.output, "last"))
    with pytest.raises(ModelError, match=r"training\.json: is missing; expected the state of"):
        run(whole, resume=True)
