"""What all tests need."""

from __future__ import annotations

import os
import signal

# Without a GPU, Triton's interpreter runs the kernels; triton decides so when it is imported.
os.environ.setdefault("TRITON_INTERPRET", "1")

# A shell that starts the tests in the background has them, and what they start, ignore Ctrl-C;
# some commands are tested by it.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
