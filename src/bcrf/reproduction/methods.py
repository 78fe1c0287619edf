"""Decoders and objectives of the tables: by name, with a choice of backend, and as they are shown.

The names are those of `bcrf.nn`, with the number of iterations always given, and one more: between
"bregman-K" (the paper's projections) and "bregman-K-relaxed" (the library's) there is
"bregman-K-half", which has the half-split gauge of the latter, but is not relaxed. Names of
decoders that choose tags one by one may end in "-mbr": where these are ill-formed, the best
well-formed ones by the same marginals are taken, instead of what the task's rule makes of them.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ..chain import LinearChain
from ..decoding import certified_decode, decode
from ..inference import Bregman, Solver, viterbi
from ..nn import training_solver

__all__ = [
    "TEMPERATURE",
    "Decoded",
    "Method",
    "agreement",
    "check_decoder",
    "check_objective",
    "decoder",
    "loss_solver",
    "objective_title",
    "tag_marginals",
]

TEMPERATURE = 0.1
"""Of Bregman decoding: the paper's 1/tau = 10."""

_FORMS = (
    "viterbi, certified-K, unstructured, mean_field-K, bregman-K, bregman-K-half or "
    "bregman-K-relaxed, all but the first two also with -mbr at the end"
)
_PATTERN = re.compile(
    r"(?P<family>viterbi|unstructured|(?:mean_field|bregman|certified)(?=-))"
    r"(?:-(?P<iterations>[1-9][0-9]*))?(?:(?<=\d)-(?P<style>half|relaxed))?(?P<mbr>-mbr)?"
)
_TITLES = {
    "viterbi": "Viterbi",
    "unstructured": "Unstructured",
    "mean_field": "MF",
    "bregman": "BCRF",
    "certified": "certified",
}
_STYLES = {"": "", "half": " half-split", "relaxed": " relaxed"}


class Decoded(NamedTuple):
    """Tags [B, n], -100 beyond the length, and, of the certified decoder, for which sentences [B]
    they are proved optimal without Viterbi."""

    tags: Tensor
    certified: Tensor | None = None


@dataclass(frozen=True)
class Method:
    """The name of a decoder, taken apart."""

    family: str
    iterations: int | None
    style: str
    mbr: bool = False

    @classmethod
    def parse(cls, name: str) -> Method:
        match = _PATTERN.fullmatch(name)
        if match is None:
            raise ValueError(f"decoder must be {_FORMS}, with K iterations; got {name!r}")
        family, iterations = match["family"], match["iterations"]
        style = match["style"] or ""
        iterates = family in ("mean_field", "bregman", "certified")
        mbr = match["mbr"] is not None
        if (
            iterates != (iterations is not None)
            or (style and family != "bregman")
            or (mbr and family in ("viterbi", "certified"))
        ):
            raise ValueError(f"decoder must be {_FORMS}, with K iterations; got {name!r}")
        return cls(family, None if iterations is None else int(iterations), style, mbr)

    @property
    def base(self) -> str:
        """The name without what concerns repair."""
        parts = (self.family, self.iterations, self.style)
        return "-".join(str(part) for part in parts if part not in (None, ""))

    @property
    def ours(self) -> bool:
        """Whether the paper has it not."""
        return self.family == "certified" or self.style != "" or self.mbr

    @property
    def title(self) -> str:
        ours = "ours: " if self.ours else ""
        iterations = "" if self.iterations is None else f", {self.iterations} it."
        repair = ", MBR repair" if self.mbr else ""
        return f"{ours}{_TITLES[self.family]}{_STYLES[self.style]}{iterations}{repair}"


def check_decoder(name: str) -> None:
    Method.parse(name)


def check_objective(name: str) -> None:
    training_solver(name)


def objective_title(name: str) -> str:
    """What a model was trained with."""
    titles = {
        "unstructured": "Unstructured training",
        "crf": "CRF training",
        "mean_field": "MF training",
        "bregman": "BCRF training",
    }
    return titles.get(name, f"ours: {name} training")


def decoder(name: str, backend: str = "auto") -> Callable[[LinearChain], Decoded]:
    """The decoder of that name, on a backend (mean field has but one, of torch operations)."""
    method = Method.parse(name)
    if method.family == "viterbi":
        return lambda chain: Decoded(viterbi(chain, backend)[1])
    if method.family == "certified":
        iterations = method.iterations or 0

        def certified(chain: LinearChain) -> Decoded:
            found = certified_decode(chain, iterations, TEMPERATURE, backend)
            return Decoded(found.tags, found.certified)

        return certified
    solver, temperature = _solver(method, backend)
    return lambda chain: Decoded(decode(solver, chain, temperature))


def tag_marginals(name: str, chain: LinearChain) -> Tensor:
    """[B, n, T]: what a decoder that chooses tags one by one chooses them by."""
    solver, temperature = _solver(Method.parse(name), "auto")
    return solver(chain / temperature).tag_marginals


def loss_solver(objective: str, backend: str = "auto") -> Solver:
    """The solver of a training objective, on a backend (mean field: as above)."""
    return _on(training_solver(objective), backend)


def _solver(method: Method, backend: str) -> tuple[Solver, float]:
    """What makes the marginals of a decoder, and at which temperature."""
    temperature = TEMPERATURE if method.family == "bregman" else 1.0
    if method.style == "half":
        relaxed = training_solver(f"bregman-{method.iterations}-relaxed")
        assert isinstance(relaxed, Bregman)
        return _on(dataclasses.replace(relaxed, relaxation=1.0), backend), temperature
    return _on(training_solver(method.base), backend), temperature


def _on(solver: Solver, backend: str) -> Solver:
    if dataclasses.is_dataclass(solver) and hasattr(solver, "backend"):
        return dataclasses.replace(solver, backend=backend)
    return solver


def agreement(tags: Tensor, reference: Tensor) -> tuple[int, int]:
    """Positions at which two taggings [B, n] agree, and sentences in which they are the same; both
    have -100 beyond the length."""
    same = tags == reference
    inside = reference >= 0
    return int((same & inside).sum()), int(torch.where(inside, same, True).all(1).sum())
