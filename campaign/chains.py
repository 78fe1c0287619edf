"""Solve random chains at scales 1e-30 to 1e30 on all backends, and compare with float64.

`tests/scale_checks.py` defines the conditions that must hold. A failure names its seed, and
`check(seed)` repeats it.
"""

from __future__ import annotations

import random

import torch

from tests.comparing import problem
from tests.scale_checks import (
    FAMILIES,
    Case,
    answers,
    backends_of,
    decoder_problems,
    expected,
    is_well_conditioned,
    label,
    problems,
    solver_of,
)

from .outcome import PartOutcome

__all__ = ["check", "run"]

CHAINS = 2000
SAMPLE = 150


def run(sample: bool) -> PartOutcome:
    outcome = PartOutcome()
    for seed in range(SAMPLE if sample else CHAINS):
        try:
            check(seed, outcome)
        except Exception as error:  # record the failure, and go on with the other chains
            outcome.fail(f"seed {seed}: {type(error).__name__}: {error}")
    return outcome


def check(seed: int, outcome: PartOutcome | None = None) -> None:
    """Check one random solver and the decoders on a random chain."""
    outcome = PartOutcome() if outcome is None else outcome
    rng = random.Random(seed)
    case, small, described = draw(rng)
    family = rng.choice(FAMILIES)
    reference = solver_of(family, "torch")
    exact = expected(reference, case._replace(chain=case.chain.double()))
    near = is_well_conditioned(reference, case, exact)
    outcome.count("chains")
    outcome.count("chains without near-ties", near)
    wrong = []
    for backend in backends_of(family, small):
        found = answers(solver_of(family, backend), case)
        outcome.count("comparisons")
        wrong += [
            f"{family}, {backend}: {said}" for said in problems(family, found, exact, case, near)
        ]
    wrong += decoder_problems(case, small)
    for said in wrong:
        outcome.fail(f"seed {seed} ({described}): {said}")


def draw(rng: random.Random) -> tuple[Case, bool, str]:
    """Return a chain with gold tags, whether the naive kernels support it, and a description."""
    small = rng.random() < 0.2
    longest = 4 if small else rng.choice([3, 7, 8, 12, 16, 21])
    batch = rng.randint(1, 3) if small else rng.choice([1, 3, 8])
    lengths = [rng.choice([0, 1, 2, 3, longest, longest - 1, longest]) for _ in range(batch)]
    num_tags = rng.randint(1, 3) if small else rng.randint(1, 20)
    kind = rng.choice(["none", "shared", "per_pair"])
    dtype = rng.choice([torch.float32, torch.float64])
    removed, scale = rng.choice([0.0, 0.0, 0.4]), 10 ** rng.uniform(-30, 30)
    chain = problem(rng.getrandbits(32), lengths, num_tags, kind, dtype, removed, scale)
    described = f"{lengths} x {num_tags}, {kind}, {dtype}, {removed} removed, scale {scale:.1g}"
    return label(chain, rng.getrandbits(16)), small, described
