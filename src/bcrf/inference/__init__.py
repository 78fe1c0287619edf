"""Inference families, one per file: a solver takes a chain and returns a solution."""

from .bregman import Bregman, BregmanSolution
from .crf import CRFSolution, ForwardBackward
from .factorized import FactorizedSolution
from .markov import entropy, kl, sample
from .mean_field import MeanField
from .solution import Solution, Solver
from .unstructured import Unstructured
from .viterbi import k_best, viterbi
from .windowed_viterbi import windowed_viterbi

__all__ = [
    "Bregman",
    "BregmanSolution",
    "CRFSolution",
    "FactorizedSolution",
    "ForwardBackward",
    "MeanField",
    "Solution",
    "Solver",
    "Unstructured",
    "entropy",
    "k_best",
    "kl",
    "sample",
    "viterbi",
    "windowed_viterbi",
]
