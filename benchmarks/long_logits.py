"""Measure `bcrf.decode_logits` on one long sentence: time on one core, and memory.

    python -m benchmarks.long_logits                       # n = 128,000, BIOES, T = 33; prints JSON
    python -m benchmarks.long_logits --scheme BIO --positions 32000

The logits are those of a confident classifier: O nearly everywhere, and a span of 1 to 4 positions
about every 40 positions. With `--noise 2`, about half of the positions are in spans. The memory is
the growth of the peak over the process that has imported torch and holds the logits. It includes
the import of bcrf. The first call is timed alone; the others follow in the same process.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from typing import Any

import torch

from measurement.process_memory import peak_memory, reset_peak
from measurement.timer import torch_threads

__all__ = ["main", "make_labels", "make_logits", "measure"]

PREFIXES = {"BIO": "BI", "BIOES": "BIES"}
CALLS = 5


def make_labels(scheme: str, num_tags: int = 33) -> list[str]:
    """Return O and the labels of as many types as fit, such as B-0, I-0, E-0, S-0."""
    prefixes = PREFIXES[scheme]
    types = range((num_tags - 1) // len(prefixes))
    return ["O", *(f"{prefix}-{kind}" for kind in types for prefix in prefixes)]


def make_logits(n: int, labels: Sequence[str], noise: float = 1.0) -> torch.Tensor:
    """Return float32 logits [n, T] of a confident classifier."""
    generator = torch.Generator().manual_seed(0)
    logits = noise * torch.randn(n, len(labels), generator=generator)
    logits[:, 0] += 8.0 if noise <= 1 else 3.0
    per_type = (len(labels) - 1) // len({label.partition("-")[2] for label in labels[1:]})
    single = per_type - 1 if per_type == 4 else 0
    for number, start in enumerate(range(5, n - 5, 40)):
        first, size = 1 + per_type * (number % ((len(labels) - 1) // per_type)), 1 + number % 4
        path = [first + single] if size == 1 else [first, *[first + 1] * (size - 1)]
        if size > 1 and per_type == 4:
            path[-1] = first + 2
        for place, tag in enumerate(path):
            logits[start + place, tag] += 14.0
    return logits


def measure(n: int, scheme: str, noise: float = 1.0) -> dict[str, Any]:
    """Return seconds and bytes of calls in this process, which must not have used bcrf before."""
    labels = make_labels(scheme)
    logits = make_logits(n, labels, noise)
    with torch_threads(1):
        before = reset_peak()
        import bcrf

        decode = bcrf.decode_logits
        seconds, cpu = [], []
        for _ in range(1 + CALLS):
            start = time.perf_counter(), time.process_time()
            found = decode(logits, labels)
            seconds.append(time.perf_counter() - start[0])
            cpu.append(time.process_time() - start[1])
            if len(seconds) == 1:
                peak = peak_memory() - before
    later = sorted(seconds[1:])
    return {
        "positions": n,
        "labels": len(labels),
        "scheme": scheme,
        "noise": noise,
        "spans": len(found.spans[0]),
        "first_seconds": round(seconds[0], 3),
        "median_seconds": round(later[CALLS // 2], 3),
        "median_cpu_seconds": round(sorted(cpu[1:])[CALLS // 2], 3),
        "peak_added_mb": round(peak / 1e6),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--positions", type=int, default=128_000)
    parser.add_argument("--scheme", choices=sorted(PREFIXES), default="BIOES")
    parser.add_argument("--noise", type=float, default=1.0, help="standard deviation of the logits")
    options = parser.parse_args(arguments)
    print(json.dumps(measure(options.positions, options.scheme, options.noise)))


if __name__ == "__main__":
    main()
