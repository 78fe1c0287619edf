"""The Triton kernels compile for real devices, without spills and without TF32.

The interpreter can show neither. The compiler needs no device, but a process in which
TRITON_INTERPRET is not set.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import bcrf
from benchmarks.triton_build import BuildReport, has_tf32, main
from tests.triton.support import needs_triton

pytestmark = needs_triton

ROOT = Path(bcrf.__file__).parents[2]

FEW = {
    "reachable_tags",
    "crf_messages",
    "crf_gradients",
    "viterbi",
    "bregman_projections",
    "bregman_value",
    "bregman_results",
    "bregman_best_tags",
    "bregman_partial_value",
    "bregman_pair_gradient",
    "bregman_partial_pair_gradient",
    "certificate_arcs",
    "certificate_check",
}


def json_lines(*arguments: str) -> list[Any]:
    """The lines of JSON that Python prints with these arguments in a process that compiles."""
    inherited = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    command = [sys.executable, *arguments]
    done = subprocess.run(
        command, cwd=ROOT, env=inherited, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def compiled(*arguments: str) -> Sequence[dict[str, Any]]:
    """The rows that the command prints."""
    return json_lines("-m", "benchmarks.triton_build", "--json", *arguments)


def check(rows: Sequence[dict[str, Any]], combinations: int) -> None:
    """Assert that each kernel was compiled, spills nothing up to 32 tags, and uses no TF32."""
    assert {row["kernel"] for row in rows} >= FEW
    assert len(rows) == combinations * 2 * len({row["kernel"] for row in rows})
    assert all(row.keys() == BuildReport.__dataclass_fields__.keys() for row in rows)
    names = ("kernel", "transitions", "tags", "target", "spilled_bytes")
    spilled = [row for row in rows if row["spilled_bytes"] and row["tags"] <= 32]
    assert not [[row[name] for name in names] for row in spilled]
    assert not [row["kernel"] for row in rows if row["tf32"]]
    assert all(0 < row["registers"] <= 255 for row in rows)


@pytest.mark.slow
def test_every_kernel_compiles() -> None:
    check(compiled("--tags", "16", "32", "64", "--dtype", "fp32", "--target", "sm_80"), 3)


@pytest.mark.slow
def test_every_kernel_compiles_for_later_devices() -> None:
    check(compiled("--tags", "16", "64", "--dtype", "fp32", "--target", "sm_90", "sm_100"), 4)


def test_tf32_is_found() -> None:
    """In instructions, not in comments."""
    assert has_tf32("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%f1}, {%r1}, {%r2};")
    assert not has_tf32("add.f32 %f1, %f2, %f3; // tf32\n")


def test_the_interpreter_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with pytest.raises(SystemExit, match="without it"):
        main([])


AMD = """
import importlib, json
import torch
torch.version.hip = "6.0"  # as torch for AMD devices has it: some options are for NVIDIA's compiler
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from benchmarks.triton_build import all_builds

for build in all_builds():
    signature, constants, options = build.arguments("fp32", 17, True)
    source = ASTSource(build.kernel, signature, constants)
    target = GPUTarget("hip", "gfx90a", 64)
    code = triton.compile(source, target=target, options=options).asm["hsaco"]
    print(json.dumps([build.name, len(code)]))
"""


@pytest.mark.slow
def test_every_kernel_compiles_for_amd() -> None:
    rows = json_lines("-c", AMD)
    assert {name for name, _ in rows} == FEW
    assert all(size for _, size in rows)
