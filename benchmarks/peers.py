"""Install the other libraries that the benchmark compares with.

    python -m benchmarks.peers install

An installation that fails does not stop the others; its error is kept in results/peers.json and
shown on the page. Torch is never installed here: the libraries are installed without their
dependencies, except small ones that the measured calls need.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from .systems.base import brief

__all__ = ["PEERS", "Steps", "error_of", "install"]

ROOT = Path(__file__).parent
ERRORS = ROOT / "results" / "peers.json"

ALONE = ("--no-deps", "--no-build-isolation")

Steps = tuple[tuple[str, ...], ...]

# Distribution -> one tuple of pip arguments for each step. `System.package` refers to the keys.
PEERS: dict[str, Steps] = {
    "matplotlib": (("matplotlib",),),
    # needed for the models of our taggers and for our logs
    "safetensors": (("safetensors",),),
    "filelock": (("filelock",),),
    "pytorch-crf": ((*ALONE, "pytorch-crf==0.7.2"),),
    "TorchCRF": ((*ALONE, "TorchCRF==1.1.0"),),
    "torch-struct": ((*ALONE, "torch-struct==0.5"),),
    # supar also requires transformers and stanza, but only its parsers import them.
    "supar": (("nltk", "tqdm", "dill"), (*ALONE, "supar==1.1.4")),
    # The wheels of later versions support torch up to 2.11 only, so we build torbi from source.
    "torbi": (("setuptools", "wheel"), (*ALONE, "--no-binary", "torbi", "torbi==1.3.3")),
    "python-crfsuite": ((*ALONE, "python-crfsuite==0.9.12"),),
}


def install(
    libraries: Mapping[str, Steps] = PEERS,
    errors_file: Path = ERRORS,
    python: str = sys.executable,
    pinned: bool = True,
) -> dict[str, str]:
    """Install all libraries; return distribution -> error for those that failed.

    Args:
        libraries: distribution -> one tuple of pip arguments for each step.
        errors_file: file to which the errors are written.
        python: the interpreter of the environment.
        pinned: whether the versions of constraints.txt hold.
    """
    errors = {}
    pip = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    pins = ROOT.parent / "constraints.txt"
    for name, steps in libraries.items():
        for step in steps:
            command = [*pip, *(["-c", str(pins)] if pinned and pins.exists() else []), *step]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                errors[name] = _reason(done.stderr)
                break
        print(f"{name}: {errors.get(name, 'installed')}", flush=True)
    errors_file.parent.mkdir(exist_ok=True)
    errors_file.write_text(json.dumps(errors, indent=1) + "\n")
    return errors


def _reason(output: str) -> str:
    """Return the last line of pip's output that names an error; other lines hold URLs and paths."""
    named = re.compile(r"error|.*Error:", re.IGNORECASE)
    lines = [line.strip() for line in output.splitlines() if named.match(line.strip())]
    return brief(lines[-1] if lines else "pip failed")


def error_of(package: str | None, errors_file: Path = ERRORS) -> str | None:
    """Return the error of the installation of a package; None if there is no error on record."""
    if package is None or not errors_file.exists():
        return None
    errors: dict[str, str] = json.loads(errors_file.read_text())
    return errors.get(package)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("command", choices=["install"])
    parser.parse_args()
    install()


if __name__ == "__main__":
    main()
