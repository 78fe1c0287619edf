"""How a layer turns a chain into tags, chosen by name and apart from how it was trained."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from ..chain import LinearChain
from ..checks import check_temperature
from ..decoding import certified_decode, decode, map_decode
from ..inference import Solver, viterbi
from ..structure import Structure

__all__ = ["Decoder", "best_tags", "check_decoder", "constrained_mbr"]

Decoder = str | Solver
"""The name of a decoder, or a solver: the most probable tags that it finds."""

_BEST: dict[str, Callable[[LinearChain], Tensor]] = {
    "map": lambda chain: map_decode(chain)[1],
    "viterbi": lambda chain: viterbi(chain)[1],
    "certified": lambda chain: certified_decode(chain).tags,
}
_MBR = ("mbr", "constrained_mbr")


def check_decoder(decoder: object, temperature: float) -> None:
    """Raise unless `decoder` is one, and `temperature` means something to it."""
    known = (*_BEST, *_MBR)
    if isinstance(decoder, str):
        if decoder not in known:
            raise ValueError(f"decoder must be a solver or one of {known}, got {decoder!r}")
    elif not callable(decoder):
        raise TypeError(f"decoder must be a solver or one of {known}, got {decoder!r}")
    check_temperature(temperature)
    if isinstance(decoder, str) and decoder in _BEST and temperature != 1:
        raise ValueError(
            f"temperature {temperature} changes nothing for decoder {decoder!r}: a best sequence "
            "is best at every temperature"
        )


def best_tags(
    decoder: Decoder,
    chain: LinearChain,
    solver: Solver,
    temperature: float = 1.0,
    structure: Structure | None = None,
) -> Tensor:
    """Tags [B, n], -100 beyond the length. `solver` is the one that "mbr" stands for."""
    check_decoder(decoder, temperature)
    if not isinstance(decoder, str):
        return decode(decoder, chain, temperature)
    if decoder in _BEST:
        with torch.no_grad():
            return _BEST[decoder](chain.detach())
    if decoder == "mbr":
        return decode(solver, chain, temperature)
    return constrained_mbr(solver, chain, temperature, structure)


def constrained_mbr(
    solver: Solver,
    chain: LinearChain,
    temperature: float = 1.0,
    structure: Structure | None = None,
) -> Tensor:
    """The tags [B, n] with the most expected hits among the sequences that use nothing removed.

    Viterbi with the tag marginals for scores: without removed transitions these are the most
    probable tags, position by position.

    Args:
        structure: rules that have to be kept although `chain` does not remove what they forbid.
    """
    with torch.no_grad():
        chain = chain.detach()
        hits = solver(chain / temperature).tag_probabilities()
        hits = torch.where(chain.unary == -math.inf, -math.inf, hits)
        pairs = chain.pair_scores
        pairs = torch.zeros_like(pairs).masked_fill(pairs == -math.inf, -math.inf)
        problem = LinearChain(hits, pairs, chain.lengths)
        return viterbi(problem if structure is None else problem.constrain(structure))[1]
