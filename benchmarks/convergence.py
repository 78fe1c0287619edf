"""Measure how fast the projections converge: the paper's algorithm, relaxation and gauges.

    python -m benchmarks.convergence            # measure, log, and write docs/convergence.md
    python -m benchmarks.convergence --report   # write the page from the log

The error of a chain is the maximum over positions of half the L1 distance between its tag marginals
and the converged ones. It is averaged over chains with unary scores N(0, 1), one transition matrix
N(0, 0.5^2) per adjacent pair, n = 30, float64. The log has a row for each case and setting; a case
that is in the log is not measured again.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

import bcrf
from bcrf.tagger.files import JsonlLog
from measurement.machine import provenance, software
from measurement.markdown import fill_template, table

__all__ = ["CASES", "FLOOR", "ITERATIONS", "errors", "main", "measure", "random_chains", "report"]

ROOT = Path(__file__).parent
LOG = ROOT / "results" / "convergence.jsonl"
PAGE = ROOT.parent / "docs" / "convergence.md"
TEMPLATE = ROOT / "convergence_template.md"

LENGTH = 30
ITERATIONS = range(2, 21)
FLOOR = 1e-5
"""Errors below this count as equal."""

CASES = [
    {"tags": tags, "constraints": constraints, "inverse_temperature": inverse}
    for constraints in ("BIES", "none")
    for inverse in (10, 1)
    for tags in (16, 64)
]

SETTINGS: dict[str, dict[str, Any]] = {
    "paper": {"relaxation": 1.0, "gauge": "right", "first": 2, "marginals": "outgoing"},
    "right, plain": {"relaxation": 1.0, "gauge": "right"},
    "right, 1.3": {"relaxation": 1.3, "gauge": "right"},
    "right, ramp": {"relaxation": "ramp", "gauge": "right"},
    "half, plain": {"relaxation": 1.0},
    "half, 1.3": {"relaxation": 1.3},
    "half, ramp (ours)": {},
}


def random_chains(case: dict[str, Any], count: int, seed: int) -> bcrf.LinearChain:
    """Return `count` random chains of a case, with scores divided by its temperature."""
    generator = torch.Generator().manual_seed(seed)
    tags = case["tags"]
    unary = torch.randn(count, LENGTH, tags, generator=generator, dtype=torch.float64)
    shape = (count, LENGTH - 1, tags, tags)
    pairs = 0.5 * torch.randn(shape, generator=generator, dtype=torch.float64)
    chain = bcrf.LinearChain(unary, pairs)
    if case["constraints"] == "BIES":
        labels = [f"{prefix}-{kind}" for kind in range(tags // 4) for prefix in "BIES"]
        chain = chain.constrain(bcrf.Structure.from_labels(labels, "BIES"))
    return chain / (1 / case["inverse_temperature"])


def errors(
    case: dict[str, Any],
    num_chains: int,
    settings: Iterable[str] = SETTINGS,
    iterations: Sequence[int] = ITERATIONS,
    batch: int = 20,
) -> dict[str, list[float]]:
    """Return the mean error at each number of iterations, by setting."""
    total = {name: [0.0] * len(iterations) for name in settings}
    for seed in range(num_chains // batch):
        chain = random_chains(case, batch, seed)
        converged = bcrf.Bregman(10_000, tolerance=1e-9, relaxation=1.5)(chain)
        if not bool((converged.residual <= 1e-9).all()):
            raise RuntimeError(f"the projections did not converge: {case}, seed {seed}")
        for name in total:
            for i, k in enumerate(iterations):
                marginals = bcrf.Bregman(k, **SETTINGS[name])(chain).tag_marginals
                distance = (marginals - converged.tag_marginals).abs().sum(-1) / 2
                total[name][i] += float(distance.amax(1).sum()) / num_chains
    return total


def measure(num_chains: int) -> None:
    """Measure and log the cases that are not in the log."""
    log = JsonlLog(LOG)
    done = [row["case"] for row in log.rows()]
    origin = {**provenance("benchmarks.convergence"), **software()}
    for case in CASES:
        case = {**case, "chains": num_chains}
        if case in done:
            continue
        found = errors(case, num_chains)
        about = {"case": case, "k": list(ITERATIONS), **origin}
        log.append(*({**about, "setting": s, "error": values} for s, values in found.items()))
        print(case, {name: f"{values[8]:.1e}" for name, values in found.items()}, flush=True)


def report() -> str:
    """Return the text of the page, made from the log."""
    cases: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in JsonlLog(LOG).rows():
        cases.setdefault(tuple(row["case"].values()), []).append(row)
    counts = sorted({row["case"]["chains"] for group in cases.values() for row in group})
    return fill_template(
        TEMPLATE,
        {
            "chains": lambda _: " / ".join(map(str, counts)),
            "worse": lambda _: worse_than_paper(cases.values()),
            "tables": lambda _: "\n".join(map(_section, cases.values())),
        },
    )


def _section(group: list[dict[str, Any]]) -> str:
    body = [[row["setting"], *map(show, row["error"])] for row in group]
    head = ["setting, k =", *map(str, ITERATIONS)]
    return f"## {title(group[0]['case'])}\n\n{table(head, body)}"


def title(case: dict[str, Any]) -> str:
    """Return a title that describes a case."""
    constraints = "BIES constraints" if case["constraints"] == "BIES" else "no constraints"
    return f"{constraints}, T = {case['tags']}, 1/τ = {case['inverse_temperature']}"


def worse_than_paper(groups: Iterable[list[dict[str, Any]]]) -> str:
    """Return a sentence that says where the default has a larger error than the paper's method."""
    places = []
    for group in groups:
        rows_by_name = {row["setting"]: row for row in group}
        ours, paper = rows_by_name["half, ramp (ours)"], rows_by_name["paper"]
        case = ours["case"]
        places += [
            f"{title(case)}, k = {k} ({a:.1e} against {b:.1e})"
            for k, a, b in zip(ours["k"], ours["error"], paper["error"], strict=True)
            if max(a, FLOOR) > max(b, FLOOR)
        ]
    if not places:
        return "The error of the default is nowhere larger than that of the paper's setting."
    listed = "; ".join(places)
    return f"The error of the default is larger than that of the paper's setting at: {listed}."


def show(error: float) -> str:
    """Format an error with two digits; return "0" if it is below `FLOOR`."""
    if error < FLOOR:
        return "0"
    digits = max(0, 1 - math.floor(math.log10(error)))
    return f"{error:.{digits}f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--chains", type=int, default=200, help="number of chains, a multiple of 20"
    )
    parser.add_argument(
        "--report", action="store_true", help="write the page from the log, without measuring"
    )
    options = parser.parse_args()
    if not options.report:
        measure(options.chains)
    PAGE.write_text(report())
    print(f"wrote {PAGE.name}")


if __name__ == "__main__":
    main()
