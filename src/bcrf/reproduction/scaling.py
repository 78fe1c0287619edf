"""How long inference alone takes on chains of different lengths and numbers of tags."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..chain import LinearChain
from ..losses import loss
from ..tagging import choose_device
from ..training import Event
from .jobs import Job, Workplace
from .log import Row
from .machine import circumstances, place
from .methods import decoder, loss_solver
from .plans import TimingPlan
from .stopwatch import in_turns, summary

__all__ = ["CHAINS", "ScalingJob"]

CHAINS = "chains"
"""In place of the experiment that other times belong to."""


@dataclass(frozen=True)
class ScalingJob(Job):
    """One size."""

    plan: TimingPlan
    length: int
    tags: int
    workplace: Workplace

    @property
    def key(self) -> dict[str, Any]:
        size = {"length": self.length, "tags": self.tags, "batch": self.plan.scaling.batch}
        return {"table": self.plan.name, "source": CHAINS, **size, **place(self.workplace.device)}

    @property
    def title(self) -> str:
        return f"{self.plan.name}: {self.length} positions, {self.tags} tags"

    @property
    def folder(self) -> Path:
        return self.workplace.output / self.plan.name / f"chains-{self.length}-{self.tags}"

    def is_done(self, row: Row | None) -> bool:
        return row is not None

    def missing(self, row: Row | None) -> str | None:
        return None

    def run(self, row: Row | None) -> Generator[Event, None, Row]:
        yield from ()
        device = choose_device(self.workplace.device)
        plan = self.plan
        unary, pairs, gold = _problem(plan.scaling.batch, self.length, self.tags, device)
        functions: dict[str, Callable[[int], object]] = {}
        for backend in plan.backends:
            for method in plan.objectives:
                functions[f"training {backend} {method}"] = _loss(
                    unary, pairs, gold, method, backend
                )
            for method in plan.decoders:
                functions[f"decoding {backend} {method}"] = _decode(unary, pairs, method, backend)
        found: dict[str, Any] = {}
        for name, seconds in in_turns(functions, 1, plan.rounds, device).items():
            measure, backend, method = name.split(" ")
            found.setdefault(measure, {}).setdefault(backend, {})[method] = summary(seconds)
        return {**circumstances(device), **found}


def _problem(
    batch: int, n: int, tags: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Unary and per-pair scores N(0, 1), and tags."""
    generator = torch.Generator().manual_seed(0)
    unary = torch.randn(batch, n, tags, generator=generator)
    pairs = torch.randn(batch, n - 1, tags, tags, generator=generator)
    gold = torch.randint(tags, (batch, n), generator=generator)
    return unary.to(device), pairs.to(device), gold.to(device)


def _loss(
    unary: torch.Tensor, pairs: torch.Tensor, gold: torch.Tensor, method: str, backend: str
) -> Callable[[int], object]:
    solver = loss_solver(method, backend)

    def step(_: int) -> object:
        scores = [scores.detach().requires_grad_() for scores in (unary, pairs)]
        value = loss(solver, LinearChain(*scores), gold).sum()
        return torch.autograd.grad(value, scores)

    return step


def _decode(
    unary: torch.Tensor, pairs: torch.Tensor, method: str, backend: str
) -> Callable[[int], object]:
    find = decoder(method, backend)
    chain = LinearChain(unary, pairs)
    return lambda _: find(chain)
