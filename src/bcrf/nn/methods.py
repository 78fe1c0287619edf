"""Training objectives and decoders by name.

A name is a family, then, where it iterates, the number of iterations, then "relaxed" where the
projections are not the paper's but the library's own: "viterbi", "mean_field-5",
"bregman-10-relaxed".
"""

from __future__ import annotations

import re
from collections.abc import Callable

from torch import Tensor

from ..chain import LinearChain
from ..decoding import certified_decode, decode
from ..inference import (
    Bregman,
    ForwardBackward,
    MeanField,
    Solver,
    Unstructured,
    viterbi,
)

__all__ = [
    "Decoder",
    "check_decoder",
    "check_objective",
    "decoder",
    "decoder_reach",
    "default_decoder",
    "named_iterations",
    "probability_reach",
    "probability_solver",
    "training_solver",
]

Decoder = Callable[[LinearChain], Tensor]

# The paper decodes at 1/tau = 10.
_TEMPERATURE = 0.1
_ITERATIONS = 10

_OBJECTIVES = "unstructured, crf, mean_field[-K], bregman[-K][-relaxed]"
_DECODERS = "viterbi, certified[-K], unstructured, mean_field[-K], bregman[-K][-relaxed]"


def check_objective(name: str) -> None:
    """Raise unless `name` is that of an objective; no solver is made, however many iterations."""
    _parse("objective", name, _OBJECTIVES)


def check_decoder(name: str) -> None:
    """Raise unless `name` is that of a decoder; no solver is made, however many iterations."""
    _parse("decoder", name, _DECODERS)


def training_solver(objective: str) -> Solver:
    """The solver whose loss is minimised: "unstructured", "crf", "mean_field-K", "bregman-K" (the
    paper's projections) or "bregman-K-relaxed" (the library's); K is 10 where it is left out."""
    family, iterations, relaxed = _parse("objective", objective, _OBJECTIVES)
    if family == "unstructured":
        return Unstructured()
    if family == "crf":
        return ForwardBackward()
    if family == "mean_field":
        return MeanField(iterations)
    return Bregman(iterations) if relaxed else Bregman.paper(iterations)


def probability_solver(objective: str) -> Solver:
    """The solver whose tag marginals are the probabilities of a model trained with `objective`.

    Those of a Bregman model are defined at convergence.
    """
    family, *_ = _parse("objective", objective, _OBJECTIVES)
    return Bregman(1000, tolerance=1e-5) if family == "bregman" else training_solver(objective)


def default_decoder(objective: str) -> str:
    """The decoder that goes with an objective: the family's own, Viterbi for the CRF."""
    check_objective(objective)
    return "viterbi" if objective == "crf" else objective


def decoder(name: str) -> Decoder:
    """A function from a chain to tags [B, n], -100 beyond the length.

    "viterbi" and "certified-K" find a best sequence. The others take the most probable tag of each
    position, and may use removed transitions: "unstructured", "mean_field-K", "bregman-K" (the
    paper's projections) and "bregman-K-relaxed" (the library's), both at 1/tau = 10. K is 10 where
    it is left out.
    """
    family, iterations, relaxed = _parse("decoder", name, _DECODERS)
    if family == "viterbi":
        return lambda chain: viterbi(chain)[1]
    if family == "certified":
        return lambda chain: certified_decode(chain, iterations, _TEMPERATURE).tags
    if family == "bregman":
        solver = Bregman(iterations) if relaxed else Bregman.paper(iterations)
        return lambda chain: decode(solver, chain, _TEMPERATURE)
    other = Unstructured() if family == "unstructured" else MeanField(iterations)
    return lambda chain: decode(other, chain)


def named_iterations(name: str) -> int:
    """The K in the name of an objective or decoder; its default, 10, where the name has none."""
    return _parse("method", name, f"{_OBJECTIVES}, {_DECODERS}")[1]


def decoder_reach(name: str) -> int | None:
    """Return how many positions away a score can be that changes the tag a decoder chooses at a
    position; None: any number, because the decoder finds a best sequence.

    One iteration passes a change on to the next position. Two more positions separate a position
    from the edge at which a chain is cut.
    """
    family, iterations, _ = _parse("decoder", name, _DECODERS)
    return {"unstructured": 2, "mean_field": iterations + 2, "bregman": iterations + 2}.get(family)


def probability_reach(objective: str) -> int | None:
    """`decoder_reach` for the marginals of `probability_solver`; None: any number of positions."""
    family, iterations, _ = _parse("objective", objective, _OBJECTIVES)
    return {"unstructured": 2, "mean_field": iterations + 2}.get(family)


def _parse(kind: str, name: str, forms: str) -> tuple[str, int, bool]:
    """Family, iterations and whether relaxed; an error unless `name` has one of the `forms`."""
    if not isinstance(name, str):
        raise TypeError(f"{kind} must be a string, got {name!r}")
    for form in forms.split(", "):
        pattern = form.replace("[-K]", r"(?:-([1-9]\d*))?").replace("[-relaxed]", "(-relaxed)?")
        match = re.fullmatch(pattern, name, re.ASCII)
        if match:
            iterations, relaxed = (*match.groups(), None, None)[:2]
            return form.partition("[")[0], int(iterations or _ITERATIONS), relaxed is not None
    raise ValueError(f"{kind} must be one of {forms} (K iterations), got {name!r}")
