"""The reason why the compiled kernels are unavailable: not built, or not loadable."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import bcrf

PROGRAM = """
import sys
# An editable installation would find the compiled extension elsewhere.
sys.meta_path = [finder for finder in sys.meta_path if "Redirecting" not in type(finder).__name__]
sys.path.insert(0, sys.argv[1])
import bcrf
assert bcrf.__file__.startswith(sys.argv[1])
print(bcrf.backends()["native"])
"""


@pytest.fixture
def copied_package(tmp_path: Path) -> Path:
    """Return the folder of a copy of the package without its extension."""
    source = Path(bcrf.__file__).parent
    ignored = shutil.ignore_patterns("*.so", "*.pyd", "__pycache__", "samples")
    shutil.copytree(source, tmp_path / "bcrf", ignore=ignored)
    return tmp_path


def reason(folder: Path, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM, str(folder)],
        env={**{k: v for k, v in os.environ.items() if k != "BCRF_NATIVE"}, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_an_extension_that_was_not_built(copied_package: Path) -> None:
    said = reason(copied_package)
    assert "was not built: there was no CMake or C++ compiler" in said
    assert "make native" in said


def test_an_extension_that_cannot_be_loaded(copied_package: Path) -> None:
    broken = copied_package / "bcrf" / "_native.abi3.so"
    broken.write_bytes(b"")
    assert "was built, but cannot be loaded" in reason(copied_package)
    assert "was built, but cannot be loaded" in reason(copied_package, BCRF_NATIVE=str(broken))
