"""Structured inference for sequence labeling: Bregman CRF, linear-chain CRF, mean field.

chain = bcrf.LinearChain(unary, transitions, lengths)      # the problem
solution = bcrf.Bregman(iterations=10)(chain)              # a solver, and what it found
bcrf.loss(bcrf.Bregman(10), chain, tags).mean().backward()
"""

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
from .losses import loss, partial_loss
from .structure import Structure

__version__ = "0.1.0"

__all__ = [
    "Bregman",
    "CertifiedTags",
    "ForwardBackward",
    "LinearChain",
    "MeanField",
    "Solution",
    "Solver",
    "Structure",
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
