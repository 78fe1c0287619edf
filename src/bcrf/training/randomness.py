"""Random numbers that depend on nothing but where in a run they are drawn."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["seeded"]


@contextmanager
def seeded(device: torch.device, *where: object) -> Iterator[None]:
    """Within the block torch's generators are seeded by `where`; after it they are as before.

    So what a step draws is a function of the run's seed, its epoch, its number and its process: a
    run that is resumed needs to know no other state, and whoever draws numbers between two steps
    changes nothing.
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
