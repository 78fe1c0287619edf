"""Settings for all tests."""

from __future__ import annotations

import os
import signal

# Without a GPU, Triton's interpreter runs the kernels; triton decides so when it is imported.
os.environ.setdefault("TRITON_INTERPRET", "1")

# A shell starts background jobs with Ctrl-C ignored, and their child processes inherit this. Some
# tests interrupt a command by Ctrl-C, so we restore the default.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
