"""Random numbers that depend only on the place in a run where they are drawn."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["seeded"]


@contextmanager
def seeded(device: torch.device, *where: object) -> Iterator[None]:
    """Seed the generators of torch with `where` inside the block; restore them after it.

    So the random numbers of a step are a function of the seed of the run, the epoch, the step and
    the process. A resumed run needs no saved generator. Random numbers that are drawn between two
    steps do not change the result.
    """
    text = " ".join(map(str, where)).encode()
    seed = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 1
    gpu = device.type == "cuda"
    with torch.random.fork_rng(devices=[device] if gpu else []):
        torch.default_generator.manual_seed(seed)
        if gpu:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield
