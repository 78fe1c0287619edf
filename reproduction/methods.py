"""Look up the decoders and objectives of the tables by name, with their backends and titles.

The names are those of `bcrf.decoding`, always with the number of iterations K:

- "bregman-K" uses the paper's projections.
- "bregman-K-relaxed" uses the library's projections: the half-split gauge and relaxation.
- "bregman-K-half" uses the half-split gauge without relaxation.

The name of an objective may end in a temperature of training: "bregman-tau0.3".

The name of a decoder that chooses tags one by one may end in "-mbr". Ill-formed tags are then
replaced by the best well-formed tags under the same marginals, instead of by the rule of the task.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from bcrf.chain import LinearChain
from bcrf.decoding import (
    OBJECTIVES,
    PAPER_TEMPERATURE,
    DecodedTags,
    NamedMethod,
    decoder_marginals,
    named_decoder,
    parse_method,
    solver_of,
)
from bcrf.inference import Solver

__all__ = [
    "TEMPERATURE",
    "Method",
    "Objective",
    "agreement",
    "check_decoder",
    "check_objective",
    "decoder",
    "loss_solver",
    "objective_title",
    "tag_marginals",
]

TEMPERATURE = PAPER_TEMPERATURE
"""The temperature of Bregman decoding: 1/tau = 10."""

_DECODERS = (
    "viterbi, certified-K, unstructured[-mbr], mean_field-K[-uniform][-mbr], "
    "bregman-K[-half|-relaxed][-mbr]"
)
_TITLES = {
    "viterbi": "Viterbi",
    "unstructured": "Unstructured",
    "mean_field": "MF",
    "bregman": "BCRF",
    "certified": "certified",
}
_ITERATING = ("mean_field", "bregman", "certified")
_VARIANTS = {"": "", "half": " half-split", "relaxed": " relaxed", "uniform": " uniform start"}


@dataclass(frozen=True)
class Method:
    """A decoder of the tables: its parsed name, and how the tables show it."""

    parsed: NamedMethod

    @classmethod
    def parse(cls, name: str) -> Method:
        """Return the decoder of this name; raise ValueError for other names."""
        return cls(parse_method("decoder", name, _DECODERS))

    @property
    def family(self) -> str:
        return self.parsed.family

    @property
    def iterations(self) -> int | None:
        """The number of iterations; None if the decoder does not iterate."""
        return self.parsed.iterations if self.family in _ITERATING else None

    @property
    def variant(self) -> str:
        """The variant of the Bregman projections."""
        return self.parsed.variant

    @property
    def mbr(self) -> bool:
        """Whether MBR decoding, instead of the rule of the task, repairs ill-formed tags."""
        return self.parsed.repairs

    @property
    def base(self) -> str:
        """The name without "-mbr"."""
        parts = (self.family, self.iterations, self.variant)
        return "-".join(str(part) for part in parts if part not in (None, ""))

    @property
    def ours(self) -> bool:
        """Whether the decoder is an addition of ours that the paper does not have."""
        return self.family == "certified" or self.variant != "" or self.mbr

    @property
    def title(self) -> str:
        """The name in tables and figures."""
        ours = "ours: " if self.ours else ""
        iterations = "" if self.iterations is None else f", {self.iterations} it."
        repair = ", MBR repair" if self.mbr else ""
        title = f"{_TITLES[self.family]}{_VARIANTS[self.variant]}"
        return f"{ours}{title}{iterations}{repair}"


def check_decoder(name: str) -> None:
    """Raise ValueError unless a decoder of the tables has this name."""
    Method.parse(name)


@dataclass(frozen=True)
class Objective:
    """A training objective of the tables: an objective of `bcrf.decoding`, and a temperature.

    The name ends in "-tauX" if the temperature X is not 1: "bregman-tau0.3".
    """

    name: str
    temperature: float = 1.0

    @classmethod
    def parse(cls, name: str) -> Objective:
        """Return the objective of this name; raise ValueError for other names."""
        match = re.fullmatch(r"(?P<name>.+?)-tau(?P<tau>[0-9]*\.?[0-9]+)", name, re.ASCII)
        found = cls(name) if match is None else cls(match["name"], float(match["tau"]))
        if not found.temperature > 0:
            raise ValueError(f"objective {name!r}: the temperature must be positive")
        _ = found.parsed  # raises for an unknown name
        return found

    @property
    def parsed(self) -> NamedMethod:
        """The parsed name of the objective."""
        return parse_method("objective", self.name, OBJECTIVES)

    @property
    def family(self) -> str:
        """The family of the objective, such as "bregman"."""
        return self.parsed.family

    @property
    def order(self) -> tuple[int, str, float]:
        """The place in tables and figures: by family, solver and temperature."""
        return list(_TRAINING_TITLES).index(self.family), self.name, -self.temperature

    @property
    def title(self) -> str:
        """The name in tables and figures."""
        title, parsed = _TRAINING_TITLES[self.family], self.parsed
        if self.name != self.family:
            unit = "projections" if self.family == "bregman" else "updates"
            title += f", {parsed.iterations} {unit}"
            title += f",{_VARIANTS[parsed.variant]}" if parsed.variant else ""
        if self.temperature != 1:
            title += f", τ = {self.temperature:g}"
        return title if title in _TRAINING_TITLES.values() else f"ours: {title}"


_TRAINING_TITLES = {
    "unstructured": "Unstructured training",
    "crf": "CRF training",
    "mean_field": "MF training",
    "bregman": "BCRF training",
}


def check_objective(name: str) -> None:
    """Raise ValueError unless a training objective has this name."""
    Objective.parse(name)


def objective_title(name: str) -> str:
    """Return the title of a training objective in tables."""
    return Objective.parse(name).title


def decoder(name: str, backend: str = "auto") -> Callable[[LinearChain], DecodedTags]:
    """Return the decoder of that name on a backend. Mean field always runs as torch operations."""
    return named_decoder(Method.parse(name).parsed, backend)


def tag_marginals(name: str, chain: LinearChain) -> Tensor:
    """Return the marginals [B, n, T] from which a decoder chooses each tag."""
    return decoder_marginals(Method.parse(name).parsed, chain)


def loss_solver(objective: str, backend: str = "auto") -> Solver:
    """Return the solver of a training objective. Mean field ignores the backend."""
    return solver_of(Objective.parse(objective).parsed, backend)


def agreement(tags: Tensor, reference: Tensor) -> tuple[int, int]:
    """Count the positions at which two taggings agree, and the sentences in which all tags agree.

    Args:
        tags, reference: [B, n], with -100 beyond the length of a sentence.
    """
    same = tags == reference
    inside = reference >= 0
    return int((same & inside).sum()), int(torch.where(inside, same, True).all(1).sum())
