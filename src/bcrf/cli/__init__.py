"""The command line: thin shells over plain functions.

What a command needs beyond the core is imported when it runs, and asked for by name if it is not
installed.
"""

from .main import main

__all__ = ["main"]
