"""What a system is: a name, its settings, and closures that do the work once."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any, Literal

from torch import Tensor

from ..cases import PAIRS, Problem

__all__ = ["DecodeCall", "Floor", "LossCall", "System", "brief"]

LossCall = Callable[[], tuple[Tensor, Sequence[Tensor | None]]]
"""Loss summed over the batch, and its gradients: by the unary scores, then by the transitions."""

Floor = Callable[[], Tensor]
"""Something to compare times with; its result is not looked at."""

DecodeCall = Callable[[], Any]
"""Tags [B, n] in the system's own form (a tensor or nested lists)."""


@dataclass(frozen=True)
class System:
    """A competitor.

    Args:
        name: as the tables show it.
        role: whether it is one of ours, a peer, or a floor that solves nothing.
        settings: how it is called, in words.
        loss, decode: prepare a problem, outside of the clock, and return what is timed.
        pairs: the transitions that it takes.
        family: whose loss it computes, for the check: "crf", "bregman", ...; "" is not checked.
        exact: whether it claims to find a best sequence.
        package: the distribution whose version is shown.
        cannot: "loss", "decode" or a kind of transitions -> why it is not measured there.
        limit: why a problem is out of reach, or None.
    """

    name: str
    role: Literal["ours", "peer", "floor"]
    settings: str
    loss: Callable[[Problem], LossCall | Floor] | None = None
    decode: Callable[[Problem], DecodeCall] | None = None
    pairs: tuple[str, ...] = PAIRS
    family: str = "crf"
    exact: bool = True
    package: str | None = None
    cannot: Mapping[str, str] = field(default_factory=dict)
    limit: Callable[[Problem, str], str | None] | None = None

    @property
    def version(self) -> str:
        if self.package is None:
            return ""
        try:
            return metadata.version(self.package)
        except metadata.PackageNotFoundError:
            return "not installed"

    def prepare(self, problem: Problem, task: str) -> Callable[[], Any] | str | None:
        """What to time, or why it cannot be; None where nobody would expect it."""
        name = "loss" if task == "loss" else "decode"
        make = self.loss if name == "loss" else self.decode
        if make is None:
            return self.cannot.get(name)
        if problem.pairs not in self.pairs:
            return self.cannot.get(problem.pairs, f"takes no {problem.pairs} transitions")
        if self.limit and (reason := self.limit(problem, name)):
            return reason
        try:
            return make(problem)
        except Exception as error:
            return brief(error)


def brief(error: BaseException | str) -> str:
    """One line of an error, without the paths of this machine."""
    text = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
    for place in (sys.prefix, sys.base_prefix, os.getcwd(), os.path.expanduser("~")):
        if len(place) > 1:
            text = text.replace(place, "...")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return (lines[0] if lines else text)[:300]
