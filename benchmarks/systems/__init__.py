"""The systems that are compared, one file each."""

from . import (
    crfsuite,
    floors,
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
