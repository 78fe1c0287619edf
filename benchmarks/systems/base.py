"""Define `System`: a solver, decoder or layer that the benchmark times."""

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
"""A function that returns the loss of the batch and its gradients: unary scores, transitions."""

Floor = Callable[[], Tensor]
"""A function that is timed only for comparison. Its result is ignored."""

DecodeCall = Callable[[], Any]
"""A function that returns the tags [B, n], as a tensor or as lists."""


@dataclass(frozen=True)
class System:
    """A solver, decoder or layer that is timed.

    Args:
        name: the name of the system in tables.
        role: one of ours, a peer (another library), or a floor, which solves nothing.
        settings: text that says how the system is called.
        loss, decode: functions that prepare a problem and return the function to time. The
            preparation is not timed.
        pairs: kinds of transitions that the system accepts.
        family: family of the loss, such as "crf" or "bregman". It selects the reference with which
            the loss is compared; "": the loss is not verified.
        exact: whether its tags must be a best sequence.
        package: distribution whose version is shown.
        cannot: "loss", "decode" or a kind of transitions -> why it is not measured.
        limit: function that returns why a problem is too large, or None.
        masked: whether the system gets the mask of the problem, with sentences of different
            lengths.
        cpu_only: whether the system cannot use tensors on a GPU.
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
    masked: bool = False
    cpu_only: bool = False

    @property
    def version(self) -> str:
        if self.package is None:
            return ""
        try:
            return metadata.version(self.package)
        except metadata.PackageNotFoundError:
            return "not installed"

    def prepare(self, problem: Problem, task: str) -> Callable[[], Any] | str | None:
        """Return the function to time, or the reason why there is none.

        None means that the system is not meant for the task, so that no reason is needed.
        """
        name = "loss" if task == "loss" else "decode"
        make = self.loss if name == "loss" else self.decode
        if make is None:
            return self.cannot.get(name)
        if problem.pairs not in self.pairs:
            return self.cannot.get(problem.pairs, f"takes no {problem.pairs} transitions")
        if self.cpu_only and problem.device.type != "cpu":
            return "runs on the CPU only"
        if self.limit and (reason := self.limit(problem, name)):
            return reason
        try:
            return make(problem)
        except Exception as error:
            return brief(error)


def brief(error: BaseException | str) -> str:
    """Return the first line of an error, without paths of this machine."""
    text = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
    for place in (sys.prefix, sys.base_prefix, os.getcwd(), os.path.expanduser("~")):
        if len(place) > 1:
            text = text.replace(place, "...")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return (lines[0] if lines else text)[:300]
