"""Decoders, which choose the tags of a chain, and the one table of their names.

The name of an objective or a decoder starts with a family. The number of iterations follows if the
family iterates, and then the variant of the projections: "viterbi", "mean_field-5",
"bregman-10-relaxed". Layers, taggers and the reproduction of the paper each accept a part of these
names; see `LAYER_DECODERS` and `TAGGER_DECODERS`.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from .chain import LinearChain
from .checks import NO_TEMPERATURE, check_temperature
from .inference import (
    Bregman,
    ForwardBackward,
    MeanField,
    Solver,
    SolverLike,
    Unstructured,
    as_solver,
    certified_decode,
    viterbi,
)
from .structure import Structure
from .suggestions import did_you_mean

__all__ = [
    "LAYER_DECODERS",
    "OBJECTIVES",
    "PAPER_TEMPERATURE",
    "TAGGER_DECODERS",
    "DecodedTags",
    "DecoderChoice",
    "NamedMethod",
    "check_layer_decoder",
    "constrained_mbr",
    "decode",
    "decode_for_layer",
    "decoder_marginals",
    "map_decode",
    "mbr_tags",
    "named_decoder",
    "parse_method",
    "solver_of",
]


def decode(solver: SolverLike, chain: LinearChain, temperature: float = NO_TEMPERATURE) -> Tensor:
    """Return the most probable tag of each position (minimum Bayes risk), [B, n].

    Tags are -100 beyond the length. The tag of each position is chosen independently, so the
    sequence may use removed transitions. With `Bregman` at a low temperature (0.1 in the paper) the
    tags approximate the best sequence.

    Example:
        >>> import torch, bcrf
        >>> chain = bcrf.LinearChain(torch.tensor([[[0.0, 1.0], [2.0, 0.0]]]))
        >>> bcrf.decode(bcrf.Bregman(10), chain, temperature=0.1)
        tensor([[1, 0]])
    """
    return as_solver(solver).decode(chain, temperature)


def map_decode(
    chain: LinearChain,
    method: Literal["auto", "viterbi", "certified"] = "auto",
    backend: str = "auto",
) -> tuple[Tensor, Tensor]:
    """Return a best tag sequence of each sentence (maximum a posteriori).

    "auto" runs `viterbi`, which never waits for a GPU. "certified" runs `certified_decode`, which
    loops over positions only for the sentences whose optimum it cannot prove; it waits once.

    Returns:
        score [B], differentiable, and tags [B, n], -100 beyond the length.

    Example:
        >>> import torch, bcrf
        >>> chain = bcrf.LinearChain(torch.tensor([[[0.0, 1.0], [2.0, 0.0]]]))
        >>> bcrf.map_decode(chain)
        (tensor([3.]), tensor([[1, 0]]))
    """
    if method not in ("auto", "viterbi", "certified"):
        raise ValueError(f"method must be 'auto', 'viterbi' or 'certified', got {method!r}")
    if method != "certified":
        return viterbi(chain, backend)
    best = certified_decode(chain, backend=backend)
    return best.score, best.tags


# Minimum Bayes risk under constraints


def mbr_tags(
    marginals: Tensor,
    structure: Structure | None = None,
    lengths: Tensor | Sequence[int] | None = None,
    allowed: Tensor | None = None,
    transitions: Tensor | None = None,
) -> Tensor:
    """Return the allowed tags [B, n] with the highest expected number of correct tags.

    The tags maximise sum_i p_i(y_i) over the allowed sequences; Viterbi finds them. If everything
    is allowed, they are the most probable tag of each position. Viterbi adds up marginals, not
    their logarithms. So the criterion is the same with and without constraints, and a tag whose
    marginal underflows to 0 may still be part of a sequence.

    Args:
        marginals: [B, n, T], probabilities of the tags at each position.
        structure: which sequences are allowed; None: all.
        lengths: [B]; None: all n.
        allowed: bool [B, n, T], which tags each position may have; None: all.
        transitions: [T, T] or [B, n-1, T, T], 0 or -inf (forbidden); None: all 0.
    """
    chain = LinearChain(marginals.detach(), transitions, lengths)
    if allowed is not None:
        chain = chain.restrict(allowed)
    if structure is not None:
        chain = chain.constrain(structure)
    return viterbi(chain)[1]


@torch.no_grad()
def constrained_mbr(
    solver: SolverLike,
    chain: LinearChain,
    temperature: float = NO_TEMPERATURE,
    structure: Structure | None = None,
) -> Tensor:
    """Return `mbr_tags` [B, n] of a solver's marginals.

    The tags use none of the tags and transitions that `chain` removes.

    Args:
        structure: further rules for the tags. The marginals do not depend on these rules.
    """
    chain = chain.detach()
    marginals = as_solver(solver)(chain / temperature).tag_probabilities()
    pairs = chain.pair_scores
    pairs = torch.zeros_like(pairs).masked_fill(pairs == -math.inf, -math.inf)
    return mbr_tags(marginals, structure, chain.lengths, chain.unary != -math.inf, pairs)


# The table of names

PAPER_TEMPERATURE = 0.1
"""The temperature of Bregman decoding in the paper (1/tau = 10)."""

OBJECTIVES = "unstructured, crf, mean_field[-K][-uniform], bregman[-K][-relaxed]"
"""The names of training objectives. Parts in brackets are optional; K is the iteration count."""

TAGGER_DECODERS = (
    "viterbi, certified[-K], unstructured, mean_field[-K][-uniform], bregman[-K][-relaxed]"
)
"""The names of a tagger's decoders, in the notation of `OBJECTIVES`."""

LAYER_DECODERS = ("map", "viterbi", "certified", "mbr", "constrained_mbr")
"""The names of a layer's decoders. The first three find a best sequence; the last two use the
marginals of the layer's solver."""

_DEFAULT_ITERATIONS = 10


class DecodedTags(NamedTuple):
    """The result of a decoder.

    Args:
        tags: [B, n], -100 beyond the length.
        certified: bool [B], the sentences whose tags were proved optimal without Viterbi; None
            from all decoders except the certified one.
    """

    tags: Tensor
    certified: Tensor | None = None


def _certified(chain: LinearChain, iterations: int, backend: str) -> DecodedTags:
    found = certified_decode(chain, iterations, PAPER_TEMPERATURE, backend)
    return DecodedTags(found.tags, found.certified)


# The decoders that find a best sequence: (chain, iterations, backend) -> tags. The other decoders
# use marginals; all of them except "constrained_mbr" may use removed transitions.
_BEST_SEQUENCE: dict[str, Callable[[LinearChain, int, str], DecodedTags]] = {
    "map": lambda chain, _, backend: DecodedTags(map_decode(chain, backend=backend)[1]),
    "viterbi": lambda chain, _, backend: DecodedTags(viterbi(chain, backend)[1]),
    "certified": _certified,
}


@dataclass(frozen=True)
class NamedMethod:
    """The name of an objective or a decoder, parsed.

    Attributes:
        family: "viterbi", "bregman", ...
        iterations: the number K in the name; 10 if it has none.
        variant: the variant of the Bregman projections: "" (`Bregman.paper`), "relaxed" (the
            defaults of `Bregman`), or "half" (the defaults of `Bregman`, but no relaxation). The
            variant of mean field: "" or "uniform" (see `MeanField.initial`).
        repairs: whether the name ends in "-mbr": ill-formed tags are then replaced by `mbr_tags` of
            the same marginals.
    """

    family: str
    iterations: int = _DEFAULT_ITERATIONS
    variant: str = ""
    repairs: bool = False

    @property
    def temperature(self) -> float:
        """The temperature of the decoder's marginals."""
        return PAPER_TEMPERATURE if self.family == "bregman" else 1.0

    @property
    def finds_best_sequence(self) -> bool:
        """Whether the decoder finds a best sequence, which uses no removed transition."""
        return self.family in _BEST_SEQUENCE


def parse_method(kind: str, name: str, forms: str) -> NamedMethod:
    """Return the parsed name of an objective or a decoder, without making its solver.

    Args:
        kind: "objective" or "decoder", for error messages.
        name: such as "bregman-10".
        forms: the valid names, in the notation of `OBJECTIVES`.
    """
    if not isinstance(name, str):
        raise TypeError(f"{kind} must be a string, got {name!r}")
    for family, pattern in _patterns(forms):
        match = pattern.fullmatch(name)
        if match:
            found = match.groupdict()
            return NamedMethod(
                family,
                int(found.get("iterations") or _DEFAULT_ITERATIONS),
                found.get("variant") or "",
                found.get("repairs") is not None,
            )
    suggestion = did_you_mean(name, [family for family, _ in _patterns(forms)])
    raise ValueError(f"{kind} must be one of {forms} (K iterations), got {name!r}{suggestion}")


@functools.cache
def _patterns(forms: str) -> list[tuple[str, re.Pattern[str]]]:
    """Return the family and the regular expression of each form, such as "bregman[-K]"."""
    found = []
    for form in forms.split(", "):
        pattern = (
            form.replace("[-K]", r"(?:-(?P<iterations>[1-9]\d*))?")
            .replace("-K", r"-(?P<iterations>[1-9]\d*)")
            .replace("[-relaxed]", "(?:-(?P<variant>relaxed))?")
            .replace("[-uniform]", "(?:-(?P<variant>uniform))?")
            .replace("[-half|-relaxed]", "(?:-(?P<variant>half|relaxed))?")
            .replace("[-mbr]", "(?P<repairs>-mbr)?")
        )
        family = re.split(r"\[|-K", form)[0]
        found.append((family, re.compile(pattern, re.ASCII)))
    return found


def solver_of(method: NamedMethod, backend: str = "auto") -> Solver:
    """Return the solver of an objective, or of a decoder that chooses the most probable tags."""
    if method.family == "unstructured":
        return Unstructured()
    if method.family == "crf":
        return ForwardBackward(backend=backend)
    if method.family == "mean_field":
        initial: Literal["unary", "uniform"] = "uniform" if method.variant else "unary"
        # Torch operations are its only backend.
        return MeanField(method.iterations, initial=initial, keep_forbidden=True)
    if method.family != "bregman":
        raise ValueError(f"{method.family} has no solver: it finds a best sequence")
    if method.variant == "":
        return dataclasses.replace(Bregman.paper(method.iterations), backend=backend)
    relaxation: float | Literal["ramp"] = 1.0 if method.variant == "half" else "ramp"
    return Bregman(method.iterations, relaxation=relaxation, backend=backend)


def named_decoder(
    method: NamedMethod, backend: str = "auto"
) -> Callable[[LinearChain], DecodedTags]:
    """Return the decoder of a name: a function from a chain to tags."""
    best_sequence = _BEST_SEQUENCE.get(method.family)
    if best_sequence is not None:
        return lambda chain: best_sequence(chain, method.iterations, backend)
    solver = solver_of(method, backend)
    return lambda chain: DecodedTags(decode(solver, chain, method.temperature))


@torch.no_grad()
def decoder_marginals(method: NamedMethod, chain: LinearChain) -> Tensor:
    """Return the tag marginals [B, n, T] from which the decoder chooses the most probable tags."""
    return solver_of(method)(chain / method.temperature).tag_marginals


# Decoders of layers

DecoderChoice = str | SolverLike
"""The name of a layer's decoder, or a solver.

With a solver, the layer chooses the most probable tag of each position under its marginals."""


def check_layer_decoder(decoder: object, temperature: float) -> None:
    """Raise unless a layer can use `decoder` at `temperature`."""
    if isinstance(decoder, str):
        if decoder not in LAYER_DECODERS:
            raise ValueError(
                f"decoder must be a solver or one of {LAYER_DECODERS}, got {decoder!r}"
            )
    elif not callable(decoder):
        raise TypeError(f"decoder must be a solver or one of {LAYER_DECODERS}, got {decoder!r}")
    check_temperature(temperature)
    if isinstance(decoder, str) and decoder in _BEST_SEQUENCE and temperature != 1:
        raise ValueError(
            f"temperature {temperature} changes nothing for decoder {decoder!r}: a best sequence "
            "is best at every temperature"
        )


@torch.no_grad()
def decode_for_layer(
    decoder: DecoderChoice,
    chain: LinearChain,
    solver: SolverLike,
    temperature: float = NO_TEMPERATURE,
    structure: Structure | None = None,
) -> Tensor:
    """Return the tags [B, n] that a layer's decoder chooses, -100 beyond the length.

    Args:
        solver: the solver of the layer, which "mbr" and "constrained_mbr" use.
        structure: the rules that "constrained_mbr" obeys.
    """
    if decoder == "map" and temperature == 1:
        return map_decode(chain)[1]  # the default: a direct call is faster
    if isinstance(decoder, str) and decoder in _BEST_SEQUENCE and temperature == 1:
        return _BEST_SEQUENCE[decoder](chain, _DEFAULT_ITERATIONS, "auto").tags
    check_layer_decoder(decoder, temperature)
    if not isinstance(decoder, str):
        return decode(decoder, chain, temperature)
    if decoder == "mbr":
        return decode(solver, chain, temperature)
    return constrained_mbr(solver, chain, temperature, structure)
