"""Test a built wheel: `python -m tests.project.wheel WHEEL [--python python3.12]` (`make wheel`).

It checks what the wheel holds, installs it with its extras for the command line into a fresh
environment, and uses it there with a PATH on which there is no compiler and no CMake.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

CHECKS = """
import torch
import bcrf

assert "site-packages" in bcrf.__file__, bcrf.__file__
assert bcrf.backends()["native"] is None, bcrf.backends()["native"]
emissions = torch.randn(2, 5, 3, requires_grad=True)
chain = bcrf.LinearChain(emissions, torch.randn(3, 3), lengths=[5, 2])
tags = torch.tensor([[0, 1, 2, 0, 1], [2, 0, -100, -100, -100]])
for backend in ("native", "torch"):
    for solver in (bcrf.Bregman(backend=backend), bcrf.ForwardBackward(backend=backend)):
        (gradient,) = torch.autograd.grad(bcrf.loss(solver, chain, tags).sum(), emissions)
        assert gradient.isfinite().all() and gradient.any()
    score, best = bcrf.viterbi(chain, backend=backend)
    assert score.isfinite().all() and torch.equal(best == -100, tags == -100)
native, other = (bcrf.viterbi(chain, backend=name) for name in ("native", "torch"))
assert torch.equal(native[1], other[1])
with open("/proc/self/maps") as maps:
    libraries = {line.split()[-1] for line in maps if "libgomp" in line}
assert len(libraries) == 1, f"torch and bcrf use different OpenMP libraries: {libraries}"
print("loss, gradient, decoding and the thread pool are as expected")
"""

ALLOWED_CODE = {".py", ".pyi", ".so", ".typed"}
# Folder of data -> suffixes of its files.
ALLOWED_DATA = {
    "samples": {".conll", ".conllu", ".md"},
    "models": {".json", ".safetensors", ".md", ".txt"},
    "web": {".mjs"},
}
COMPILERS = ("cc", "c++", "gcc", "g++", "clang", "clang++", "cmake", "ninja")


def check_contents(names: list[str]) -> str:
    """Check that a wheel holds the package alone; return the name of the extension in it."""
    files = [name for name in names if not name.endswith("/")]
    package = [name for name in files if ".dist-info/" not in name]
    outside = [name for name in package if not name.startswith("bcrf/")]
    assert not outside, f"files outside the package: {outside}"
    assert {"bcrf/py.typed", "bcrf/_native.pyi"} <= set(package)
    assert {"bcrf/models/en/model.json", "bcrf/web/tagger.mjs"} <= set(package)
    unexpected = [name for name in package if Path(name).suffix not in _allowed(name)]
    assert not unexpected, f"unexpected files: {unexpected}"
    extensions = [name for name in package if name.endswith(".so")]
    assert len(extensions) == 1, f"expected one extension, found {extensions}"
    assert re.fullmatch(r"bcrf/_native\.[\w.-]+", extensions[0])
    return extensions[0]


def _allowed(name: str) -> set[str]:
    """Return the suffixes that a file in this place may have."""
    return ALLOWED_DATA.get(Path(name).parts[1], ALLOWED_CODE)


def expected_tag(version: tuple[int, int]) -> str:
    """Return the Python and ABI tag: one wheel for each version before 3.12, one for all after."""
    return "cp312-abi3" if version >= (3, 12) else "cp{0}{1}-cp{0}{1}".format(*version)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--python", default=sys.executable, help="which Python to test it with")
    options = parser.parse_args()
    with zipfile.ZipFile(options.wheel) as archive:
        check_contents(archive.namelist())
    assert "-manylinux" in options.wheel.name, f"{options.wheel.name} has no manylinux tag"
    with tempfile.TemporaryDirectory() as folder:
        check_installed(options.wheel.resolve(), options.python, Path(folder))
    print(f"{options.wheel.name} works")
    return 0


def check_installed(wheel: Path, python: str, folder: Path) -> None:
    """Install `wheel` into a fresh environment in `folder` and use it without a compiler."""
    home = Path(shutil.which(python) or python).resolve()
    subprocess.run([home, "-m", "venv", folder / "env"], check=True)
    bin_folder = folder / "env" / "bin"
    # Only the environment and a few system tools are on the PATH.
    tools = folder / "tools"
    tools.mkdir()
    for name in ("sh", "env", "uname", "ldconfig"):
        if found := shutil.which(name):
            (tools / name).symlink_to(found)
    path = os.pathsep.join(map(str, (bin_folder, tools)))
    present = [name for name in COMPILERS if shutil.which(name, path=path)]
    assert not present, f"there is a compiler on the PATH: {present}"
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("BCRF_", "PYTHON", "VIRTUAL"))}
    environment = kept | {"PATH": path, "OMP_NUM_THREADS": "1"}

    def run(*command: str | Path) -> None:
        subprocess.run(command, cwd=folder, env=environment, check=True)

    constraints = ROOT / "constraints.txt"
    run(
        *(bin_folder / "python", "-m", "pip", "install", "-q", "--disable-pip-version-check"),
        *("-c", constraints, "--only-binary", ":all:", f"bcrf[cli] @ {wheel.as_uri()}", "numpy"),
    )
    tag = subprocess.check_output(
        [bin_folder / "python", "-c", "import sys; print(*sys.version_info[:2])"], text=True
    )
    major, minor = map(int, tag.split())
    assert f"-{expected_tag((major, minor))}-" in wheel.name, f"{wheel.name} for Python {tag}"
    run(bin_folder / "python", "-c", CHECKS)
    run(bin_folder / "bcrf", "--version")
    run(bin_folder / "bcrf", "demo")


if __name__ == "__main__":
    sys.exit(main())
