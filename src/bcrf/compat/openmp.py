"""The threads of OpenMP, shared by torch and the compiled kernels; this module imports no torch."""

from __future__ import annotations

import os
import sys

__all__ = ["WAIT_VARIABLES", "let_waiting_threads_sleep"]

WAIT_VARIABLES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
"""Each of these environment variables sets how long waiting OpenMP threads spin."""


def let_waiting_threads_sleep() -> None:
    """Set OpenMP's wait policy to passive, unless the user has chosen one or torch is imported.

    By default, threads of libgomp that wait for each other spin for a while. If all cores are busy,
    a spinning thread occupies the core that another thread needs to finish its work. Two threads
    then take ten to a hundred times as long as one. OpenMP reads the variable when torch is
    imported, so it would have no effect later.
    """
    if "torch" not in sys.modules and not any(name in os.environ for name in WAIT_VARIABLES):
        os.environ["OMP_WAIT_POLICY"] = "passive"
