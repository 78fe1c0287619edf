"""The Python functions and files of the package that a call passes before it reaches a kernel."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any

import pytest

import bcrf
from bcrf.kernels import native

__all__ = ["functions_before_kernel"]

SOURCE = str(Path(bcrf.__file__).parent)
# The functions of the extension that solve chains; others read masks or add start and end scores.
KERNELS = ("bregman", "crf", "viterbi")


class _Watched:
    """The extension; profiling ends when one of its kernels is called."""

    def __init__(self, extension: ModuleType) -> None:
        self.extension = extension
        self.reached = False

    def __getattr__(self, name: str) -> Callable[..., object]:
        if name in KERNELS:
            sys.setprofile(None)
            self.reached = True
        function: Callable[..., object] = getattr(self.extension, name)
        return function


def functions_before_kernel(
    call: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> tuple[list[str], set[str]]:
    """Return the functions ("file:line name"), and the files, that `call` enters before a kernel.

    The call runs twice: only the second run is counted, because the first one fills caches.
    """
    call()
    watched = _Watched(native._native)
    monkeypatch.setattr(native, "_native", watched)
    codes: set[CodeType] = set()

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(SOURCE):
            codes.add(frame.f_code)

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(before)
    assert watched.reached
    functions = [f"{code.co_filename}:{code.co_firstlineno} {code.co_name}" for code in codes]
    return sorted(functions), {code.co_filename for code in codes}
