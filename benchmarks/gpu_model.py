"""Estimate the time of a call on a GPU from launches, bytes and dependent steps.

Nobody has measured these times. The model is for comparisons that differ by a factor of two or
more, and for the question which of two methods wins at which shape.

    time = launches * LAUNCH + waits * WAIT + bytes / BANDWIDTH + steps * STEP

Torch code has no steps: a kernel is short, and the launches hide its latency. A fused Triton kernel
has few launches, and its steps run one after the other inside a program:

| kernel | steps |
|---|---|
| forward and backward messages (at the same time) | n |
| gradient, from the messages | 2 c |
| k projections of a tile of c positions, with a halo of k + 2 on both sides | k * 2 * ceil((c + 2 k + 4) / 2 / p) |
| Bregman gradient | 2 c |

c is the number of positions of a program, and p the number of positions that it projects at a time.
If there are more programs than `PROGRAMS`, they run in several waves.
"""  # noqa: E501

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = [
    "AROUND",
    "BANDWIDTH",
    "CHUNK",
    "EDGES",
    "LAUNCH",
    "PROGRAMS",
    "STEP",
    "WAIT",
    "Estimate",
    "estimate_fused",
]

LAUNCH = 5e-6
"""Seconds between the launches of two short kernels from Python."""

WAIT = 20e-6
"""Seconds that a synchronisation adds."""

BANDWIDTH = 1.5e12
"""Bytes per second of the device's memory (an A100 has 1.6e12, an H100 3.4e12)."""

STEP = 0.25e-6
"""Seconds of one product of a matrix and a vector in log space, for up to 32 tags."""

AROUND = 5
"""Launches of torch around the Triton kernels: the dtype and sum of the loss, scaled gradients."""

CHUNK = 16
"""Positions of one program of the gradient kernels. Beyond them, torch sums over programs."""

EDGES = 32
"""Edges of one program that adds up Bregman gradients with respect to shared transitions."""

PROGRAMS = 324
"""Programs that run at the same time: 108 multiprocessors, with registers for 3 programs each."""


@dataclass(frozen=True)
class Estimate:
    """What a call needs, and the seconds that the model derives from it."""

    launches: int
    waits: int = 0
    bytes: int = 0
    steps: float = 0.0

    @property
    def seconds(self) -> float:
        return (
            self.launches * LAUNCH + self.waits * WAIT + self.bytes / BANDWIDTH + self.steps * STEP
        )


def estimate_fused(
    family: str, batch: int, length: int, tags: int, projections: int = 10
) -> Estimate:
    """Return the estimate of a loss + gradient by the Triton kernels; shared transitions, float32.

    Args:
        family: "crf" or "bregman".
    """
    from bcrf.kernels.triton.projections import block_sizes, tile_size

    chunks = math.ceil(length / CHUNK)
    vector = 4 * batch * length * tags  # bytes of one tensor [B, n, T]
    sums = 4 * batch * chunks * tags**2
    # Three readings of the unary scores, messages or the dual point, and the gradient.
    traffic = 6 * vector + 3 * sums
    several = chunks > 1  # then torch adds up what the programs store
    gradient = _waves(batch * chunks) * 2 * CHUNK
    if family == "crf":
        messages = _waves(2 * batch) * length
        return Estimate(2 + several + AROUND, bytes=traffic, steps=messages + gradient)
    halo = projections + 2
    tile = tile_size(batch, length, halo)
    tiles = math.ceil(length / tile)
    window = tile + 2 * halo if tiles > 1 else length
    at_a_time, _ = block_sizes(tags, 4)
    project = projections * 2 * math.ceil(window / 2 / at_a_time)
    steps = _waves(batch * tiles) * project + gradient
    summed = several + (length - 1 > EDGES)  # values, and transition gradients
    return Estimate(3 + summed + AROUND, bytes=traffic, steps=steps)


def _waves(programs: int) -> int:
    return math.ceil(programs / PROGRAMS)
