"""`python -m bcrf` is the command `bcrf`."""

import sys

from bcrf.cli import main

if __name__ == "__main__":
    sys.exit(main())
