"""A folder of experiments whose runs take a second, on the sample corpora of the library."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import bcrf
from bcrf.tagger.training import Event
from reproduction import ExperimentSet, JobMessage, RunContext, Selection, run_jobs

SAMPLES = Path(bcrf.__file__).parent / "samples"

SMALL: dict[str, dict[str, Any]] = {
    "model": {"width": 16, "score_width": 8, "heads": 2, "hidden": 16},
    "optimizer": {"learning_rate": 0.02},
    "training": {"epochs": 2, "batch": 64, "device": "cpu"},
}

POS: dict[str, Any] = {
    "kind": "accuracy",
    "title": "Tagging",
    "short_title": "POS",
    "task": "pos",
    "seeds": [0, 1],
    "objectives": ["unstructured", "crf", "mean_field", "bregman"],
    "decoders": ["viterbi", "mean_field-K", "bregman-K", "bregman-K-half", "certified-K"],
    "iterations": [5, 10],
    **SMALL,
    "networks": {
        "0": {"title": "no layers", "model": {"layers": 0}},
        "1": {"extra": True, "model": {"layers": 1}},
    },
    "corpora": {
        "english": {
            "train": "english-train.conllu",
            "dev": "english-dev.conllu",
            "test": "english-dev.conllu",
        },
        "klingon": {"train": "tlh-train.conllu", "dev": "tlh-dev.conllu", "test": ["tlh", "tlh2"]},
    },
    "paper": [
        {
            "network": "0",
            "corpora": ["english", "klingon"],
            "rows": [["crf", "viterbi", 91.3, 90.0], ["crf", "bregman-10", 91.2, 90.0]],
        },
    ],
}

SEGMENTATION: dict[str, Any] = {
    **POS,
    "title": "Segmentation",
    "short_title": "Segmentation",
    "task": "segmentation",
    "decoders": ["viterbi", "mean_field-K", "bregman-K", "bregman-K-relaxed", "certified-K"],
    "corpora": {
        "chinese": {
            "train": "chinese-train.conllu",
            "dev": "chinese-dev.conllu",
            "test": "chinese-dev.conllu",
        }
    },
    "paper": [],
}

PARTIAL: dict[str, Any] = {
    **POS,
    "title": "Partial",
    "short_title": "Partial NER",
    "task": "ner",
    "objectives": ["crf", "bregman"],
    "variants": {
        "exclusive": {"data": {"partial": True}},
        "literal": {"seeds": [0], "data": {"partial": True, "partial_reading": "literal"}},
    },
    "corpora": {
        "english": {
            "train": "english-ner-train.conll",
            "dev": "english-ner-dev.conll",
            "test": "english-ner-dev.conll",
        }
    },
    "paper": [],
}

TIMING: dict[str, Any] = {
    "kind": "timing",
    "title": "Times",
    "training": ["pos", "partial"],
    "decoding": ["pos"],
    "objectives": ["crf", "mean_field-10", "bregman-10"],
    "decoders": ["viterbi", "mean_field-10", "bregman-10"],
    "backends": ["torch", "auto"],
    "batch": 8,
    "batches": 2,
    "rounds": 3,
    "scaling": {"batch": 2, "length": 4, "lengths": [4, 6], "tag": 3, "tags": [2, 3]},
    "paper": [
        {
            "measure": "training",
            "table": "pos",
            "network": "0",
            "corpora": ["english"],
            "rows": [["bregman-10", 6.1]],
        }
    ],
}

ANALYSIS: dict[str, Any] = {
    "kind": "analysis",
    "title": "Projections",
    "sources": ["pos", "segmentation"],
    "objectives": ["crf"],
    "seeds": [0],
    "sentences": 7,
    "iterations": [1, 10, 200],
}

# Changes of POS: a network of the paper that was not run, and a smaller one that replaces it.
STAND_IN: dict[str, Any] = {
    "networks": {
        **POS["networks"],
        "large": {"title": "large", "not_run": "too slow", "model": {"layers": 2}},
        "small": {"title": "small", "extra": True, "stands_in_for": "large"},
    },
    "paper": [
        *POS["paper"],
        {"network": "large", "corpora": ["english"], "rows": [["crf", "viterbi", 95.0]]},
    ],
}

TABLES = {
    "pos": POS,
    "segmentation": SEGMENTATION,
    "partial": PARTIAL,
    "timing": TIMING,
    "analysis": ANALYSIS,
}

TEMPLATE = """# Results

{{ source }}
{{ scoreboard }}
{{ paper pos }}
{{ ours pos }}
{{ others pos }}
{{ temperatures pos }}
{{ choice pos }}
{{ repair }}
{{ figure iterations-pos }}
{{ figure curves }}
{{ timing timing }}
{{ figure scaling }}
{{ figure errors }}
"""

APPENDIX = """# Appendix

{{ findings }}
{{ compared }}
{{ runs }}
{{ machines }}
{{ rows pos }}
{{ ill-formed segmentation }}
{{ analysis analysis }}
"""


def tables(**changes: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the tables, with some values changed."""
    found = copy.deepcopy(TABLES)
    for name, values in changes.items():
        found[name] |= values
    return found


def write_folder(folder: Path, **changes: dict[str, Any]) -> Path:
    """Write a folder of experiments for the command. TOML values are written as JSON."""
    place = folder / "experiments"
    place.mkdir(exist_ok=True)
    for name, values in tables(**changes).items():
        (place / f"{name}.toml").write_text(_toml(values), encoding="utf-8")
    (place / "template.md").write_text(TEMPLATE, encoding="utf-8")
    (place / "appendix.md").write_text(APPENDIX, encoding="utf-8")
    return place


def experiment_set(folder: Path, **changes: dict[str, Any]) -> ExperimentSet:
    return ExperimentSet.from_dicts(folder / "experiments", tables(**changes))


def run(
    folder: Path, which: ExperimentSet, table: str, selection: Selection | None = None
) -> list[Event | JobMessage]:
    """Run the jobs of a table."""
    context = RunContext(which.experiments, SAMPLES, folder / "runs", "cpu")
    jobs = which.jobs(table, selection or Selection(), context)
    return list(run_jobs(jobs, which.log(table)))


def messages(events: list[Event | JobMessage]) -> list[tuple[str, str]]:
    return [(event.kind, event.text) for event in events if isinstance(event, JobMessage)]


def _toml(values: dict[str, Any]) -> str:
    """Top-level keys, whose values are inline: TOML's lists and strings are those of JSON."""
    return "".join(f"{key} = {_inline(value)}\n" for key, value in values.items())


def _inline(value: Any) -> str:
    if isinstance(value, dict):
        inner = ", ".join(f"{json.dumps(k)} = {_inline(v)}" for k, v in value.items())
        return f"{{ {inner} }}"
    if isinstance(value, list):
        return f"[{', '.join(map(_inline, value))}]"
    return json.dumps(value)
