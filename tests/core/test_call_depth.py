"""Count the Python functions and files of `bcrf.loss` before it reaches a kernel.

`tests/layers/test_cost.py` counts those of the layers.
"""

from __future__ import annotations

import pytest
import torch

import bcrf
from tests.call_path import functions_before_kernel
from tests.comparing import needs_native

pytestmark = needs_native

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
    functions, files = functions_before_kernel(
        lambda: bcrf.loss(SOLVERS[name], chain, tags), monkeypatch
    )
    assert len(functions) <= 9, functions
    assert len(files) <= 6, files
