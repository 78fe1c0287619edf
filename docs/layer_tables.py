"""Write the tables of docs/which-layer.md from the logs of the benchmark and of the experiments.

`python docs/layer_tables.py` replaces the text between `<!-- NAME -->` and `<!-- end -->`, and the
name of the benchmark's run. The run is the one that docs/benchmarks.md shows.
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "which-layer.md"
BENCHMARKS = ROOT / "docs" / "benchmarks.md"

# How both pages name the command and the run of the benchmark.
SOURCE = re.compile(r"`make bench[^`]*`, run ([0-9]{8}-[0-9]{6})")

SHAPES = ["32x30x17", "32x64x17", "4x2048x17", "32x40x64-BIES"]
LOSSES = {
    "exact CRF (`ForwardBackward()`)": "crf",
    "Bregman (`Bregman(10)`)": "bregman-10",
    "mean field (`MeanField(10)`)": "mean field-10",
    "softmax (`Unstructured()`)": "unstructured",
    "pytorch-crf": "pytorch-crf",
}
DECODERS = {
    "Viterbi": "viterbi",
    "certified, 10 projections": "certified-10",
    "Bregman, 10 projections, best tag per position": "bregman-10 MBR",
    "mean field, 10 updates, best tag per position": "mean field-10 MBR",
    "softmax, best tag per position": "unstructured MBR",
    "pytorch-crf": "pytorch-crf",
}
LAUNCHES = {
    "exact CRF, forward-backward": "crf: loss + gradient",
    "exact CRF, `ForwardBackward(parallel=True)`": "crf scan: loss + gradient",
    "Bregman, 10 projections": "bregman-10: loss + gradient",
    "mean field, 10 updates": "mean field-10: loss + gradient",
    "pytorch-crf": "pytorch-crf: loss + gradient",
    "a loop over positions with `logsumexp`": "eager loop: loss + gradient",
}

# Corpus, table, network, variant; each family is decoded as its objective suggests.
CORPORA = [
    ("parts of speech, English-EWT, no layers", "pos", "english", "0", ""),
    ("parts of speech, English-EWT, 2 layers", "pos", "english", "2", ""),
    ("segmentation and tags, Chinese-GSD, no layers", "segmentation", "chinese", "0", ""),
    ("segmentation and tags, Japanese-GSD, no layers", "segmentation", "japanese", "0", ""),
    ("entities, UNER Chinese, no layers", "ner", "uner_chinese", "0", ""),
    ("entities, WNUT-17, MiniLM", "ner", "wnut17", "minilm", ""),
    ("the same, partial labels, UNER Chinese", "ner-partial", "uner_chinese", "0", "exclusive"),
    ("the same, partial labels, WNUT-17", "ner-partial", "wnut17", "minilm", "exclusive"),
]
OWN_DECODER = {
    "crf": "viterbi",
    "bregman": "bregman-10",
    "mean_field": "mean_field-10",
    "unstructured": "unstructured",
}


def shown_run() -> re.Match[str]:
    """Return the first match of `SOURCE` in docs/benchmarks.md: its group 1 is the run's name."""
    found = SOURCE.search(BENCHMARKS.read_text(encoding="utf-8"))
    if found is None:
        raise ValueError(f"{BENCHMARKS}: expected '`make bench ...`, run YYYYMMDD-HHMMSS'")
    return found


def rows(path: Path) -> Iterator[dict[str, Any]]:
    for line in path.read_text(encoding="utf-8").splitlines():
        yield json.loads(line)


def markdown(header: list[str], body: list[list[str]]) -> str:
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *body]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def duration(seconds: float) -> str:
    value, unit = (seconds * 1e6, "µs") if seconds < 1e-3 else (seconds * 1e3, "ms")
    return f"{value:.3g} {unit}"


def speed_table(run: str, task: str, systems: dict[str, str]) -> str:
    """Median times of one thread with shared transitions."""
    found = {
        (row["system"], row["case"]): duration(row["median"])
        for row in rows(ROOT / "benchmarks" / "results" / "speed.jsonl")
        if row["run"] == run and row["row"] == "speed" and "median" in row
        if (row["task"], row["pairs"], row["threads"]) == (task, "shared", 1)
    }
    body = [[name, *(found[system, shape] for shape in SHAPES)] for name, system in systems.items()]
    return markdown(["", *SHAPES], body)


def launch_table() -> str:
    """Kernel launches of torch operations, from the last finished run of `benchmarks.gpu`."""
    log = list(rows(ROOT / "benchmarks" / "results" / "gpu.jsonl"))
    run = [row["run"] for row in log if row["row"] == "end"][-1]
    found = {
        (row["system"], row["length"]): f"{row['launches']:,}"
        for row in log
        if row["run"] == run and row["row"] == "launches" and "launches" in row
    }
    body = [[name, found[system, 32], found[system, 256]] for name, system in LAUNCHES.items()]
    return markdown(["loss + gradient", "n = 32", "n = 256"], body)


def accuracy_table() -> str:
    """Test scores: means and standard deviations over seeds, for the corpora that were run."""
    body = []
    for name, table, *group in CORPORA:
        scores: dict[str, dict[int, float]] = {objective: {} for objective in OWN_DECODER}
        for row in rows(ROOT / "experiments" / "results" / f"{table}.jsonl"):
            objective, own = row["objective"], OWN_DECODER.get(row["objective"])
            if [row["corpus"], row["network"], row["variant"]] == group and own is not None:
                decoders = row["evaluations"]["test"]["decoders"]
                if own in decoders:  # a later row may hold added decoders only
                    scores[objective][row["seed"]] = 100 * decoders[own]["score"]
        cells = [mean_and_deviation(list(found.values())) for found in scores.values()]
        if any(scores.values()):
            body.append([name, *cells])
    return markdown(["", "exact CRF", "Bregman", "mean field", "softmax"], body)


def mean_and_deviation(scores: list[float]) -> str:
    """A dash without scores; a single score has no deviation."""
    if not scores:
        return "–"
    deviation = f" ± {statistics.stdev(scores):.2f}" if len(scores) > 1 else ""
    return f"{statistics.fmean(scores):.2f}{deviation}"


def updated(text: str) -> str:
    """The page with fresh tables."""
    source = shown_run()
    run = source[1]
    text = SOURCE.sub(lambda _: source[0], text)
    tables = {
        "loss": speed_table(run, "loss", LOSSES),
        "decoding": speed_table(run, "peaked", DECODERS),
        "launches": launch_table(),
        "accuracy": accuracy_table(),
    }
    for name, table in tables.items():
        pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        text = pattern.sub(lambda match, table=table: f"{match[1]}{table}\n{match[2]}", text)
    return text


if __name__ == "__main__":
    PAGE.write_text(updated(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
