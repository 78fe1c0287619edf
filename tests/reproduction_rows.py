"""Rows of logs, as the report reads them, without any run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from reproduction import Results, report
from tests.reproduction_cases import experiment_set

PLACE = ("pos", "", "0", "english")


def evaluated(score: float, ill_formed: int = 0) -> dict[str, Any]:
    return {"score": score, "scores": {}, "ill_formed": ill_formed, "agreement": 1.0, "same": 1.0}


def row(
    table: str = "pos",
    objective: str = "crf",
    seed: int = 0,
    corpus: str = "english",
    variant: str = "",
    network: str = "0",
    ill_formed: int = 0,
    dev: float = 90.0,
    **scores: float,
) -> dict[str, Any]:
    """A row of a log, with these test scores by decoder (dashes as underscores)."""
    names = {"mean_field_": "mean_field-", "bregman_": "bregman-", "certified_": "certified-"}
    decoders = {}
    for key, score in scores.items():
        name = key
        for before, after in names.items():
            name = name.replace(before, after)
        name = name.replace("_relaxed", "-relaxed").replace("_mbr", "-mbr")
        decoders[name] = evaluated(score / 100, ill_formed)
    return {
        "table": table,
        "corpus": corpus,
        "network": network,
        "variant": variant,
        "objective": objective,
        "seed": seed,
        "edition": "UD r2.15",
        "python": "3.11.0",
        "torch": "2.13.0",
        "machine": {"device": "cpu", "cpu": "Abacus", "cores": 2, "threads": 1},
        "training": {"sentences": 1234, "dev": [dev / 200, dev / 100], "best_epoch": 2},
        "evaluations": {"test": {"sentences": 50, "tokens": 500, "decoders": decoders}},
    }


def timed(source: str = "pos", ratio: float = 2.0, **changes: Any) -> dict[str, Any]:
    def backend(methods: list[str], scale: float) -> dict[str, Any]:
        base, *rest = methods
        times = {base: 0.8 * scale} | dict.fromkeys(rest, 0.8 * scale / ratio)
        return {name: {"median": t, "low": t, "high": t, "rounds": 3} for name, t in times.items()}

    training, decoding = (
        {"tokens": 9, "torch": backend(methods, 1.0), "auto": backend(methods, 0.25)}
        for methods in (
            ["crf", "mean_field-10", "bregman-10"],
            ["viterbi", "bregman-10", "mean_field-10"],
        )
    )
    return {
        "table": "timing",
        "source": source,
        "corpus": "english",
        "network": "0",
        "device": "cpu",
        "threads": 1,
        "load": 0.25,
        "python": "3.11.0",
        "torch": "2.13.0",
        "machine": {"device": "cpu", "cpu": "Abacus", "cores": 2, "threads": 1},
        "weights": "trained",
        "batches": 8,
        "training": training,
        "decoding": decoding,
    } | changes


def results(rows: list[dict[str, Any]]) -> Results:
    tables = ("pos", "segmentation", "partial", "timing", "analysis")
    return Results({name: [r for r in rows if r["table"] == name] for name in tables})


def page(tmp_path: Path, rows: list[dict[str, Any]], template: str, **changes: Any) -> str:
    """The page made from these rows and this template, with some tables changed."""
    file = tmp_path / "template.md"
    file.write_text(template)
    return report(experiment_set(tmp_path, **changes), results(rows), file, "page")
