"""Compile the Triton kernels for real devices, without a device, and report what they need.

    python -m benchmarks.triton_build                             # a table
    python -m benchmarks.triton_build --json                      # a JSON line for each kernel
    python -m benchmarks.triton_build --tags 16 64 --dtype fp32 --target sm_80

Triton's interpreter accepts code that its compiler refuses, and runs one program after another. So
it shows neither whether a kernel compiles, nor whether its blocks fit into registers, nor whether
the compiler replaced float32 products by TF32 products. This command shows all three.
"""

from __future__ import annotations

import argparse
import importlib
import io
import json
import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from measurement.markdown import table

if TYPE_CHECKING:
    from bcrf.kernels.triton.arguments import Build

__all__ = [
    "DTYPES",
    "TAGS",
    "TARGETS",
    "BuildReport",
    "all_builds",
    "compile_kernel",
    "compile_kernels",
    "main",
]

TAGS = (9, 17, 32, 64, 128)
DTYPES = ("fp32", "fp64")
TARGETS = ("sm_80", "sm_90", "sm_100")

_MODULES = (
    "reachability",
    "crf",
    "viterbi",
    "projections",
    "bregman_kernels",
    "partial_value",
    "pair_gradient",
    "certificate",
)
"""The modules of `bcrf.kernels.triton` that have kernels, in their list BUILDS."""


@dataclass(frozen=True)
class BuildReport:
    """What one compiled kernel needs.

    Attributes:
        kernel: the name of the `Build`.
        transitions: "shared" or "per pair".
        tags: the number of tags T.
        dtype: "fp32" or "fp64", the dtype of the scores.
        target: the compute capability, "sm_80" for instance.
        registers: registers of a thread.
        spilled_bytes: bytes of registers that a thread stores to memory, for lack of registers.
        shared_bytes: shared memory of a program.
        ptx_bytes: the size of the PTX code.
        tf32: whether the PTX code has an instruction that rounds to TF32.
        seconds: the time of the compilation.
    """

    kernel: str
    transitions: str
    tags: int
    dtype: str
    target: str
    registers: int
    spilled_bytes: int
    shared_bytes: int
    ptx_bytes: int
    tf32: bool
    seconds: float


def compile_kernels(
    tags: Sequence[int] = TAGS, dtypes: Sequence[str] = DTYPES, targets: Sequence[str] = TARGETS
) -> Iterator[BuildReport]:
    """Compile every kernel of the backend "triton" for all combinations of the arguments.

    Numbers of tags with the same blocks have the same code, which is compiled once.
    """
    for build in all_builds():
        for shared in (True, False):
            for dtype in dtypes:
                for target in targets:
                    yield from _compile_for_tags(build, tags, dtype, target, shared)


def _compile_for_tags(
    build: Build, tags: Sequence[int], dtype: str, target: str, shared: bool
) -> Iterator[BuildReport]:
    known: dict[str, BuildReport] = {}
    for num_tags in tags:
        code = repr(build.arguments(dtype, num_tags, shared))
        if code not in known:
            known[code] = compile_kernel(build, num_tags, dtype, target, shared)
        yield replace(known[code], tags=num_tags)


def all_builds() -> list[Build]:
    """Return how to compile each kernel of the backend "triton"."""
    names = (f"bcrf.kernels.triton.{name}" for name in _MODULES)
    return [build for name in names for build in importlib.import_module(name).BUILDS]


def compile_kernel(
    build: Build, num_tags: int, dtype: str, target: str, shared: bool
) -> BuildReport:
    """Compile one kernel.

    Args:
        target: the compute capability, "sm_80" for instance.
        shared: whether one matrix of transitions serves all edges.
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    # The report of ptxas exists only if ptxas runs, so we do not take kernels from Triton's cache.
    triton.knobs.compilation.always_compile = True
    triton.knobs.nvidia.dump_ptxas_log = True
    signature, constants, options = build.arguments(dtype, num_tags, shared)
    source = ASTSource(build.kernel, signature, constants)
    device = GPUTarget("cuda", int(target.removeprefix("sm_")), 32)
    log, started = io.StringIO(), time.perf_counter()
    with redirect_stdout(log):
        compiled = triton.compile(source, target=device, options=options)
    seconds = time.perf_counter() - started
    ptx = compiled.asm["ptx"]
    return BuildReport(
        build.name,
        "shared" if shared else "per pair",
        num_tags,
        dtype,
        target,
        _reported(r"Used (\d+) registers", log.getvalue()),
        _reported(r"(\d+) bytes spill stores", log.getvalue()),
        compiled.metadata.shared,
        len(ptx),
        has_tf32(ptx),
        round(seconds, 2),
    )


def _reported(pattern: str, log: str) -> int:
    found = re.search(pattern, log)
    if found is None:
        raise RuntimeError(f"the report of ptxas has no match for {pattern!r}:\n{log}")
    return int(found[1])


def has_tf32(ptx: str) -> bool:
    """Return whether PTX code outside comments has an instruction of type TF32."""
    return "tf32" in re.sub(r"//.*", "", ptx)


def _interpreted() -> bool:
    return os.environ.get("TRITON_INTERPRET", "0").lower() not in ("", "0", "false", "off", "no")


def _cells(report: BuildReport) -> list[str]:
    row = asdict(report) | {"tf32": "yes" if report.tf32 else "no"}
    return [f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in row.values()]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        "python -m benchmarks.triton_build", description=(__doc__ or "").split("\n")[0]
    )
    options: dict[str, Any] = {"nargs": "+", "metavar": "NAME"}
    parser.add_argument("--json", action="store_true", help="print JSON lines, not a table")
    parser.add_argument("--tags", nargs="+", type=int, default=TAGS, metavar="T")
    parser.add_argument("--dtype", choices=DTYPES, default=DTYPES, **options)
    parser.add_argument("--target", default=TARGETS, help="sm_80 for instance", **options)
    chosen = parser.parse_args(arguments)
    if _interpreted():
        raise SystemExit(
            "TRITON_INTERPRET=1 replaces Triton's compiler by its interpreter; run this command "
            "without it"
        )
    reports = compile_kernels(chosen.tags, chosen.dtype, chosen.target)
    if chosen.json:
        for report in reports:
            print(json.dumps(asdict(report)), flush=True)
    else:
        head = [name.replace("_", " ") for name in BuildReport.__dataclass_fields__]
        print(table(head, (_cells(report) for report in reports), left=2))


if __name__ == "__main__":
    main()
