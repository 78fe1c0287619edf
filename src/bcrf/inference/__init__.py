"""Solvers and their solutions, one family of models per file, and decoders of best sequences."""

from .bregman import Bregman, BregmanSolution
from .certified import CertifiedTags, certified_decode
from .crf import CRFSolution, ForwardBackward
from .markov import entropy, kl, sample
from .mean_field import MeanField
from .solution import Solution, Solver, SolverLike, as_solver
from .unstructured import FactorizedSolution, Unstructured
from .viterbi import k_best, viterbi
from .windowed_viterbi import windowed_viterbi

__all__ = [
    "Bregman",
    "BregmanSolution",
    "CRFSolution",
    "CertifiedTags",
    "FactorizedSolution",
    "ForwardBackward",
    "MeanField",
    "Solution",
    "Solver",
    "SolverLike",
    "Unstructured",
    "as_solver",
    "certified_decode",
    "entropy",
    "k_best",
    "kl",
    "sample",
    "viterbi",
    "windowed_viterbi",
]
