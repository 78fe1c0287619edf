"""Define the benchmark problems: shapes, random scores and tasks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

import bcrf

__all__ = [
    "CASES",
    "LINEAR",
    "MAIN",
    "PAIRS",
    "PENALTY",
    "QUICK",
    "TASKS",
    "BenchmarkCase",
    "Problem",
    "make_problem",
]

Pairs = Literal["shared", "per-pair"]

PAIRS: tuple[Pairs, ...] = ("shared", "per-pair")

TASKS: dict[str, str] = {
    "loss": "loss + gradient",
    "peaked": "decoding, peaked chains (gold path + 5)",
    "normal": "decoding, N(0, 1) chains",
}

PENALTY = -1e4
"""The score of forbidden tags and transitions in systems that do not support constraints."""


@dataclass(frozen=True)
class BenchmarkCase:
    """A shape: B sentences of n words with T tags.

    All sentences have length n, because not every system supports masks. The layers are also
    measured with a mask (`Problem.mask`).
    """

    batch: int
    length: int
    tags: int
    constraints: bool = False

    @property
    def name(self) -> str:
        rules = "-BIES" if self.constraints else ""
        return f"{self.batch}x{self.length}x{self.tags}{rules}"

    @property
    def arcs(self) -> int:
        """The number of arc scores, B (n-1) T²."""
        return self.batch * (self.length - 1) * self.tags**2

    def structure(self) -> bcrf.Structure | None:
        if not self.constraints:
            return None
        labels = [f"{prefix}-{kind}" for kind in range(self.tags // 4) for prefix in "BIES"]
        return bcrf.Structure.from_labels(labels, "BIES")


CASES: dict[str, BenchmarkCase] = {
    case.name: case
    for case in (
        BenchmarkCase(32, 30, 17),
        BenchmarkCase(32, 64, 17),
        BenchmarkCase(64, 120, 9),
        BenchmarkCase(8, 512, 9),
        BenchmarkCase(1, 30, 17),
        BenchmarkCase(4, 2048, 17),
        BenchmarkCase(32, 40, 64, constraints=True),
    )
}
MAIN = ("32x64x17",)
"""The shape at which most requirements are judged."""

QUICK = ("1x30x17", "32x30x17")
LINEAR = (BenchmarkCase(4, 256, 17), BenchmarkCase(4, 2048, 17))


@dataclass(frozen=True, eq=False)
class Problem:
    """The scores, gold tags and constraints of one case.

    Args:
        unary: [B, n, T].
        transitions: [T, T] ("shared") or [B, n-1, T, T] ("per-pair").
        tags: gold tags [B, n].
        masked_tags: gold tags [B, n] of the masked sentences.
        structure: constraints, if any.
    """

    unary: Tensor
    transitions: Tensor
    tags: Tensor
    masked_tags: Tensor
    structure: bcrf.Structure | None = None

    @property
    def pairs(self) -> Pairs:
        return "shared" if self.transitions.dim() == 2 else "per-pair"

    @property
    def lengths(self) -> Tensor:
        """Lengths [B] of the masked sentences, from n for the first sentence down to n / 2."""
        batch, length, _ = self.sizes
        return torch.linspace(length, length / 2, batch, device=self.device).round().long()

    @property
    def mask(self) -> Tensor:
        """Boolean mask [B, n] of sentences with these lengths."""
        return torch.arange(self.sizes[1], device=self.device) < self.lengths.unsqueeze(1)

    @property
    def device(self) -> torch.device:
        return self.unary.device

    @property
    def sizes(self) -> tuple[int, int, int]:
        batch, length, tags = self.unary.shape
        return batch, length, tags

    def leaves(self, penalised: bool = False, masked: bool = False) -> list[Tensor]:
        """Return copies of the unary scores and transitions, with `requires_grad` set."""
        scores = self.penalised(masked) if penalised else (self.unary, self.transitions)
        return [x.detach().clone().requires_grad_() for x in scores]

    def chain(
        self,
        unary: Tensor | None = None,
        transitions: Tensor | None = None,
        lengths: Tensor | None = None,
    ) -> bcrf.LinearChain:
        """Return the chain for our solvers. Every measured call builds and constrains it."""
        chain = bcrf.LinearChain(
            self.unary if unary is None else unary,
            self.transitions if transitions is None else transitions,
            lengths,
        )
        return chain if self.structure is None else chain.constrain(self.structure)

    def penalised(self, masked: bool = False) -> tuple[Tensor, Tensor]:
        """Return unary scores and transitions with `PENALTY` for forbidden tags and transitions."""
        if self.structure is None:
            return self.unary, self.transitions
        chain = self.chain(lengths=self.lengths if masked else None)
        assert chain.transitions is not None
        return chain.unary.clamp(min=PENALTY), chain.transitions.clamp(min=PENALTY)

    def double(self) -> Problem:
        """Return the same problem in float64."""
        return replace(self, unary=self.unary.double(), transitions=self.transitions.double())

    def to(self, device: torch.device) -> Problem:
        """Return the same problem on `device`."""
        return Problem(
            self.unary.to(device),
            self.transitions.to(device),
            self.tags.to(device),
            self.masked_tags.to(device),
            None if self.structure is None else self.structure.to(device),
        )


def make_problem(case: BenchmarkCase, pairs: Pairs, task: str = "loss", seed: int = 0) -> Problem:
    """Return a random problem with N(0, 1) scores in float32.

    The task "peaked" adds 5 to the unary scores of the gold tags. Gold tags are random. If there
    are constraints, the gold tags are the best path of other random scores, because that path
    obeys the constraints.
    """
    generator = torch.Generator().manual_seed(seed)
    n, t = case.length, case.tags

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    matrices = (t, t) if pairs == "shared" else (case.batch, n - 1, t, t)
    unary, transitions = normal(case.batch, n, t), normal(*matrices)
    structure = case.structure()
    tags = torch.randint(t, (case.batch, n), generator=generator)
    masked_tags = tags
    if structure is not None:
        other = Problem(normal(case.batch, n, t), torch.zeros(t, t), tags, tags, structure)
        tags = bcrf.viterbi(other.chain(), backend="torch")[1]
        masked_tags = bcrf.viterbi(other.chain(lengths=other.lengths), backend="torch")[1]
        masked_tags = masked_tags.clamp(min=0)  # padding is -100, which not every system accepts
    if task == "peaked":
        unary = unary.scatter_add(-1, tags.unsqueeze(-1), torch.full((case.batch, n, 1), 5.0))
    return Problem(unary, transitions, tags, masked_tags, structure)
