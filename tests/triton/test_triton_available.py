"""When the backend "triton" is available, and when it is selected."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
from importlib.machinery import ModuleSpec
from typing import Any

import pytest
import torch

import bcrf
from bcrf import Bregman, ForwardBackward, LinearChain
from bcrf.kernels import select_backend, triton_support
from tests.triton.support import needs_triton


def run(probe: str) -> Any:
    """The JSON that a new process without TRITON_INTERPRET prints."""
    inherited = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", "import json, sys, torch, bcrf\n" + probe]
    output = subprocess.run(
        command, env=inherited, capture_output=True, text=True, check=True
    ).stdout
    return json.loads(output.splitlines()[-1])


@pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64",
    reason="the extra `test` installs triton on Linux for x86_64 only",
)
def test_the_tests_of_the_kernels_run() -> None:
    """Without triton or its interpreter all would be skipped, and CI would be green."""
    assert triton_support.UNAVAILABLE is None
    assert triton_support.INTERPRETED, "run the tests without TRITON_INTERPRET=0"
    assert importlib.util.find_spec("triton") is not None


def test_triton_is_imported_only_on_demand() -> None:
    """Not by an import, a list of the backends or a call on CPU tensors."""
    probe = """
chain = bcrf.LinearChain(torch.zeros(1, 2, 3), torch.zeros(3, 3))
before = "triton" in sys.modules
bcrf.backends(), bcrf.ForwardBackward()(chain).value, bcrf.viterbi(chain, "torch")
print(json.dumps([before, "triton" in sys.modules]))
"""
    before, after = run(probe)
    assert not before
    assert not after


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_device() -> None:
    probe = """
try:
    bcrf.ForwardBackward(backend="triton")
except RuntimeError as error:
    print(json.dumps([bcrf.backends()["triton"], str(error)]))
"""
    reason, error = run(probe)
    assert reason is not None
    assert reason in error
    if triton_support.UNAVAILABLE is None:
        assert reason == "torch finds no CUDA device"


@needs_triton
def test_cpu_tensors_need_the_interpreter() -> None:
    chain = LinearChain(torch.zeros(1, 2, 3))
    assert select_backend("triton", chain.unary) == "triton"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(triton_support, "INTERPRETED", False)
        with pytest.raises(ValueError, match=r"for CUDA tensors, the scores are on cpu.*INTERPRET"):
            select_backend("triton", chain.unary)
    with pytest.raises(ValueError, match="for CUDA tensors, the scores are on meta"):
        select_backend("triton", chain.unary.to("meta"))


@needs_triton
def test_the_number_of_tags_is_limited() -> None:
    assert select_backend("triton", torch.zeros(1, 2, 128)) == "triton"
    with pytest.raises(ValueError, match="at most 128 tags, the chain has 129"):
        bcrf.viterbi(LinearChain(torch.zeros(1, 2, 129)), "triton")


@needs_triton
def test_what_stays_in_torch() -> None:
    """A tolerance, a function transform and a tensor subclass; "auto" on the CPU."""
    scores = torch.zeros(1, 2, 3)

    class Subclass(torch.Tensor):
        pass

    assert select_backend("triton", scores, fixed_steps=False) == "torch"
    assert select_backend("triton", scores.as_subclass(Subclass)) == "torch"
    assert select_backend("auto", scores) in ("native", "torch")
    chain = LinearChain(torch.randn(2, 3, 3, dtype=torch.float64))
    expected = ForwardBackward(backend="naive")(chain).tag_marginals
    solver = ForwardBackward(backend="triton")
    value = torch.func.grad(lambda u: solver(LinearChain(u)).value.sum())(chain.unary)
    torch.testing.assert_close(value, expected)
    assert Bregman(9, tolerance=1e-3, backend="triton")(chain).value.isfinite().all()


class OnCuda:
    """Looks like scores on a CUDA device: CI has none."""

    is_cpu = False
    device = torch.device("cuda")
    shape = (2, 5, 17)


@pytest.mark.parametrize(("num_tags", "chosen"), [(1, True), (128, True), (129, False)])
def test_auto_selects_triton_on_cuda(
    num_tags: int, chosen: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bcrf import kernels

    scores: Any = OnCuda()
    scores.shape = (2, 5, num_tags)
    monkeypatch.setattr(kernels, "_PLAIN_TENSORS", (OnCuda,))
    monkeypatch.setattr(triton_support, "UNAVAILABLE", None)
    monkeypatch.setattr(kernels, "values_readable", lambda x: False)
    assert (select_backend("auto", scores) == "triton") == chosen
    assert select_backend("torch", scores) != "triton"
    monkeypatch.setattr(triton_support, "UNAVAILABLE", "a reason")
    assert select_backend("auto", scores) != "triton"


def found(name: str) -> ModuleSpec:
    return ModuleSpec(name, None)


@pytest.mark.parametrize(
    ("version", "reason"),
    [
        ("3.7.0", None),
        ("3.10.1+git1234", None),
        ("4.0", None),
        ("3.6.2", "triton 3.6.2 is installed, but the kernels need 3.7 or later"),
        ("2.1.0", "triton 2.1.0 is installed"),
    ],
)
def test_versions(version: str, reason: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", found)
    monkeypatch.setattr(importlib.metadata, "version", lambda name: version)
    text = triton_support._unavailable()
    assert text is None if reason is None else text is not None and reason in text


def test_reasons(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError

    monkeypatch.setattr(importlib.util, "find_spec", found)
    with monkeypatch.context() as patch:
        patch.setattr(importlib.metadata, "version", missing)
        assert "unknown" in str(triton_support._unavailable())
    with monkeypatch.context() as patch:
        patch.setattr(importlib.metadata, "version", lambda name: "3.7.1")
        patch.setattr(triton_support, "INTERPRETED", False)
        patch.setattr(shutil, "which", lambda name: None)
        patch.delenv("CC", raising=False)
        assert "C compiler" in str(triton_support._unavailable())
        patch.setenv("CC", "/usr/bin/cc")
        assert triton_support._unavailable() is None
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert "pip install triton" in str(triton_support._unavailable())


def test_the_reason_is_in_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_support, "UNAVAILABLE", "a reason")
    assert bcrf.backends()["triton"] == "a reason"
    with pytest.raises(RuntimeError, match="backend 'triton' is not available: a reason"):
        Bregman(backend="triton")
