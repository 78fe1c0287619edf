"""`bcrf train`: settings from files and the command line, what is printed, interruptions."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bcrf.cli import main
from bcrf.cli.config_file import overlaid, read_config
from bcrf.cli.errors import UserError
from bcrf.training import Config, Epoch, train
from tests.cli_cases import COMMAND, SENTENCES, bcrf, conllu, environment, small_config

ROOT = Path(__file__).parent.parent


def write_config(folder: Path, **parts: dict[str, Any]) -> Path:
    """A configuration as JSON, which is YAML too."""
    file = folder / "train.conllu"
    file.write_text(conllu(*SENTENCES))
    config = folder / "config.yaml"
    config.write_text(json.dumps(small_config(folder / "run", file, **parts)))
    return config


TOML = """
output = "{folder}/run"

[data]
train = "{folder}/train.conllu"
dev = "{folder}/train.conllu"

[model]
width = 16
score_width = 8

[optimizer]
learning_rate = 0.02

[training]
epochs = 7
batch = 4
"""


def test_training_from_toml_with_settings_of_the_command_line(tmp_path):
    write_config(tmp_path)
    config = tmp_path / "config.toml"
    config.write_text(TOML.format(folder=tmp_path))
    output = bcrf(
        "train", config, "--training.epochs", "2", "--model.dropout=0", "--optimizer.clip", "null"
    )
    assert output.stderr == ""  # no bar
    first, *epochs, last = output.stdout.splitlines()
    assert first.startswith(f"{tmp_path}/run: 46 sentences, 46 for dev; 3 labels, 12 words, ")

    values = read_config(str(config))
    values["output"] = str(tmp_path / "other")
    values["training"]["epochs"] = 2
    values["model"]["dropout"] = 0
    expected = [e for e in train(Config.from_dict(values)) if isinstance(e, Epoch)]
    assert [re.sub(r"( [*])?  [0-9.]+ s$", "", line) for line in epochs] == [
        f"epoch {e.epoch}/2  loss {e.loss:.4f}  accuracy {100 * e.score:.2f} %" for e in expected
    ]
    assert re.fullmatch(rf"{tmp_path}/run/best: the model of epoch \d, .* % on dev \(done\)", last)


@pytest.mark.parametrize(
    ("number", "code", "message"),
    [
        (signal.SIGINT, 130, "bcrf: interrupted"),
        pytest.param(signal.SIGTERM, 143, "bcrf: terminated", marks=pytest.mark.slow),
    ],
)
def test_a_run_that_was_interrupted_is_resumed(tmp_path, number, code, message):
    config = write_config(tmp_path, training={"epochs": 500, "log_every": 1000})
    process = subprocess.Popen(
        [*COMMAND, "train", str(config)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    assert process.stdout is not None
    while not process.stdout.readline().startswith("epoch 2/500"):
        assert process.poll() is None
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == code
    assert errors.splitlines() == [
        f"bcrf: stopped; what was completed is in {tmp_path}/run, and --resume goes on",
        message,
    ]
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == ["best", "last", "metrics.jsonl"]
    state = json.loads((tmp_path / "run" / "last" / "training.json").read_text())
    done = state["progress"]["epoch"]
    assert done >= 2
    more = f"--training.epochs={done + 1}"
    # The number of epochs belongs to the schedule, so that it cannot change.
    assert "training.epochs" in bcrf("train", config, "--resume", more, code=1).stderr


def test_a_second_training_ends_at_once(tmp_path):
    config = write_config(tmp_path)
    first = train(Config.from_dict(read_config(str(config))))
    next(first)
    errors = bcrf("train", config, "--overwrite", code=1).stderr
    expected = (
        rf"bcrf: error: {tmp_path}/run is in use by another training \(process {os.getpid()} "
    )
    assert re.match(expected, errors)
    assert errors.count("\n") == 1
    assert len(list(first)) > 1


def test_another_number_of_threads_is_one_line(tmp_path):
    config = write_config(tmp_path, training={"epochs": 2})
    for event in train(Config.from_dict(read_config(str(config)))):
        if isinstance(event, Epoch):
            break
    path = tmp_path / "run" / "metrics.jsonl"
    path.write_text(re.sub(r'"threads": \d+', '"threads": 77', path.read_text()))
    errors = bcrf("train", config, "--resume", PYTHONWARNINGS="").stderr
    assert errors.startswith(f"bcrf: warning: {tmp_path}/run was begun with 77 threads, now there ")
    assert errors.count("\n") == 1


def test_resuming_ends_as_if_nothing_had_happened(tmp_path, capsys):
    config = write_config(tmp_path, training={"epochs": 3})
    events = train(Config.from_dict(read_config(str(config))))
    for event in events:
        if isinstance(event, Epoch):
            break
    events.close()
    assert main(["train", str(config), "--resume"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("going on with epoch 2")
    assert [line.split()[1] for line in lines[1:-1]] == ["2/3", "3/3"]
    resumed = (tmp_path / "run" / "last" / "model.safetensors").read_bytes()

    assert main(["train", str(config)]) == 1
    assert "run holds a training run already; resume it, overwrite it" in capsys.readouterr().err
    assert main(["train", str(config), "--overwrite"]) == 0
    assert (tmp_path / "run" / "last" / "model.safetensors").read_bytes() == resumed


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--training.epoch", "3"], 2, "unrecognized arguments: --training.epoch 3"),
        (["--training.epochs", "many"], 2, "training.epochs"),
        (["--model.characters", "rnn"], 2, "model.characters"),
        (["--resume", "--overwrite"], 2, "--resume and --overwrite exclude each other"),
        (["--training.epochs", "0"], 1, "command line: training.epochs must be"),
        (["--model.objective", "magic"], 1, "command line: model.objective must be one of"),
        (["--data.train", "nowhere"], 1, "nowhere: cannot be read: No such file or directory"),
        (["--optimizer.learning_rate", "1e30"], 1, "lower optimizer.learning_rate"),
        (["--model.pretrained", "nowhere"], 1, "pretrained: cannot load"),
    ],
)
def test_wrong_settings(tmp_path, capsys, monkeypatch, arguments, code, message):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    try:
        found = main(["train", str(write_config(tmp_path)), *arguments])
    except SystemExit as exit:
        found = exit.code
    assert found == code
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.toml", "x = ", "is no valid TOML: Invalid value (at "),
        ("a.yaml", "x: [1", "is no valid YAML: while parsing a flow sequence"),
        ("a.json", "{", "is no valid JSON: Expecting property name"),
        ("a.yaml", "- 1", "expected settings with names, found [1]\n"),
        ("a.yaml", "", "expected settings with names, found None\n"),
        ("a.txt", "", "expected a file that ends in .toml, .yaml, .yml, .json\n"),
        ("a.toml", "[trainer]", "unknown key 'trainer'; expected output, data, model"),
        ("a.toml", "output = 'x'\ndata = 3", "data must be a table of settings, got 3\n"),
        ("a.toml", "output = 'x'\n[training]\nepoch = 3", "unknown key 'training.epoch'"),
        ("a.toml", "x = 'caf\xe9'", "expected UTF-8"),
    ],
)
def test_wrong_files(tmp_path, capsys, name, text, message):
    (tmp_path / name).write_bytes(text.encode("latin-1"))
    assert main(["train", str(tmp_path / name)]) == 1
    assert capsys.readouterr().err.startswith(f"bcrf: error: {tmp_path}/{name}: {message}")


def test_a_missing_file(tmp_path, capsys):
    assert main(["train", str(tmp_path / "a.toml")]) == 1
    assert capsys.readouterr().err == f"bcrf: error: {tmp_path}/a.toml: No such file or directory\n"
    with pytest.raises(UserError, match="expected a file that ends in"):
        read_config(str(tmp_path))


def test_upper_settings_lie_over_lower_ones():
    lower = {"a": 1, "b": {"c": 2, "d": 3}, "e": {"f": 4}}
    upper = {"b": {"d": 5}, "e": 6, "g": {"h": 7}}
    assert overlaid(lower, upper) == {"a": 1, "b": {"c": 2, "d": 5}, "e": 6, "g": {"h": 7}}
    assert lower["b"] == {"c": 2, "d": 3}


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.toml")), ids=lambda p: p.stem)
def test_the_configurations_of_the_project_are_valid(path):
    Config.from_dict(read_config(str(path)))


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="gloo on POSIX")
def test_two_processes_train_together(tmp_path):
    config = write_config(tmp_path)
    alone = bcrf("train", config).stdout.splitlines()
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    together = subprocess.run(
        [*command, "--nproc-per-node=2", "-m", "bcrf", "train", str(config), "--overwrite"],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=300,
    )
    assert together.returncode == 0, together.stderr
    losses = [
        [float(line.split()[3]) for line in lines if line.startswith("epoch")]
        for lines in (alone, together.stdout.splitlines())
    ]
    assert len(losses[0]) == 4
    assert losses[0] == pytest.approx(losses[1], abs=2e-4)
