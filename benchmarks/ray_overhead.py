"""Measure what `bcrf tag --engine ray` costs on one machine, compared with plain `bcrf tag`.

python -m benchmarks.ray_overhead --sentences 200000

Both commands tag the same shards with one thread. The time of the plain command is that of the
whole process. The time of Ray begins when Ray has started, and includes the start of the actor, its
import of torch, and loading the model. The CPU time of Ray is that of all its processes. The model
is trained for one epoch on a sample corpus of the library, because the time hardly depends on what
a network has learned; the sentences are those of the sample, repeated.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from importlib import metadata, resources
from pathlib import Path
from typing import Any

from measurement.machine import hardware, load, software

from .log import BenchmarkLog, Row

__all__ = ["main", "process_tree_seconds", "write_shards"]

LOG = Path(__file__).resolve().parent / "results" / "ray.jsonl"
_TICKS = os.sysconf("SC_CLK_TCK")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        "python -m benchmarks.ray_overhead", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--sentences", type=int, default=200_000, metavar="N")
    parser.add_argument("--shards", type=int, default=20, metavar="N")
    parser.add_argument("--rounds", type=int, default=2, metavar="N", help="runs of each command")
    parser.add_argument("--log", type=Path, default=LOG, help="/".join(LOG.parts[-3:]))
    parser.add_argument("--ray", nargs=3, metavar="PATH", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.ray:
        print(json.dumps(_tag_with_ray(*options.ray)))
        return
    log = BenchmarkLog(options.log, "benchmarks.ray_overhead")
    run = datetime.now(timezone.utc).strftime("%Y%m%d-%H%M%S")
    about = {"machine": hardware(), "software": {**software(), "ray": metadata.version("ray")}}
    log.append(run, "start", [{**about, "load": load()}])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = _train(folder)
        tokens = write_shards(folder / "corpus", options.sentences, options.shards)
        size = {"sentences": options.sentences, "shards": options.shards, "tokens": tokens}
        rows = []
        for row in _rounds(folder, model, options.rounds):
            log.append(run, "shards", [{**size, **row}])
            rows.append(row)
    log.append(run, "end", [{"load": load()}])
    for kind in ("wall", "cpu"):
        best = {name: min(r[kind] for r in rows if r["engine"] == name) for name in ENGINES}
        print(
            f"{kind}: plain {best['plain']:.1f} s, Ray {best['ray']:.1f} s "
            f"({best['ray'] / best['plain'] - 1:+.1%}); "
            f"plain {tokens / best['plain']:,.0f} tokens/s"
        )


def write_shards(folder: Path, sentences: int, shards: int) -> int:
    """Write sentences of the sample corpus as JSON lines; return the number of tokens."""
    from bcrf.tagger.data import read

    folder.mkdir()
    sample = resources.files("bcrf") / "samples" / "english-train.conllu"
    source = itertools.cycle([sentence.words for sentence in read(str(sample)) if len(sentence)])
    tokens = 0
    for shard in range(shards):
        numbers = range(shard, sentences, shards)
        with (folder / f"part-{shard:03}.jsonl").open("w", encoding="utf-8") as file:
            for number in numbers:
                words = next(source)
                tokens += len(words)
                file.write(json.dumps({"id": number, "words": words}) + "\n")
    return tokens


def _train(folder: Path) -> Path:
    sample = resources.files("bcrf") / "samples" / "english-train.conllu"
    settings = ["--data.train", str(sample), "--training.epochs", "1"]
    command = [sys.executable, "-m", "bcrf", "train", *settings, "--output", str(folder / "run")]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return folder / "run" / "best"


def _rounds(folder: Path, model: Path, rounds: int) -> Iterator[Row]:
    """Run both commands in turns; the order changes from round to round."""
    outputs = {}
    for number in range(rounds):
        order = list(ENGINES.items())[:: -1 if number % 2 else 1]
        for name, measure in order:
            output = folder / f"{name}-{number}"
            yield {"engine": name, "round": number, **measure(model, folder / "corpus", output)}
            outputs[name] = _joined(output)
            shutil.rmtree(output) if output.is_dir() else output.unlink()
        if outputs["plain"] != outputs["ray"]:
            raise ValueError("the two commands have given different tags")


def _joined(output: Path) -> list[str]:
    files = sorted(output.glob("*.jsonl")) if output.is_dir() else [output]
    return [line for file in files for line in file.read_text(encoding="utf-8").splitlines()]


def _plain(model: Path, corpus: Path, output: Path) -> dict[str, float]:
    files = sorted(map(str, corpus.glob("*.jsonl")))
    options = ["--threads", "1", "--device", "cpu", "--output", str(output)]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    command = [sys.executable, "-m", "bcrf", "tag", str(model), *files, *options]
    subprocess.run(command, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    wall = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"wall": round(wall, 2), "cpu": round(cpu, 2)}


def _ray(model: Path, corpus: Path, output: Path) -> dict[str, float]:
    """Tag with one actor of one thread, in a process of its own."""
    paths = [str(model), str(corpus), str(output)]
    command = [sys.executable, "-m", "benchmarks.ray_overhead", "--ray", *paths]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


ENGINES: dict[str, Any] = {"plain": _plain, "ray": _ray}


def _tag_with_ray(model: str, corpus: str, output: str) -> dict[str, float]:
    from bcrf.ray import ShardFailure, connect, tag_shards
    from bcrf.tagger.shards import ShardOptions, find_shards

    shards = find_shards([f"{corpus}/*.jsonl"], output)
    # Ray gives its workers a low priority; both commands shall have the same one.
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112
    with connect(None, cpus=1):
        cpu = functools.partial(process_tree_seconds, os.getpid())
        start, before = time.perf_counter(), cpu()
        for result in tag_shards(model, shards, ShardOptions(), workers=1, device="cpu"):
            if isinstance(result, ShardFailure):
                raise RuntimeError(result.reason)
            used = cpu() - before  # the actor still runs: Ray's time after it ends is not counted
        wall = time.perf_counter() - start
    return {"wall": round(wall, 2), "cpu": round(used, 2)}


def process_tree_seconds(root: int) -> float:
    """Return the CPU seconds of a process, of its descendants, and of those that have ended."""
    parents: dict[int, int] = {}
    seconds: dict[int, float] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:  # the process has ended
            continue
        number = int(path.parent.name)
        parents[number] = int(fields[1])
        # User and system time, its own and that of its children that have ended.
        seconds[number] = sum(map(int, fields[11:15])) / _TICKS
    total = 0.0
    for number, used in seconds.items():
        ancestor = number
        while ancestor not in (root, 0):
            ancestor = parents.get(ancestor, 0)
        total += used if ancestor == root else 0.0
    return total


if __name__ == "__main__":
    main()
