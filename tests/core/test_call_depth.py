"""Count the Python functions and files of `bcrf.loss` before it reaches the extension.

`tests/layers/test_cost.py` counts those of the layers.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any

import pytest
import torch

import bcrf
from bcrf.kernels import native
from tests.comparing import needs_native

SOURCE = str(Path(bcrf.__file__).parent)

pytestmark = needs_native


class Watched:
    """The extension; profiling ends when one of its functions is called."""

    def __init__(self, extension: ModuleType) -> None:
        self.extension = extension
        self.called: str | None = None

    def __getattr__(self, name: str) -> Callable[..., object]:
        sys.setprofile(None)
        self.called = name
        function: Callable[..., object] = getattr(self.extension, name)
        return function


def entered(
    call: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> tuple[list[str], list[str]]:
    """The functions and the files of the package that `call` enters before the extension."""
    watched = Watched(native._native)
    monkeypatch.setattr(native, "_native", watched)
    codes: set[CodeType] = set()

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(SOURCE):
            codes.add(frame.f_code)

    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(None)
    assert watched.called in ("bregman", "crf")
    functions = [f"{code.co_filename}:{code.co_firstlineno} {code.co_name}" for code in codes]
    return sorted(functions), sorted({code.co_filename for code in codes})


SOLVERS = {"bregman": bcrf.Bregman(10), "crf": bcrf.ForwardBackward()}


@pytest.mark.parametrize("name", SOLVERS)
@pytest.mark.parametrize("per_pair", [False, True])
def test_a_loss_takes_few_steps_to_the_kernel(
    name: str, per_pair: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    unary = torch.randn(2, 4, 3, requires_grad=True)
    transitions = torch.randn(*((2, 3) if per_pair else ()), 3, 3, requires_grad=True)
    chain = bcrf.LinearChain(unary, transitions, [4, 2])
    tags = torch.zeros(2, 4, dtype=torch.int64)
    functions, files = entered(lambda: bcrf.loss(SOLVERS[name], chain, tags), monkeypatch)
    assert len(functions) <= 9, functions
    assert len(files) <= 6, files
