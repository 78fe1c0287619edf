"""The command `bcrf`.

Each command is a module with a function `run(arguments)`. A command parses its arguments before it
imports the rest of the library, because importing torch takes seconds. So `--help` and the errors
about wrong arguments appear at once. `import bcrf.cli` does not import torch.
"""

from .main import main

__all__ = ["main"]
