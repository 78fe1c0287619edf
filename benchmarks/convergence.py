"""How fast the projections converge: the paper's algorithm, relaxation and gauges.

    python -m benchmarks.convergence            # measures, logs, and writes docs/convergence.md
    python -m benchmarks.convergence --report   # writes the page from the log

Error = max over positions of half the L1 distance of the tag marginals to convergence, mean over
the chains (unary N(0, 1), one N(0, 0.5^2) matrix per adjacent pair, n = 30, float64). One JSON line
per case and setting; cases that are in the log already are not run again.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

import bcrf

ROOT = Path(__file__).parent
LOG = ROOT / "results" / "convergence.jsonl"
PAGE = ROOT.parent / "docs" / "convergence.md"

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


def chains(case: dict[str, Any], count: int, seed: int) -> bcrf.LinearChain:
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
    """Setting -> mean error at each number of iterations."""
    total = {name: [0.0] * len(iterations) for name in settings}
    for seed in range(num_chains // batch):
        chain = chains(case, batch, seed)
        converged = bcrf.Bregman(10_000, tolerance=1e-9, relaxation=1.5)(chain)
        if not bool((converged.residual <= 1e-9).all()):
            raise RuntimeError(f"no convergence in {case}, seed {seed}")
        for name in total:
            for i, k in enumerate(iterations):
                marginals = bcrf.Bregman(k, **SETTINGS[name])(chain).tag_marginals
                distance = (marginals - converged.tag_marginals).abs().sum(-1) / 2
                total[name][i] += float(distance.amax(1).sum()) / num_chains
    return total


def measure(num_chains: int) -> None:
    LOG.parent.mkdir(exist_ok=True)
    done = [row["case"] for row in rows()]
    for case in CASES:
        case = {**case, "chains": num_chains}
        if case in done:
            continue
        found = errors(case, num_chains)
        with LOG.open("a") as log:
            for name, values in found.items():
                row = {"case": case, "setting": name, "k": list(ITERATIONS), "error": values}
                log.write(json.dumps({**row, "torch": torch.__version__}) + "\n")
        print(case, {name: f"{values[8]:.1e}" for name, values in found.items()}, flush=True)


def rows() -> Iterator[dict[str, Any]]:
    if LOG.exists():
        yield from map(json.loads, LOG.read_text().splitlines())


HEADER = """# Convergence of the projections

Made by `python -m benchmarks.convergence` from the log
[`benchmarks/results/convergence.jsonl`](../benchmarks/results/convergence.jsonl).

Error after k iterations: the maximum over positions of half the L1 distance between tag marginals
and converged tag marginals, averaged over {chains} chains. Unary scores N(0, 1), one transition
matrix N(0, 0.5²) per adjacent pair, n = 30, float64. "Paper" is `Bregman.paper(k)`: plain
projections, all unary scores in the incoming arcs (gauge "right"), its order of positions, tag
marginals from the outgoing mass. The other rows start with positions 1, 3, ... and take the
geometric mean of incoming and outgoing mass; they differ in gauge and relaxation. The last row is
the default, `Bregman(k)`. Errors below 1e-5 count as equal and are shown as 0.

On hard chains (constraints, low temperature) relaxation pays most; on easy ones, which plain
projections solve in a few steps, it costs a little: there "half, plain" is best. {behind}
"""


def report() -> str:
    text = []
    cases: dict[str, list[dict[str, Any]]] = {}
    for row in rows():
        cases.setdefault(json.dumps(row["case"]), []).append(row)
    for key, group in cases.items():
        case = json.loads(key)
        text.append(
            f"\n## {title(case)}\n\n"
            f"| setting, k = | {' | '.join(map(str, ITERATIONS))} |\n"
            f"|---|{'---:|' * len(ITERATIONS)}"
        )
        for row in group:
            cells = map(show, row["error"])
            text.append(f"| {row['setting']} | {' | '.join(cells)} |")
    chains_run = {json.loads(key)["chains"] for key in cases}
    header = HEADER.format(
        chains=" / ".join(map(str, sorted(chains_run))), behind=behind(cases.values())
    )
    return header + "\n".join(text) + "\n"


def title(case: dict[str, Any]) -> str:
    constraints = "BIES constraints" if case["constraints"] == "BIES" else "no constraints"
    return f"{constraints}, T = {case['tags']}, 1/τ = {case['inverse_temperature']}"


def behind(groups: Iterable[list[dict[str, Any]]]) -> str:
    """Where the default is behind the paper's setting, in words."""
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
        return "Nowhere is the default behind the paper's setting."
    return f"The default is behind the paper's setting at: {'; '.join(places)}."


def show(error: float) -> str:
    if error < FLOOR:
        return "0"
    digits = max(0, 1 - math.floor(math.log10(error)))
    return f"{error:.{digits}f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--chains", type=int, default=200, help="a multiple of 20")
    parser.add_argument("--report", action="store_true", help="only write the page")
    options = parser.parse_args()
    if not options.report:
        measure(options.chains)
    PAGE.write_text(report())
    print(f"wrote {PAGE.name}")


if __name__ == "__main__":
    main()
