"""Install the libraries whose taggers are compared.

    python -m benchmarks.taggers.install

spaCy and stanza are installed in the environment of this process, with the versions of
constraints.txt. flair needs older versions of transformers and conllu, so it gets an environment of
its own, with the same torch. An installation that fails does not stop the others; its error is
shown in place of the measurements.
"""

from __future__ import annotations

import json
import subprocess
import sys

import torch

from ..peers import ERRORS as PEER_ERRORS
from ..peers import Steps, install
from .systems import ROOT, SYSTEMS

__all__ = ["ERRORS", "LIBRARIES", "main"]

ERRORS = PEER_ERRORS.with_name("tagger-peers.json")

# Distribution -> one tuple of pip arguments for each step.
LIBRARIES: dict[str, Steps] = {
    "spacy": (("spacy==3.8.18",),),
    "stanza": (("stanza==1.15.0",),),
    "flair": (("flair==0.15.1", f"torch=={torch.__version__.partition('+')[0]}"),),
}


def main() -> None:
    separate = {s.package: s for s in SYSTEMS.values() if s.environment}
    here = {name: steps for name, steps in LIBRARIES.items() if name not in separate}
    errors = install(here, ERRORS)
    for name, system in separate.items():
        folder = ROOT / system.environment
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        errors |= install({name: LIBRARIES[name]}, ERRORS, system.python, pinned=False)
    ERRORS.write_text(json.dumps(errors, indent=1) + "\n")


if __name__ == "__main__":
    main()
