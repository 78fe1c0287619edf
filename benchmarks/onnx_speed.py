"""Measure exported taggers in onnxruntime: Bregman decoding without a loop against Viterbi.

    python -m benchmarks.onnx_speed            # measure, log, and write docs/onnx-speed.md
    python -m benchmarks.onnx_speed --report   # write the page from the log

The taggers have the default network of their task and random weights, on which the time does not
depend. The log has a row for each task and length; a case that is in the log is not measured again.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch

from bcrf.tagger import Tagger, Vocabularies
from bcrf.tagger.data import FeatureVocabulary
from bcrf.tagger.export import export_onnx
from bcrf.tagger.files import JsonlLog
from bcrf.tagger.nn import ModelConfig, TaggerModel
from bcrf.tagger.tasks import Ner, Pos, Segmentation, Task
from measurement.machine import hardware, provenance, software
from measurement.markdown import fill_template, table
from measurement.timer import SamplingPlan, interleave

__all__ = ["DECODERS", "LENGTHS", "TASKS", "main", "measure", "random_tagger", "report"]

ROOT = Path(__file__).parent
LOG = ROOT / "results" / "onnx_speed.jsonl"
PAGE = ROOT.parent / "docs" / "onnx-speed.md"
TEMPLATE = ROOT / "onnx_speed_template.md"

LENGTHS = (32, 128, 512, 2048)
DECODERS = ("unstructured", "viterbi", "bregman-10-relaxed")
"""The first one only takes the best tag of each word: its time is that of the network."""

_UPOS = [f"TAG{number}" for number in range(17)]
TASKS: dict[str, Callable[[], Task]] = {
    "ner": lambda: Ner(("O", *(f"{p}-{kind}" for kind in ("A", "B", "C", "D") for p in "BI"))),
    "pos": lambda: Pos(tuple(_UPOS)),
    "segmentation": lambda: Segmentation(tuple(f"{p}-{tag}" for tag in _UPOS for p in "BIES")),
}


def random_tagger(name: str) -> Tagger:
    """Return a tagger for a task with the default network and random weights."""
    from bcrf.tagger.training import recipe

    task = TASKS[name]()
    settings = recipe(name, {})["model"]
    config = ModelConfig.from_dict(settings)
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = [[a + b + c for a in letters for b in letters for c in letters[:5]]]
    kind = "character" if name == "segmentation" else "word"
    vocabularies = Vocabularies(features=FeatureVocabulary.build(words, kind))
    torch.manual_seed(0)
    model = TaggerModel(config, vocabularies.sizes(len(task.labels)), task.structure).eval()
    with torch.no_grad():  # at initialisation, transitions are 0
        for parameter in (model.scorer.start, model.scorer.end, model.scorer.transitions):
            assert parameter is not None
            parameter.normal_()
    return Tagger(model, task, vocabularies)


def measure(task: str, lengths: tuple[int, ...], budget: float) -> list[dict[str, Any]]:
    """Return a row for each length: the times of all decoders on one sentence of random features.

    The time is the CPU time of the process, which has one thread: other programs do not count.
    """
    tagger = random_tagger(task)
    features = tagger.vocabularies.features
    assert features is not None
    with tempfile.TemporaryDirectory() as folder:
        sessions = {}
        for decoder in DECODERS:
            path = Path(folder, f"{decoder}.onnx")
            export_onnx(tagger, path, decoder=decoder)
            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = options.inter_op_num_threads = 1
            sessions[decoder] = onnxruntime.InferenceSession(path, options)
    rows = []
    generator = np.random.default_rng(0)
    for n in lengths:
        ids = generator.integers(0, len(features), (1, n, features.width))
        feed = {"features": ids.astype(np.int32), "lengths": np.array([n], np.int32)}
        if task == "segmentation":
            feed["breaks"] = np.zeros((1, n), bool)
        calls = {
            name: lambda session=session, feed=feed: session.run(["tags"], feed)
            for name, session in sessions.items()
        }
        found = interleave(calls, SamplingPlan(budget=budget, sample=0.05), clock=time.process_time)
        for timing in found.values():
            if timing.error is not None:
                raise timing.error
        times = {name: timing.numbers for name, timing in found.items()}
        rows.append({"task": task, "tags": len(tagger.labels), "n": n, "seconds": times})
        print(task, n, {name: f"{1e3 * x['median']:.2f} ms" for name, x in times.items()})
    return rows


def run(budget: float) -> None:
    """Measure and log the cases that are not in the log."""
    log = JsonlLog(LOG)
    done = {(row["task"], row["n"]) for row in log.rows()}
    origin = {
        **provenance("benchmarks.onnx_speed"),
        **software(),
        "onnxruntime": onnxruntime.__version__,
        "cpu": hardware()["cpu"],
    }
    for task in TASKS:
        lengths = tuple(n for n in LENGTHS if (task, n) not in done)
        if lengths:
            log.append(*({**row, **origin} for row in measure(task, lengths, budget)))


def report() -> str:
    """Return the text of the page, made from the log."""
    rows = JsonlLog(LOG).rows()
    about = rows[-1]
    machine = f"{about['cpu']}; onnxruntime {about['onnxruntime']}, torch {about['torch']}"
    return fill_template(
        TEMPLATE,
        {
            "machine": lambda _: f"{machine}, {about['date']}",
            "table": lambda _: _table(rows),
            "losses": lambda _: _losses(rows),
        },
    )


def _ratios(row: dict[str, Any]) -> tuple[float, float]:
    """Return time of Viterbi / time of Bregman: of the whole tagger, and of decoding alone."""
    network, viterbi, bregman = (row["seconds"][name]["median"] for name in DECODERS)
    return viterbi / bregman, (viterbi - network) / max(bregman - network, 1e-9)


def _table(rows: list[dict[str, Any]]) -> str:
    head = ["task, tags", "n", "network, ms", "with Viterbi", "with Bregman", "ratio", "decoders"]
    body = []
    for row in rows:
        whole, decoders = _ratios(row)
        times = (f"{1e3 * row['seconds'][name]['median']:.1f}" for name in DECODERS)
        name = f"{row['task']}, {row['tags']}"
        body.append([name, str(row["n"]), *times, f"{whole:.2f}", f"{decoders:.2f}"])
    return table(head, body)


def _losses(rows: list[dict[str, Any]]) -> str:
    """Return a sentence that says where the tagger with Bregman decoding is slower."""
    places = [f"{row['task']}, n = {row['n']}" for row in rows if _ratios(row)[0] < 1]
    if not places:
        return "The tagger with Bregman decoding is nowhere slower than the one with Viterbi."
    slower = "The tagger with Bregman decoding is slower than the one with Viterbi at"
    return f"{slower}: {'; '.join(places)}."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--budget", type=float, default=3.0, help="CPU seconds for each task and length"
    )
    parser.add_argument(
        "--report", action="store_true", help="write the page from the log, without measuring"
    )
    options = parser.parse_args()
    if not options.report:
        run(options.budget)
    PAGE.write_text(report(), encoding="utf-8")
    print(f"wrote {PAGE.name}")


if __name__ == "__main__":
    main()
