"""Structured inference for sequence labeling: Bregman CRF, linear-chain CRF, mean field.

chain = bcrf.LinearChain(unary, transitions, lengths)      # the problem
solution = bcrf.Bregman(iterations=10)(chain)              # a solver, and what it found
bcrf.loss(bcrf.Bregman(10), chain, tags).mean().backward()
"""

import typing

from .chain import LinearChain
from .checks import set_checks
from .decoding import CertifiedTags, certified_decode, decode, map_decode
from .inference import (
    Bregman,
    ForwardBackward,
    MeanField,
    Solution,
    Solver,
    Unstructured,
    entropy,
    k_best,
    kl,
    sample,
    viterbi,
)
from .kernels import backends
from .layers import CRF, BregmanCRF, ChainLayer, ExactCRF, MeanFieldCRF, TokenSoftmax
from .losses import loss, partial_loss
from .structure import Structure

if typing.TYPE_CHECKING:
    from .tagging import Tagger

__version__ = "0.1.0"

__all__ = [
    "CRF",
    "Bregman",
    "BregmanCRF",
    "CertifiedTags",
    "ChainLayer",
    "ExactCRF",
    "ForwardBackward",
    "LinearChain",
    "MeanField",
    "MeanFieldCRF",
    "Solution",
    "Solver",
    "Structure",
    "Tagger",
    "TokenSoftmax",
    "Unstructured",
    "__version__",
    "backends",
    "certified_decode",
    "decode",
    "entropy",
    "k_best",
    "kl",
    "loss",
    "map_decode",
    "partial_loss",
    "sample",
    "set_checks",
    "viterbi",
]

if not typing.TYPE_CHECKING:  # where any attribute would seem to be there

    def __getattr__(name: str) -> typing.Any:
        """`Tagger` is imported when it is first asked for: most of the library does without it."""
        if name != "Tagger":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from .tagging import Tagger

        globals()[name] = Tagger
        return Tagger
