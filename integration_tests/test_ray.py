"""Tagging on a Ray cluster that is started on this machine."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli_cases import SENTENCES, bcrf, conllu, small_model

# `connect` has to import ray first, so that Ray listens at the loopback address only.
if importlib.util.find_spec("ray") is None:
    pytest.skip("the extra `ray` is not installed", allow_module_level=True)

from bcrf.ray import ClusterError, ShardFailure, TagBatch, connect, tag_shards
from bcrf.ray.engine import _run, plan_actors
from bcrf.tagger import ModelError
from bcrf.tagger.shards import Shard, ShardOptions, find_shards, read_record

# Ray gives its workers a low priority. On a busy machine, the tests would wait for minutes.
os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112

ROOT = Path(__file__).resolve().parents[1]
WORDS = ["the", "cat", "sees", "a", "dog"]
TAGS = ["DET", "NOUN", "VERB", "DET", "NOUN"]


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return small_model(tmp_path_factory.mktemp("pos"), conllu(*SENTENCES))


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    with connect(None, cpus=2):
        yield


def write_corpus(folder: Path, *counts: int) -> Path:
    """Write shards with consecutive ids; every tenth row is bad."""
    corpus = folder / "corpus"
    corpus.mkdir()
    number = 0
    for shard, count in enumerate(counts):
        with (corpus / f"{shard}.jsonl").open("w") as file:
            for _ in range(count):
                words = WORDS[: 1 + number % 5] if number % 10 else [""]
                file.write(json.dumps({"id": number, "words": words}) + "\n")
                number += 1
    return corpus


def check_results(shards: list[Shard], counts: list[int]) -> None:
    """Check that each row has one result, in order, and that no other files are left."""
    number = 0
    for shard, count in zip(shards, counts, strict=True):
        numbers = range(number, number + count)
        lines = [json.loads(line) for line in Path(shard.output).read_text().splitlines()]
        assert [line["id"] for line in lines] == [n for n in numbers if n % 10]
        assert all(line["tags"] == TAGS[: 1 + line["id"] % 5] for line in lines)
        errors = [json.loads(line) for line in Path(shard.errors).read_text().splitlines()]
        places = [(shard.source, 1 + n - number) for n in numbers if n % 10 == 0]
        assert [(error["file"], error["line"]) for error in errors] == places
        number += count
    out = Path(shards[0].output).parent
    assert not [path for path in out.rglob(".*") if path.name != ".lock"]


def open_files(process: Path) -> Iterator[str]:
    try:
        for link in (process / "fd").iterdir():
            yield os.readlink(link)
    except OSError:
        return


def kill_writer(folder: Path, killed: list[int]) -> None:
    """Kill the first process that has written a part of a result in `folder`."""
    prefix = f"{folder}/."
    while not killed:
        for process in Path("/proc").glob("[0-9]*"):
            number = int(process.name)
            for name in open_files(process) if number != os.getpid() else ():
                is_output = name.startswith(prefix) and not name.endswith(".lock")
                if is_output and os.path.exists(name) and os.path.getsize(name):
                    os.kill(number, signal.SIGKILL)
                    killed.append(number)
                    return
        time.sleep(0.01)


def test_no_row_is_lost_or_doubled_when_an_actor_is_killed(model, cluster, tmp_path):
    counts = [40, 8_000, 40, 0, 40]
    shards = find_shards([f"{write_corpus(tmp_path, *counts)}/*.jsonl"], tmp_path / "out")
    Path(shards[3].errors).parent.mkdir(parents=True)
    killed: list[int] = []
    killer = threading.Thread(target=kill_writer, args=(tmp_path / "out", killed), daemon=True)
    killer.start()
    results = list(tag_shards(model, shards, ShardOptions(), workers=2, device="cpu"))
    assert killed
    assert not [result for result in results if isinstance(result, ShardFailure)]
    assert sorted(shard.source for shard, _ in results) == [shard.source for shard in shards]
    assert [read_record(shard).rows for shard in shards] == counts
    Path(shards[3].errors).touch()  # an empty shard has no bad rows
    check_results(shards, counts)


def test_a_shard_that_cannot_be_read_does_not_stop_the_others(model, cluster, tmp_path):
    shards = find_shards([f"{write_corpus(tmp_path, 5, 5)}/*.jsonl"], tmp_path / "out")
    Path(shards[0].source).unlink()
    failed, done = sorted(
        tag_shards(model, shards, ShardOptions(), workers=1, device="cpu"),
        key=lambda result: isinstance(result, tuple),
    )
    assert failed == ShardFailure(shards[0], f"{shards[0].source}: No such file or directory")
    assert done[1].rows == 5


def test_a_model_that_cannot_be_loaded_stops_the_work(model, cluster, tmp_path):
    shards = find_shards([f"{write_corpus(tmp_path, 5)}/*.jsonl"], tmp_path / "out")
    damaged = tmp_path / "model"
    damaged.mkdir()
    for file in model.iterdir():
        (damaged / file.name).write_bytes(file.read_bytes())
    with (damaged / "model.safetensors").open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\x55")
    with pytest.raises(ModelError, match=r"a worker cannot load the model: .*has been changed"):
        list(tag_shards(damaged, shards, ShardOptions(), workers=1, device="cpu"))


def test_a_shard_that_kills_its_actors_is_given_up(cluster):
    import ray

    # Ray sends a local class to its processes, which cannot import this module.
    class MortalWorker:
        """An actor that dies as the name of its shard says."""

        def __init__(self, dies_early: bool = False) -> None:
            self.dies_early = dies_early

        def load(self) -> None:
            if self.dies_early:
                os._exit(1)

        def tag(self, shard: Shard) -> str:
            if shard.source == "deadly":
                os._exit(1)
            if shard.source == "faulty":
                raise ZeroDivisionError
            return "tagged"

    shards = [Shard(name, "", "", "") for name in ("good", "deadly", "faulty", "fine")]
    mortal = ray.remote(MortalWorker)
    results = list(_run(ray, mortal.remote, shards, 2))
    reasons = {r.shard.source: r.reason for r in results if isinstance(r, ShardFailure)}
    assert sorted(reasons) == ["deadly", "faulty"]
    assert "deadly: 3 workers died while they tagged this shard" in reasons["deadly"]
    assert re.search("(?s)faulty: unexpected error: .*ZeroDivisionError", reasons["faulty"])
    tagged = [result for result in results if not isinstance(result, ShardFailure)]
    assert tagged == [(shards[0], "tagged"), (shards[3], "tagged")]
    with pytest.raises(ClusterError, match="3 workers died while they loaded the model"):
        list(_run(ray, lambda: mortal.remote(dies_early=True), shards, 1))


def test_actors_fit_the_machines():
    machine, gpu_machine = {"CPU": 8.0}, {"CPU": 16.0, "GPU": 2.0}
    assert plan_actors([machine, gpu_machine], 1, "cpu") == (24, 0)
    assert plan_actors([machine, gpu_machine], 3, "cpu") == (2 + 5, 0)
    assert plan_actors([machine, gpu_machine], 1, "auto") == (2, 1)
    assert plan_actors([machine, gpu_machine], 16, "cuda") == (1, 1)
    assert plan_actors([machine, {}], 1, "auto") == (8, 0)
    with pytest.raises(ClusterError, match="no machine of the Ray cluster has a GPU and 1 CPUs"):
        plan_actors([machine], 1, "cuda")
    with pytest.raises(ClusterError, match="no machine of the Ray cluster has 9 CPUs; lower"):
        plan_actors([machine], 9, "auto")
    with pytest.raises(ValueError, match="got 'cuda:1'"):
        plan_actors([gpu_machine], 1, "cuda:1")


def test_the_page_on_clusters_tags_a_dataset(model, cluster, tmp_path, monkeypatch):
    """Run the block of docs/guides/clusters.md that uses Ray Data."""
    counts = [30, 20]
    corpus = write_corpus(tmp_path, *counts)
    page = (ROOT / "docs" / "guides" / "clusters.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```py\n(.*?)```", page, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "en_ewt").symlink_to(model)
    names: dict[str, object] = {}
    exec(compile(block, "clusters.md", "exec"), names)
    written = [
        json.loads(line)
        for file in sorted((tmp_path / "tagged").glob("*.json*"))
        for line in file.read_text().splitlines()
    ]
    assert sorted(line["id"] for line in written) == list(range(sum(counts)))
    for line in written:
        good = line["id"] % 10 != 0
        assert line["tags"] == (TAGS[: 1 + line["id"] % 5] if good else [])
        assert (line["error"] is None) == good
    assert corpus.exists()


def test_batches_of_hugging_face_datasets(model):
    datasets = pytest.importorskip("datasets")
    rows = [{"id": n, "words": WORDS[: 1 + n % 5]} for n in range(30)]
    table = datasets.Dataset.from_list(rows)
    found = table.map(TagBatch(model, device="cpu"), batched=True, batch_size=7)
    assert found.to_list() == [row | {"tags": TAGS[: len(row["words"])]} for row in rows]


def listening_addresses(root: int) -> set[str]:
    """Return the addresses, as the kernel writes them, at which a process tree listens."""
    parents = {
        int(path.parent.name): int(path.read_text().rpartition(")")[2].split()[1])
        for path in Path("/proc").glob("[0-9]*/stat")
    }
    tree = {root}
    while grown := {child for child, parent in parents.items() if parent in tree} - tree:
        tree |= grown
    sockets = {name for number in tree for name in open_files(Path("/proc", str(number)))}
    rows = [
        line.split()
        for table in ("tcp", "tcp6")
        for line in Path("/proc/net", table).read_text().splitlines()[1:]
    ]
    is_listening = "0A"
    return {
        row[1].partition(":")[0]
        for row in rows
        if row[3] == is_listening and f"socket:[{row[9]}]" in sockets
    }


def test_ray_listens_at_the_loopback_address_only(cluster):
    loopback = {"0100007F", "0000000000000000FFFF00000100007F", "0" * 24 + "01000000"}
    found = listening_addresses(os.getpid())
    assert found
    assert found <= loopback


def test_the_command_can_be_terminated_and_continued(model, tmp_path):
    counts = [100, 3_000, 100]
    pattern = f"{write_corpus(tmp_path, *counts)}/*.jsonl"
    out = tmp_path / "out"
    arguments = ["tag", str(model), "--engine", "ray", pattern, "--output", str(out)]
    arguments += ["--workers", "1"]
    process = subprocess.Popen([sys.executable, "-m", "bcrf", *arguments], cwd=ROOT)
    while not (out / "1.jsonl").exists():  # the largest shard is the first one
        assert process.poll() is None
        time.sleep(0.02)
    process.terminate()
    assert process.wait(60) == 143
    first = (out / "1.jsonl").stat().st_ino
    done = bcrf(*arguments)
    shards = find_shards([pattern], out)
    check_results(shards, counts)
    assert (out / "1.jsonl").stat().st_ino == first
    assert re.match(r"tagged [12] shards? .*; finished before: [12] shards?", done.stdout)
    assert "warning: 320 of 3,200 rows are bad" in done.stderr
    assert bcrf(*arguments).stdout.startswith("tagged 0 shards (0 rows, 0 tokens)")
    again = bcrf(*arguments, "--threshold", "0.5", code=1)
    assert "was tagged with threshold = None, which is now 0.5" in again.stderr
