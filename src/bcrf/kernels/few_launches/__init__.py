"""The backend "few_launches": whole chains in few torch operations, on any device.

On a GPU each launch of a kernel takes some 5 microseconds, however small the kernel is. Short
sentences and small tag sets are therefore bound by the number of launches. The functions here run
eagerly, without autograd, and never wait for the device: no control flow depends on values. They
implement `DeviceKernels`.
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
