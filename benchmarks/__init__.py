"""Measure the speed, memory and depth of bcrf and of other libraries.

- `python -m benchmarks` measures, logs, and writes docs/benchmarks.md.
- `python -m benchmarks.compare BEFORE AFTER` compares two source trees.
- `python -m benchmarks.convergence` measures the projections and writes docs/convergence.md.
- `python -m benchmarks.taggers --data DIR` compares taggers of several libraries.
- `python -m benchmarks.threads` measures `bcrf demo` with one and two threads.
"""
