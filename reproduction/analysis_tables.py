"""Write the tables of the analysis: error, agreement and certificates of the projections."""

from __future__ import annotations

from typing import Any

from measurement.markdown import table

from .experiment import Experiment
from .methods import TEMPERATURE, objective_title
from .plans import AnalysisPlan
from .results import NOTHING_RUN, Results

__all__ = ["MEASURES", "analysis_tables", "model_title"]

MEASURES = {
    ("error", 1.0): "error of the marginals, τ = 1",
    ("error", TEMPERATURE): "error of the marginals, 1/τ = 10",
    ("agreement", TEMPERATURE): "tokens tagged as by Viterbi, 1/τ = 10, %",
    ("certified", TEMPERATURE): "sentences certified, 1/τ = 10, %",
}
"""Measure and temperature -> title of the table."""


def analysis_tables(
    plan: AnalysisPlan, experiments: dict[str, Experiment], results: Results
) -> str:
    """Return a table of settings and iterations for each model and measure."""
    parts = []
    for row in results.rows[plan.name]:
        parts.append(f"### {model_title(row, experiments)}\n")
        unsettled = max(entry["unsettled"] for entry in row["results"])
        left_out = f"; {unsettled} did not converge and have no errors" if unsettled else ""
        parts.append(f"{row['sentences']} test sentences, {row['tokens']} tokens{left_out}.\n")
        for (measure, temperature), title in MEASURES.items():
            parts.append(_analysis_table(row["results"], measure, temperature, title))
    return "\n".join(parts) or NOTHING_RUN


def model_title(row: dict[str, Any], experiments: dict[str, Experiment]) -> str:
    """Return the title of the model that a row is about."""
    network = experiments[row["source"]].networks[row["network"]].title
    parts = (row["source"], row["corpus"], network, row["variant"])
    place = ", ".join(part for part in parts if part)
    return f"{place}, {objective_title(row['objective'])}, seed {row['seed']}"


def _analysis_table(
    entries: list[dict[str, Any]], measure: str, temperature: float, title: str
) -> str:
    numbers = {
        (entry["setting"], entry["iterations"]): entry[measure]
        for entry in entries
        if entry["temperature"] == temperature
    }
    settings = dict.fromkeys(setting for setting, _ in numbers)
    iterations = sorted({k for _, k in numbers})
    show = _error if measure == "error" else _percent
    body = [[name, *(show(numbers[name, k]) for k in iterations)] for name in settings]
    return table([f"{title}; k =", *map(str, iterations)], body)


def _error(value: float) -> str:
    return "0" if value < 1e-7 else f"{value:.1e}" if value < 1e-3 else f"{value:.4f}"


def _percent(value: float) -> str:
    return f"{100 * value:.1f}"
