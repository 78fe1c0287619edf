"""What is distributed: the source, and wheels that are built from it with and without a compiler.

`make wheel` tests a wheel with a manylinux tag in a fresh environment: `tests/project/wheel.py`.
"""

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

import pytest

from tests.project.wheel import check_contents, expected_tag

pytest.importorskip("scikit_build_core")  # the development tools are not installed

ROOT = Path(__file__).resolve().parents[2]

BUILD_SDIST = "import sys, scikit_build_core.build as b; b.build_sdist(sys.argv[1])"

BUILD_WHEEL_WITHOUT_EXTENSION = """
import sys, scikit_build_core.build as b
b.build_wheel(sys.argv[1], {"wheel.cmake": "false", "wheel.py-api": "py3"})
"""

PREAMBLE = """
import sys
import torch
import bcrf

assert bcrf.__file__.startswith(sys.argv[1]), bcrf.__file__
emissions = torch.randn(2, 5, 3, requires_grad=True)
chain = bcrf.LinearChain(emissions, torch.randn(3, 3), lengths=[5, 2])
tags = torch.tensor([[0, 1, 2, 0, 1], [2, 0, -100, -100, -100]])


def use(backend):
    for solver in (bcrf.Bregman(backend=backend), bcrf.ForwardBackward(backend=backend)):
        (gradient,) = torch.autograd.grad(bcrf.loss(solver, chain, tags).sum(), emissions)
        assert gradient.isfinite().all() and gradient.any()
    score, best = bcrf.viterbi(chain, backend=backend)
    assert score.isfinite().all() and torch.equal(best == -100, tags == -100)
"""

WITHOUT_EXTENSION = """
reason = bcrf.backends()["native"]
assert isinstance(reason, str) and reason
use("auto")
for attempt in (
    lambda: bcrf.ForwardBackward(backend="native")(chain).value,
    lambda: bcrf.Bregman(backend="native")(chain).value,
    lambda: bcrf.viterbi(chain, backend="native"),
):
    try:
        attempt()
    except RuntimeError as error:
        assert reason in str(error), error
    else:
        raise AssertionError("backend='native' should not work")
"""

WITH_EXTENSION = """
assert bcrf.backends()["native"] is None
use("auto")
use("native")
"""


def run(*arguments: str | Path, **environment: str) -> None:
    """Run Python; pytest shows its output if the test fails."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("BCRF_")}
    command = [sys.executable, *map(str, arguments)]
    subprocess.run(command, cwd=ROOT, env=inherited | environment, check=True)


def build_wheel(sdist: Path, folder: Path, **environment: str) -> Path:
    # CMake and Ninja may be installed beside this Python and nowhere else.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    options = ["--no-deps", "--no-build-isolation", "--no-cache-dir", "-v"]
    run("-m", "pip", "wheel", *options, "-w", folder, sdist, PATH=path, **environment)
    (wheel,) = folder.glob("*.whl")
    return wheel


def run_installed(wheel: Path, program: str, folder: Path) -> None:
    """Run `program` with the package of `wheel`."""
    run("-m", "pip", "install", "--no-deps", "--no-cache-dir", "--target", folder, wheel)
    # -S leaves out the hook of an editable installation, which comes before any path.
    paths = os.pathsep.join([str(folder), *filter(None, sys.path)])
    run("-S", "-c", PREAMBLE + program, folder, PYTHONPATH=paths)


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sdist")
    run("-c", BUILD_SDIST, folder)
    (archive,) = folder.glob("bcrf-*.tar.gz")
    return archive


def test_wheel_holds_the_package_alone(tmp_path):
    run("-c", BUILD_WHEEL_WITHOUT_EXTENSION, tmp_path)
    (wheel,) = tmp_path.glob("bcrf-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    check_contents([*names, "bcrf/_native.abi3.so"])
    for foreign in ("tests/conftest.py", "bcrf/notes.txt", "bcrf/_other.abi3.so"):
        with pytest.raises(AssertionError, match=r"files|extension"):
            check_contents([*names, "bcrf/_native.abi3.so", foreign])


@pytest.mark.slow
def test_sdist_is_complete(sdist):
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"CMakeLists.txt", "LICENSE", "Makefile", "constraints.txt", "pyproject.toml"} <= names
    assert not [name for name in names if name.startswith((".venv", "build/"))]
    for folder, pattern in [
        ("src", "*.py*"),
        ("native", "*.*"),
        ("tests", "*.py"),
        ("examples", "*.py"),
        ("benchmarks", "*.py"),
        ("docs", "*.md"),
    ]:
        files = {
            path.relative_to(ROOT).as_posix()
            for path in ROOT.joinpath(folder).rglob(pattern)
            if path.suffix not in {".pyc", ".so"}
        }
        assert files, folder
        assert files - names == set()


@pytest.mark.slow
def test_wheel_without_a_compiler_is_pure_python_and_works(sdist, tmp_path):
    nothing = str(tmp_path / "no-compiler")
    wheel = build_wheel(sdist, tmp_path, CC=nothing, CXX=nothing)
    assert wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert not [name for name in archive.namelist() if name.endswith(".so")]
    run_installed(wheel, WITHOUT_EXTENSION, tmp_path / "installed")


@pytest.mark.slow
@pytest.mark.skipif(
    not any(map(shutil.which, ["c++", "g++", "clang++", os.environ.get("CXX", "c++")])),
    reason="there is no compiler",
)
def test_wheel_with_a_compiler_contains_the_extension_and_no_trace_of_this_machine(sdist, tmp_path):
    # The test is about the contents of the wheel, so the compiler need not optimise.
    unoptimised = "-DCMAKE_CXX_FLAGS_RELEASE=-O0 -DNDEBUG"
    wheel = build_wheel(sdist, tmp_path, BCRF_REQUIRE_NATIVE="1", SKBUILD_CMAKE_ARGS=unoptimised)
    tag = expected_tag(sys.version_info[:2])
    assert wheel.name.startswith(f"bcrf-{wheel.name.split('-')[1]}-{tag}-")

    with zipfile.ZipFile(wheel) as archive:
        extension = check_contents(archive.namelist())
        binary = archive.read(extension)
    for place in (ROOT, sys.prefix, tempfile.gettempdir()):
        assert os.fsencode(place) not in binary

    run_installed(wheel, WITH_EXTENSION, tmp_path / "installed")
