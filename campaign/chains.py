"""Random chains at scales 1e-30 to 1e30: native, torch and naive against float64.

What has to hold is in `tests/scale_checks.py`. A failure names the seed: `check(seed)` repeats it.
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

from .tally import Tally

CHAINS = 2000
SAMPLE = 150


def run(sample: bool) -> Tally:
    tally = Tally()
    for seed in range(SAMPLE if sample else CHAINS):
        try:
            check(seed, tally)
        except Exception as error:  # whatever it is, the other chains are tried too
            tally.fail(f"seed {seed}: {type(error).__name__}: {error}")
    return tally


def check(seed: int, tally: Tally | None = None) -> None:
    """Try a random family, and the decoders, on a random chain."""
    tally = Tally() if tally is None else tally
    rng = random.Random(seed)
    case, small, described = draw(rng)
    family = rng.choice(FAMILIES)
    reference = solver_of(family, "torch")
    exact = expected(reference, case._replace(chain=case.chain.double()))
    near = is_well_conditioned(reference, case, exact)
    tally.count("chains")
    tally.count("chains without near-ties", near)
    wrong = []
    for backend in backends_of(family, small):
        found = answers(solver_of(family, backend), case)
        tally.count("comparisons")
        wrong += [
            f"{family}, {backend}: {said}" for said in problems(family, found, exact, case, near)
        ]
    wrong += decoder_problems(case, small)
    for said in wrong:
        tally.fail(f"seed {seed} ({described}): {said}")


def draw(rng: random.Random) -> tuple[Case, bool, str]:
    """A chain with gold tags, whether it is small enough for the naive kernels, and its kind."""
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
