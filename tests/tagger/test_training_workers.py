"""Two processes that share each batch learn what one process learns."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from bcrf.tagger import Tagger
from bcrf.tagger.training import Config, Step, train
from tests.tagger_cases import config, epochs, run

ROOT = Path(__file__).resolve().parents[2]

WORKER = """
import json, os, sys
from pathlib import Path
from bcrf.tagger.training import Config, train

events = list(train(Config.from_dict(json.loads(sys.argv[1])), resume="resume" in sys.argv))
Path(sys.argv[2], f"events-{os.environ['RANK']}").write_text(str(len(events)))
threads = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
Path(sys.argv[2], f"threads-{os.environ['RANK']}").write_text(" ".join(threads))
"""


def run_workers(
    settings: Config, folder: Path, *options: str, prelude: str = ""
) -> subprocess.CompletedProcess[str]:
    script = folder / "worker.py"
    script.write_text(prelude + WORKER)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    return subprocess.run(
        [*command, str(script), json.dumps(settings.to_dict()), str(folder), *options],
        cwd=ROOT,
        env=os.environ
        | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "error:::bcrf.tagger.training.workers"},
        capture_output=True,
        text=True,
    )


def logged(settings: Config, event: str) -> list[dict]:
    text = Path(settings.output, "metrics.jsonl").read_text()
    return [line for line in map(json.loads, text.splitlines()) if line["event"] == event]


@pytest.mark.slow
@pytest.mark.skipif(not torch.distributed.is_available(), reason="needs torch.distributed")
def test_two_processes_learn_what_one_learns(tmp_path):
    # Eleven sentences, five at a time: the last batch has one, so one process gets none.
    changes = {
        "model": {"characters": "cnn", "character_width": 4, "objective": "bregman"},
        "training": {"batch": 5, "epochs": 3, "log_every": 1},
        "optimizer": {"clip": 3.0},
    }
    alone = config(tmp_path / "alone", **changes)
    events = run(alone)
    steps = [event for event in events if isinstance(event, Step)]
    assert sorted(step.sentences for step in steps[:3]) == [1, 5, 5]

    both = config(tmp_path / "both", **changes)
    done = run_workers(both, tmp_path)
    assert done.returncode == 0, done.stderr
    found = [(line["loss"], line["sentences"], line["tokens"]) for line in logged(both, "step")]
    expected = [(step.loss, step.sentences, step.tokens) for step in steps]
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=0)
    scores = [line["score"] for line in logged(both, "epoch")]
    assert scores == [epoch.score for epoch in epochs(events)]
    assert logged(both, "start")[0]["workers"] == 2
    weights = (Tagger.load(s.output).model.state_dict() for s in (both, alone))
    torch.testing.assert_close(*map(dict, weights), rtol=1e-4, atol=1e-6)

    # Only the first process prints; the other one has ended, too.
    counts = [int((tmp_path / f"events-{rank}").read_text()) for rank in (0, 1)]
    assert counts == [len(events), 0]
    for rank in (0, 1):  # torch.distributed does not disturb the exit of the process
        assert "gloo" not in (tmp_path / f"threads-{rank}").read_text()
    assert sorted(p.name for p in Path(both.output).iterdir()) == ["best", "last", "metrics.jsonl"]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.mark.slow
@pytest.mark.skipif(not torch.distributed.is_available(), reason="needs torch.distributed")
def test_two_machines_learn_what_one_learns(tmp_path):
    """The command of docs/guides/clusters.md; both machines are this one."""
    changes = {"training": {"batch": 5, "epochs": 2, "log_every": 1}}
    alone = config(tmp_path / "alone", **changes)
    steps = [event for event in run(alone) if isinstance(event, Step)]

    both = config(tmp_path / "both", **changes)
    file = tmp_path / "config.yaml"
    file.write_text(json.dumps(both.to_dict()))  # JSON is YAML
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1"]
    address = ["--master-addr=127.0.0.1", f"--master-port={free_port()}"]
    machines = [
        subprocess.Popen(
            [*torchrun, f"--node-rank={rank}", *address, "-m", "bcrf", "train", str(file)],
            cwd=ROOT,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    messages = [machine.communicate(timeout=300)[1] for machine in machines]
    assert [machine.returncode for machine in machines] == [0, 0], messages
    assert logged(both, "start")[0]["workers"] == 2
    found = [(line["loss"], line["sentences"], line["tokens"]) for line in logged(both, "step")]
    expected = [(step.loss, step.sentences, step.tokens) for step in steps]
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=0)


@pytest.mark.slow
@pytest.mark.skipif(not torch.distributed.is_available(), reason="needs torch.distributed")
def test_two_processes_stop_early_together_and_are_resumed(tmp_path):
    changes = {"training": {"epochs": 40, "patience": 2, "batch": 4}, "model": {"dropout": 0.3}}
    settings = config(tmp_path, **changes)
    done = run_workers(settings, tmp_path)
    assert done.returncode == 0, done.stderr
    (finish,) = logged(settings, "finish")
    assert finish["reason"] == "early stopping"
    before = Path(settings.output, "last", "model.safetensors").read_bytes()
    done = run_workers(settings, tmp_path, "resume")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "events-0").read_text() == "2"  # it has started, and is over
    assert Path(settings.output, "last", "model.safetensors").read_bytes() == before


@pytest.mark.slow
@pytest.mark.skipif(not torch.distributed.is_available(), reason="needs torch.distributed")
def test_processes_with_different_data_are_refused(tmp_path):
    settings = config(tmp_path)
    # Process 1 finds another file under the same name.
    prelude = (
        "import os\n"
        "from bcrf.tagger.training import training_data\n"
        "read = training_data.read\n"
        "training_data.read = lambda *a: list(read(*a))[int(os.environ['RANK']):]\n"
    )
    done = run_workers(settings, tmp_path, prelude=prelude)
    assert done.returncode != 0
    assert "the training data of process 1 differs from that of process 0" in done.stderr


@pytest.mark.slow
@pytest.mark.skipif(not torch.distributed.is_available(), reason="needs torch.distributed")
def test_processes_agree_that_a_gradient_is_not_finite(tmp_path):
    """Only process 1 has such a gradient, in the last step before the second epoch is saved."""
    settings = config(tmp_path)
    prelude = (
        "import os\n"
        "from bcrf.tagger.training.loop import _Run\n"
        "gradients, calls = _Run._compute_gradients, 0\n"
        "def poisoned(self, share, count):\n"
        "    global calls\n"
        "    calls += 1\n"
        "    loss = gradients(self, share, count)\n"
        "    if calls == 6 and os.environ['RANK'] == '1':\n"
        "        self.tagger.model.encoder.table.weight.grad *= float('nan')\n"
        "    return loss\n"
        "_Run._compute_gradients = poisoned\n"
    )
    done = run_workers(settings, tmp_path, prelude=prelude)
    assert done.returncode != 0
    message = "epoch 2, steps 1 to 3: training diverges (a gradient is not finite)"
    assert done.stderr.count(f"FloatingPointError: {message}") == 2
    assert Tagger.load(Path(settings.output, "last")).info["epoch"] == 1


@pytest.mark.slow
@pytest.mark.skipif(not torch.distributed.is_available(), reason="needs torch.distributed")
def test_processes_agree_that_a_folder_is_in_use(tmp_path):
    settings = config(tmp_path)
    first = train(settings)
    next(first)
    done = run_workers(settings, tmp_path)
    assert done.returncode != 0
    assert f"run is in use by another training (process {os.getpid()} on" in done.stderr
    assert "run: the main process cannot write to this folder" in done.stderr
    assert len(list(first)) > 1
