"""Whether the Triton kernels can run, found out without importing triton.

Both constants are computed at import, because torch.compile cannot trace how they are computed.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import shutil

from torch import Tensor

__all__ = ["INTERPRETED", "MOST_TAGS", "UNAVAILABLE", "refusal"]

MOST_TAGS = 128
"""A matrix of transitions of more tags does not fit into the registers of one program."""

_OLDEST = (3, 7)  # the kernels are tested with this version and later ones

# The distributions that contain the package `triton`.
_DISTRIBUTIONS = (
    "triton",
    "pytorch-triton",
    "triton-rocm",
    "pytorch-triton-rocm",
    "triton-windows",
)

INTERPRETED = os.environ.get("TRITON_INTERPRET", "").lower() in ("1", "true", "yes", "on", "y")
"""Whether Triton's interpreter runs the kernels, on CPU tensors. It is slow and made for tests."""


def _installed_version() -> str | None:
    """Return the version of triton, or None if no known distribution contains it."""
    for name in _DISTRIBUTIONS:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def _unavailable() -> str | None:
    if importlib.util.find_spec("triton") is None:
        return (
            "triton is not installed; torch for CUDA on Linux brings it along, elsewhere install "
            "it with `pip install triton`"
        )
    oldest = ".".join(map(str, _OLDEST))
    version = _installed_version()
    if version is None:
        return f"the version of triton is unknown, and the kernels need {oldest} or later"
    if tuple(map(int, re.findall(r"\d+", version)[:2])) < _OLDEST:
        return f"triton {version} is installed, but the kernels need {oldest} or later"
    compiler = os.environ.get("CC") or shutil.which("clang") or shutil.which("gcc")
    if compiler is None and not INTERPRETED:
        return (
            "triton needs a C compiler to load its kernels, and there is neither gcc nor clang; "
            "install one, or let the environment variable CC name it"
        )
    return None


UNAVAILABLE = _unavailable()
"""None, or the reason why triton cannot run on any device."""


def refusal(scores: Tensor) -> str | None:
    """Return None, or the reason why the Triton kernels cannot run on `scores` [B, n, T]."""
    if scores.device.type not in ("cuda", "cpu" if INTERPRETED else "cuda"):
        return (
            f"backend 'triton' is for CUDA tensors, the scores are on {scores.device}; for tests "
            "on the CPU, set TRITON_INTERPRET=1 in the environment before Python starts"
        )
    if scores.shape[-1] > MOST_TAGS:
        return (
            f"backend 'triton' is for at most {MOST_TAGS} tags, the chain has {scores.shape[-1]}; "
            "use backend='torch'"
        )
    return None
