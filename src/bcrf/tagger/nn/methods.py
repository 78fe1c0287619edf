"""Training objectives and decoders of taggers, by name (see `bcrf.decoding`)."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from ...chain import LinearChain
from ...decoding import (
    OBJECTIVES,
    TAGGER_DECODERS,
    NamedMethod,
    named_decoder,
    parse_method,
    solver_of,
)
from ...inference import Bregman, Solver

__all__ = [
    "check_decoder",
    "check_objective",
    "decoder",
    "decoder_reach",
    "default_decoder",
    "named_iterations",
    "parse_decoder",
    "probability_reach",
    "probability_solver",
    "training_solver",
]


def parse_decoder(name: str) -> NamedMethod:
    """Return the parsed name of a tagger's decoder; raise ValueError for other names."""
    return parse_method("decoder", name, TAGGER_DECODERS)


def _parse_objective(name: str) -> NamedMethod:
    return parse_method("objective", name, OBJECTIVES)


def check_objective(name: str) -> None:
    """Raise unless `name` is the name of an objective; build no solver."""
    _parse_objective(name)


def check_decoder(name: str) -> None:
    """Raise unless `name` is the name of a decoder; build no solver."""
    parse_decoder(name)


def training_solver(objective: str) -> Solver:
    """Return the solver whose loss training minimises.

    Args:
        objective: "unstructured", "crf", "mean_field-K", "bregman-K" (the paper's projections) or
            "bregman-K-relaxed" (the default of `bcrf.Bregman`); K is 10 if it is left out.
    """
    return solver_of(_parse_objective(objective))


def probability_solver(objective: str) -> Solver:
    """Return the solver whose tag marginals are the probabilities of a model.

    The probabilities of a Bregman model are defined at convergence.
    """
    method = _parse_objective(objective)
    return Bregman(1000, tolerance=1e-5) if method.family == "bregman" else solver_of(method)


def default_decoder(objective: str) -> str:
    """Return the default decoder of an objective: that of its family; for the CRF, Viterbi."""
    check_objective(objective)
    return "viterbi" if objective == "crf" else objective


def decoder(name: str) -> Callable[[LinearChain], Tensor]:
    """Return a function from a chain to tags [B, n], -100 beyond the length.

    "viterbi" and "certified-K" find a best sequence. The other decoders take the most probable tag
    at each position, and may use removed transitions. They are "unstructured", "mean_field-K",
    "bregman-K" (the paper's projections) and "bregman-K-relaxed" (the default of `bcrf.Bregman`).
    The two Bregman decoders have the temperature 0.1. K is 10 if it is left out.
    """
    decode = named_decoder(parse_decoder(name))
    return lambda chain: decode(chain).tags


def named_iterations(name: str) -> int:
    """Return the K in the name of an objective or decoder; 10 if it has none."""
    return parse_method("method", name, f"{OBJECTIVES}, {TAGGER_DECODERS}").iterations


def decoder_reach(name: str) -> int | None:
    """Return the largest distance (positions) at which a score can change a tag; None: no limit.

    Each iteration passes a change on to the next position. We add two positions as a distance to
    the edge at which a chain is cut. Decoders that find a best sequence have no limit.
    """
    method = parse_decoder(name)
    return None if method.finds_best_sequence else _reach(method)


def probability_reach(objective: str) -> int | None:
    """Return `decoder_reach` for the marginals of `probability_solver`."""
    method = _parse_objective(objective)
    return _reach(method) if method.family in ("unstructured", "mean_field") else None


def _reach(method: NamedMethod) -> int:
    return 2 if method.family == "unstructured" else method.iterations + 2
