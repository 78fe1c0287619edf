"""The backend "triton": whole chains solved by few kernels, for CUDA tensors.

The functions are those of the protocol `DeviceKernels`. No other package of bcrf imports triton;
`bcrf.kernels` imports this one at the first call that runs a kernel. `bcrf.kernels.triton_support`
says whether that is possible.
"""

from __future__ import annotations

from .bregman import bregman, bregman_partial, bregman_result, most_probable
from .certificate import certified
from .crf import crf
from .viterbi import viterbi

__all__ = [
    "bregman",
    "bregman_partial",
    "bregman_result",
    "certified",
    "crf",
    "most_probable",
    "viterbi",
]
