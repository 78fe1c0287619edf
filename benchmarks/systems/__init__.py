"""List the systems that the benchmark compares. Each library has a file of its own."""

from . import (
    crfsuite,
    floors,
    layers,
    loop,
    ours,
    pytorch_crf,
    scan,
    supar,
    torbi,
    torch_crf,
    torch_struct,
)
from .base import System, brief

__all__ = ["SYSTEMS", "System", "brief"]

SYSTEMS: dict[str, System] = {
    system.name: system
    for module in (
        ours,
        layers,
        pytorch_crf,
        torch_crf,
        torch_struct,
        supar,
        torbi,
        crfsuite,
        loop,
        scan,
        floors,
    )
    for system in module.SYSTEMS
}
