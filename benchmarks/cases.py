"""What is measured: shapes, scores and tasks, as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

import bcrf

__all__ = ["CASES", "LINEAR", "PAIRS", "PENALTY", "QUICK", "TASKS", "Case", "Problem", "make"]

Pairs = Literal["shared", "per-pair"]

PAIRS: tuple[Pairs, ...] = ("shared", "per-pair")

TASKS: dict[str, str] = {
    "loss": "loss + gradient",
    "peaked": "decoding, peaked chains (gold path + 5)",
    "normal": "decoding, N(0, 1) chains",
}

PENALTY = -1e4
"""What stands for -inf in systems that know no constraints."""


@dataclass(frozen=True)
class Case:
    """B sentences of n words, all of full length (not every system has masks), T tags."""

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
        """Size of the arc tensor [B, n-1, T, T]."""
        return self.batch * (self.length - 1) * self.tags**2

    def structure(self) -> bcrf.Structure | None:
        if not self.constraints:
            return None
        labels = [f"{prefix}-{kind}" for kind in range(self.tags // 4) for prefix in "BIES"]
        return bcrf.Structure.from_labels(labels, "BIES")


CASES: dict[str, Case] = {
    case.name: case
    for case in (
        Case(32, 30, 17),
        Case(32, 64, 17),
        Case(64, 120, 9),
        Case(8, 512, 9),
        Case(1, 30, 17),
        Case(4, 2048, 17),
        Case(32, 40, 64, constraints=True),
    )
}
QUICK = ("1x30x17", "32x30x17")
LINEAR = (Case(4, 256, 17), Case(4, 2048, 17))


@dataclass(frozen=True, eq=False)
class Problem:
    """Scores of one case, a gold sequence for each sentence, and constraints."""

    unary: Tensor
    transitions: Tensor
    tags: Tensor
    structure: bcrf.Structure | None = None

    @property
    def pairs(self) -> Pairs:
        return "shared" if self.transitions.dim() == 2 else "per-pair"

    @property
    def sizes(self) -> tuple[int, int, int]:
        batch, length, tags = self.unary.shape
        return batch, length, tags

    def leaves(self, penalised: bool = False) -> list[Tensor]:
        """Fresh unary scores and transitions to differentiate by, for one system alone."""
        scores = self.penalised() if penalised else (self.unary, self.transitions)
        return [x.detach().clone().requires_grad_() for x in scores]

    def chain(
        self, unary: Tensor | None = None, transitions: Tensor | None = None
    ) -> bcrf.LinearChain:
        """The problem for our solvers; constraining it is part of every measured call."""
        chain = bcrf.LinearChain(
            self.unary if unary is None else unary,
            self.transitions if transitions is None else transitions,
        )
        return chain if self.structure is None else chain.constrain(self.structure)

    def penalised(self) -> tuple[Tensor, Tensor]:
        """Scores with `PENALTY` for what the constraints forbid, for those that know none."""
        if self.structure is None:
            return self.unary, self.transitions
        chain = self.chain()
        assert chain.transitions is not None
        return chain.unary.clamp(min=PENALTY), chain.transitions.clamp(min=PENALTY)

    def double(self) -> Problem:
        return Problem(self.unary.double(), self.transitions.double(), self.tags, self.structure)


def make(case: Case, pairs: Pairs, task: str = "loss", seed: int = 0) -> Problem:
    """N(0, 1) scores in float32; peaked ones have 5 more along the gold path.

    Gold sequences are random; with constraints, best paths of other scores, which are legal.
    """
    generator = torch.Generator().manual_seed(seed)
    n, t = case.length, case.tags

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    matrices = (t, t) if pairs == "shared" else (case.batch, n - 1, t, t)
    unary, transitions = normal(case.batch, n, t), normal(*matrices)
    structure = case.structure()
    tags = torch.randint(t, (case.batch, n), generator=generator)
    if structure is not None:
        other = Problem(normal(case.batch, n, t), torch.zeros(t, t), tags, structure)
        tags = bcrf.viterbi(other.chain(), backend="torch")[1]
    if task == "peaked":
        unary = unary.scatter_add(-1, tags.unsqueeze(-1), torch.full((case.batch, n, 1), 5.0))
    return Problem(unary, transitions, tags, structure)
