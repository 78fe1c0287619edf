"""Run `python -m benchmarks`."""

from .run import main

main()
