"""Run torbi, a compiled Viterbi decoder.

We call its operator directly, for two reasons. Importing the package needs torchaudio and
tensorboard, which decoding does not use. Its Python function only sets the number of threads.
"""

from __future__ import annotations

from importlib import util
from pathlib import Path

import torch
from torch import Tensor

from ..cases import Problem
from .base import DecodeCall, System

__all__ = ["SYSTEMS"]


def _load() -> None:
    spec = util.find_spec("torbi")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("No module named 'torbi'")
    libraries = sorted(Path(spec.origin).parent.glob("_C*.so"))
    if len(libraries) != 1:
        raise FileNotFoundError(f"{len(libraries)} compiled libraries, expected one for this torch")
    torch.ops.load_library(str(libraries[0]))


def _decode(problem: Problem) -> DecodeCall:
    _load()
    unary, transitions = problem.penalised()
    batch, length, tags = problem.sizes
    lengths = torch.full((batch,), length, dtype=torch.int32, device=problem.device)
    to_from, start = transitions.mT.contiguous(), torch.zeros(tags, device=problem.device)

    def call() -> Tensor:
        found: Tensor = torch.ops.torbi.viterbi_decode(unary, lengths, to_from, start)
        return found

    return call


SYSTEMS = (
    System(
        "torbi",
        "peer",
        "torch.ops.torbi.viterbi_decode, built from source for this torch; -1e4 for constraints",
        decode=_decode,
        pairs=("shared",),
        package="torbi",
        cannot={"loss": "decodes only"},
    ),
)
