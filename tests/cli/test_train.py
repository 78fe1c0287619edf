"""`bcrf train`: settings from files and the command line, printed lines, interruptions."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from bcrf.cli import main
from bcrf.cli.config_file import read_config
from bcrf.cli.errors import UserError
from bcrf.cli.settings import MISSING, read_settings, read_task_defaults
from bcrf.cli.train import TrainingDisplay
from bcrf.tagger.config_tables import deep_merge
from bcrf.tagger.tasks import TASKS
from bcrf.tagger.training import Config, Epoch, Started, Step, recipe, train
from tests.cli_cases import COMMAND, SENTENCES, at_terminal, bcrf, conllu, environment, small_config

ROOT = Path(__file__).parents[2]


def write_config(folder: Path, **parts: dict[str, Any]) -> Path:
    """Write a configuration as JSON, which is also valid YAML, and return its path."""
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
    first, *epochs, last, commands = output.stdout.splitlines()
    assert commands.startswith(f"next: bcrf evaluate {tmp_path}/run ")
    assert first.startswith(f"{tmp_path}/run: 46 sentences, 46 for dev; 3 labels, 12 words, ")

    values = read_config(str(config))
    values["output"] = str(tmp_path / "other")
    values["training"]["epochs"] = 2
    values["model"]["dropout"] = 0
    expected = [e for e in train(Config.from_dict(values)) if isinstance(e, Epoch)]
    assert [re.sub(r"  time [0-9.]+ s(  best so far)?$", "", line) for line in epochs] == [
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
        f"bcrf: stopped; the completed epochs are in {tmp_path}/run; continue with --resume",
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


def test_a_changed_number_of_threads_is_a_warning_of_one_line(tmp_path):
    config = write_config(tmp_path, training={"epochs": 2})
    for event in train(Config.from_dict(read_config(str(config)))):
        if isinstance(event, Epoch):
            break
    path = tmp_path / "run" / "metrics.jsonl"
    path.write_text(re.sub(r'"threads": \d+', '"threads": 77', path.read_text()))
    errors = bcrf("train", config, "--resume", PYTHONWARNINGS="").stderr
    assert errors.startswith(f"bcrf: warning: {tmp_path}/run was started with 77 threads, but ")
    assert "resume with --threads 77 (torch.set_num_threads(77))" in errors
    assert errors.count("\n") == 1


def test_a_resumed_run_has_the_weights_of_an_uninterrupted_one(tmp_path, capsys):
    config = write_config(tmp_path, training={"epochs": 3})
    events = train(Config.from_dict(read_config(str(config))))
    for event in events:
        if isinstance(event, Epoch):
            break
    events.close()
    assert main(["train", str(config), "--resume"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("continuing with epoch 2")
    assert [line.split()[1] for line in lines[1:-2]] == ["2/3", "3/3"]
    resumed = (tmp_path / "run" / "last" / "model.safetensors").read_bytes()

    assert main(["train", str(config)]) == 1
    assert (
        "run already holds a training run; continue it (--resume, or resume=True"
        in capsys.readouterr().err
    )
    assert main(["train", str(config), "--overwrite"]) == 0
    assert (tmp_path / "run" / "last" / "model.safetensors").read_bytes() == resumed


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (
            ["--training.epoch", "3"],
            2,
            "--training.epoch; did you mean --training.epochs?",
        ),
        (["--training.epochs", "many"], 2, "training.epochs: expected a whole number, got 'many'"),
        (["--model.characters", "rnn"], 2, "model.characters: expected none or cnn, got 'rnn'"),
        (["--optimizer.clip", "x"], 2, "optimizer.clip: expected a number, got 'x'"),
        (["--data.strict", "yes"], 2, "data.strict: expected true or false, got 'yes'"),
        (["--resume", "--overwrite"], 2, "--resume and --overwrite cannot be used together"),
        (["--training.epochs", "0"], 2, "error: --training.epochs: expected an integer of at lea"),
        (["--model.layers", "two"], 2, "error: --model.layers: expected a whole number, got 'two'"),
        (["--model.objective", "crff"], 2, "error: --model.objective must be one of unstructured,"),
        (
            ["--model.objective", "bregmann"],
            2,
            "bregman[-K][-relaxed] (K iterations), got 'bregmann'; did you mean bregman?",
        ),
        (["--training.device", "gpu"], 2, "error: --training.device must be auto, cpu, cuda or"),
        (["--model.layers=1", "--model.heads=5"], 2, "error: --model.heads must divide width = 16"),
        (
            ["--model.layers", "1", "--model.width", "9"],
            1,
            "config.yaml with the settings of the command line: model.heads must divide width = 9",
        ),
        (["--model.layers", "300"], 1, "model.layers: found 300 layers; a model may have at most"),
        (["--data.train", "nowhere"], 1, "nowhere: cannot be read: No such file or directory"),
        (["--optimizer.learning_rate", "1e30"], 1, "lower optimizer.learning_rate"),
        (["--model.pretrained", "nowhere"], 1, "pretrained: cannot load"),
    ],
)
def test_errors_about_settings(tmp_path, capsys, monkeypatch, arguments, code, message):
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
        ("a.toml", "x = ", "invalid TOML: Invalid value (at "),
        ("a.yaml", "x: [1", "invalid YAML: while parsing a flow sequence"),
        ("a.json", "{", "invalid JSON: Expecting property name"),
        ("a.yaml", "- 1", "expected a table of settings (name and value), found [1]\n"),
        ("a.yaml", "", "expected a table of settings (name and value), found None\n"),
        ("a.txt", "", "expected a file that ends in .toml, .yaml, .yml, .json\n"),
        ("a.toml", "[trainer]", "unknown setting 'trainer'; did you mean 'training'?"),
        ("a.toml", "output = 'x'\ndata = 3", "data: expected a table of settings, got 3\n"),
        (
            "a.toml",
            "output = 'x'\n[training]\nepoch = 3",
            "unknown setting 'training.epoch'; did you mean 'training.epochs'?",
        ),
        ("a.toml", "x = 'caf\xe9'", "expected UTF-8"),
        (
            "a.toml",
            "output = 'x'\n[data]\ntrain = 'y'\n[training]\nepochs = 0",
            "training.epochs: expected an integer of at least 1, got 0\n",
        ),
        ("a.toml", "output = 'x'", "data.train is missing; expected the path of the file with the"),
    ],
)
def test_errors_about_configuration_files(tmp_path, capsys, name, text, message):
    (tmp_path / name).write_bytes(text.encode("latin-1"))
    assert main(["train", str(tmp_path / name)]) == 1
    assert capsys.readouterr().err.startswith(f"bcrf: error: {tmp_path}/{name}: {message}")


def test_settings_without_a_file(tmp_path, capsys, monkeypatch):
    write_config(tmp_path)
    monkeypatch.chdir(tmp_path)
    settings = ["--training.epochs", "1", "--model.width=16", "--model.score_width", "8"]
    assert main(["train", "--output", "new", "--data.train", "train.conllu", *settings]) == 0
    assert capsys.readouterr().out.startswith("new: 46 sentences; ")
    with pytest.raises(SystemExit) as exit:
        main(["train", "--output", "new"])
    assert exit.value.code == 2
    assert "error: --data.train is missing; expected the path of" in capsys.readouterr().err


def test_a_dev_file_without_mentions_is_a_warning_before_the_first_epoch(tmp_path):
    train_file, dev = tmp_path / "train.conll", tmp_path / "dev.conll"
    train_file.write_text("Ada B-PER\nsaw O\n\n")
    dev.write_text("Ada O\nsaw O\n\n")
    data = {"dev": str(dev), "task": "ner"}
    values = small_config(tmp_path / "run", train_file)
    events = train(Config.from_dict({**values, "data": values["data"] | data}))
    with pytest.warns(UserWarning, match=f"^{dev}: has no mentions, so precision"):
        assert isinstance(next(events), Started)
    events.close()


def test_ill_formed_labels_are_a_warning_if_training_is_not_strict(tmp_path):
    file = tmp_path / "train.conll"
    file.write_text("Ada\tI-PER\n\nsaw\tO\nTurin\tB-LOC\n\nBob\tI-PER\n\n")
    parts = {"data": {"task": "ner", "strict": False}, "training": {"epochs": 1}}
    config = tmp_path / "config.json"
    config.write_text(json.dumps(small_config(tmp_path / "run", file, **parts)))
    rest = (
        "the scheme that fits the file best. One sentence of the file is ill-formed; they are read "
        "as conlleval does: a label that cannot continue a mention begins a new one\n"
    )
    for command in (("train", config), ("evaluate", tmp_path / "run", file)):
        warning = bcrf(*command).stderr.splitlines(keepends=True)[0]
        assert warning.startswith(f"bcrf: warning: {file}:4: 'B-LOC' after 'O'")
        assert warning.endswith(rest)


def test_the_options_are_the_fields_of_the_dataclasses():
    """The options are read from the source files, because importing the classes imports torch."""

    def fields(kind: type, prefix: str = "") -> Iterator[tuple[str, object, object]]:
        types = get_type_hints(kind)
        for field in dataclasses.fields(kind):
            if dataclasses.is_dataclass(types[field.name]):
                yield from fields(types[field.name], f"{prefix}{field.name}.")
            else:
                missing = field.default is dataclasses.MISSING
                default = MISSING if missing else field.default
                yield prefix + field.name, types[field.name], default

    settings = [setting for group in read_settings() for setting in group.settings]
    assert [(s.name, s.type, s.default) for s in settings] == list(fields(Config))
    assert [s.name for s in settings if not s.help] == []
    shown = [group.title for group in read_settings()] + [setting.help for setting in settings]
    assert not [text for text in shown if "TaggerModel" in text]
    assert read_task_defaults() == {task: recipe(task) for task in TASKS}


@pytest.mark.skipif(os.name != "posix", reason="there are no such terminals")
def test_a_terminal_shows_a_labelled_bar(tmp_path):
    """The bar shows epoch, loss, steps of the whole run, remaining time, and the dev evaluation."""
    config = write_config(tmp_path, training={"epochs": 3})
    dev = f"--data.dev={tmp_path}/train.conllu"
    shown, _ = at_terminal("train", config, dev, stdout_too=True)
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown)
    steps = 12 * 3
    assert "reading the data" in text
    assert re.search(rf"epoch \d/3  loss \d+\.\d{{3}} \S+ \d+/{steps} 0:00:\d\d", text)
    assert re.search(r"epoch \d/3  tagging 46 dev sentences ", text)
    assert re.search(r"epoch 3/3  loss \d+\.\d{4}  accuracy ", text)
    assert not re.search(rf" {steps}/{steps} [\d:]+ [\d:]+ left", text)


def test_the_progress_bar_shows_the_running_mean_of_the_loss():
    shown = []
    display = TrainingDisplay(lambda text, done, total: shown.append((text, done, total)))
    display.show(Started("run", 2, 9, 0, 3, 5, 99, "cpu", 1, 2, 4, 3, None))
    for step, loss in enumerate((10.0, 30.0), start=1):
        display.show(Step(3, step, 2, loss, 0.1, 1, 4))
    display.show(Step(4, 1, 2, 11.0, 0.1, 1, 4))
    assert shown == [  # epochs 1 and 2 were trained by an earlier process
        ("epoch 3/4  loss 10.000", 1, 4),
        ("epoch 3/4  loss 11.000", 2, 4),
        ("epoch 4/4  loss 11.000", 3, 4),
    ]


def test_epoch_lines_name_the_best_epoch_and_fit_a_terminal(capsys):
    display = TrainingDisplay(lambda *_: None)
    epoch = Epoch(100, 100, 1234.5678, "accuracy", 0.91434, {}, 0, True, 99_000.0, 999.94, 5.0)
    display.show(epoch)
    display.show(dataclasses.replace(epoch, improved=False))
    display.show(dataclasses.replace(epoch, score=None))
    lines = capsys.readouterr().out.splitlines()
    start, score = "epoch 100/100  loss 1234.5678", "  accuracy 91.43 %"
    assert lines == [
        f"{start}{score}  time 99999.9 s  best so far",
        f"{start}{score}  time 99999.9 s",
        f"{start}  time 99999.9 s",
    ]
    assert max(map(len, lines)) <= 80


def test_resuming_a_finished_run_says_so(tmp_path, capsys):
    config = write_config(tmp_path, training={"epochs": 3})
    assert main(["train", str(config)]) == 0
    *_, model, commands = capsys.readouterr().out.splitlines()
    assert main(["train", str(config), "--resume"]) == 0
    run = tmp_path / "run"
    assert capsys.readouterr().out.splitlines() == [
        f"{run} is finished (3 of 3 epochs); raise --training.epochs to continue",
        model,
        commands,
    ]


def test_resuming_a_run_that_stopped_early_says_so(tmp_path, capsys):
    settings = {"epochs": 50, "patience": 1}
    config = write_config(tmp_path, training=settings, data={"dev": str(tmp_path / "train.conllu")})
    assert main(["train", str(config)]) == 0
    *_, last, model, commands = capsys.readouterr().out.splitlines()
    assert model.endswith("(early stopping)")
    found = re.match(r"epoch (\d+)/50 ", last)
    assert found is not None
    # More epochs would not continue it either.
    for more in ([], ["--training.epochs", "60"]):
        assert main(["train", str(config), "--resume", *more]) == 0
        epochs = 60 if more else 50
        assert capsys.readouterr().out.splitlines() == [
            f"{tmp_path / 'run'} is finished (early stopping after {found[1]} of {epochs} epochs)",
            model,
            commands,
        ]


def test_threads(tmp_path):
    config = write_config(tmp_path, training={"epochs": 1})
    for threads in (1, 3):
        bcrf("train", config, "--overwrite", "--threads", str(threads))
        first = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[0]
        assert json.loads(first)["threads"] == threads


def test_a_missing_file(tmp_path, capsys):
    assert main(["train", str(tmp_path / "a.toml")]) == 1
    assert capsys.readouterr().err == f"bcrf: error: {tmp_path}/a.toml: No such file or directory\n"
    with pytest.raises(UserError, match="expected a file that ends in"):
        read_config(str(tmp_path))


def test_deep_merge_overrides_nested_settings():
    lower = {"a": 1, "b": {"c": 2, "d": 3}, "e": {"f": 4}}
    upper = {"b": {"d": 5}, "e": 6, "g": {"h": 7}}
    assert deep_merge(lower, upper) == {"a": 1, "b": {"c": 2, "d": 5}, "e": 6, "g": {"h": 7}}
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
