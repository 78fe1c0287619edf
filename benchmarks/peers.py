"""Install the systems to compare with, one by one; what fails becomes a row of the table.

    python -m benchmarks.peers install

Never installs torch: peers come without their dependencies, and with the light ones that they
need for what is measured. Errors are kept in results/peers.json.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path

from .systems.base import brief

__all__ = ["PEERS", "error_of", "install"]

ROOT = Path(__file__).parent
ERRORS = ROOT / "results" / "peers.json"

ALONE = ("--no-deps", "--no-build-isolation")

# Distribution -> what pip is asked for, step by step. The keys are the packages of the systems.
PEERS: dict[str, tuple[tuple[str, ...], ...]] = {
    "matplotlib": (("matplotlib",),),
    "safetensors": (("safetensors",),),  # which our taggers are kept in
    "pytorch-crf": ((*ALONE, "pytorch-crf==0.7.2"),),
    "TorchCRF": ((*ALONE, "TorchCRF==1.1.0"),),
    "torch-struct": ((*ALONE, "torch-struct==0.5"),),
    # Asks for transformers and stanza, which its parsers use when they run, not at import.
    "supar": (("nltk", "tqdm", "dill"), (*ALONE, "supar==1.1.4")),
    # The wheels of later versions hold libraries for torch up to 2.11: built here, for this torch.
    "torbi": (("setuptools", "wheel"), (*ALONE, "--no-binary", "torbi", "torbi==1.3.3")),
    "python-crfsuite": ((*ALONE, "python-crfsuite==0.9.12"),),
}


def install() -> dict[str, str]:
    """Errors by distribution; nothing here fails as a whole."""
    errors = {}
    pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    pins = ROOT.parent / "constraints.txt"
    for name, steps in PEERS.items():
        for step in steps:
            command = [*pip, *(["-c", str(pins)] if pins.exists() else []), *step]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                errors[name] = _reason(done.stderr)
                break
        print(f"{name}: {errors.get(name, 'installed')}", flush=True)
    ERRORS.parent.mkdir(exist_ok=True)
    ERRORS.write_text(json.dumps(errors, indent=1) + "\n")
    return errors


def _reason(output: str) -> str:
    """The last line of pip's output that names an error (others name addresses and paths)."""
    named = re.compile(r"error|.*Error:", re.IGNORECASE)
    lines = [line.strip() for line in output.splitlines() if named.match(line.strip())]
    return brief(lines[-1] if lines else "pip failed")


def error_of(package: str | None) -> str | None:
    """Why a package could not be installed, if that was tried and failed."""
    if package is None or not ERRORS.exists():
        return None
    errors: dict[str, str] = json.loads(ERRORS.read_text())
    return errors.get(package)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("command", choices=["install"])
    parser.parse_args()
    install()


if __name__ == "__main__":
    main()
