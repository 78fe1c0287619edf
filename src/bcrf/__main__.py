"""Run the command line `bcrf` as `python -m bcrf`."""

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
