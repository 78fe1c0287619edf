"""The compiled kernels. `bcrf/kernels/native.py` is their only caller, and says what they do.

They return None if a sentence is invalid. A tolerance below zero is none.
"""

from collections.abc import Sequence
from types import ModuleType

from torch import Tensor

threads: bool

def use_torch(torch: ModuleType, /) -> None: ...
def instruction_sets() -> list[str]: ...
def instruction_set() -> str: ...
def use_instruction_set(name: str) -> None: ...
def crf(
    unary: Tensor,
    pair: Tensor,
    lengths: Tensor | None,
    follow: Tensor | None,
    tags: Tensor | None,
    by_unary: bool,
    by_pair: bool,
    every_edge: bool,
    in_float64: bool,
    threads: int,
    /,
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None] | None: ...
def bregman(
    unary: Tensor,
    pair: Tensor,
    lengths: Tensor | None,
    follow: Tensor | None,
    tags: Tensor | None,
    by_unary: bool,
    by_pair: bool,
    every_edge: bool,
    in_float64: bool,
    threads: int,
    omegas: Sequence[float],
    first: int,
    tolerance: float,
    gauge_right: bool,
    /,
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None] | None: ...
def bregman_result(
    unary: Tensor,
    pair: Tensor,
    lengths: Tensor | None,
    threads: int,
    omegas: Sequence[float],
    first: int,
    tolerance: float,
    gauge_right: bool,
    outgoing: bool,
    /,
) -> tuple[Tensor, Tensor, Tensor, Tensor] | None: ...
def most_probable(
    unary: Tensor,
    pair: Tensor,
    lengths: Tensor | None,
    threads: int,
    omegas: Sequence[float],
    first: int,
    tolerance: float,
    gauge_right: bool,
    outgoing: bool,
    temperature: float,
    /,
) -> Tensor | None: ...
def project(
    left: Tensor,
    right: Tensor,
    pair: Tensor,
    lengths: Tensor,
    start: Tensor,
    threads: int,
    omegas: Sequence[float],
    first: int,
    tolerance: float,
    /,
) -> Tensor | None: ...
def viterbi(
    unary: Tensor, pair: Tensor, lengths: Tensor | None, in_float64: bool, threads: int, /
) -> tuple[Tensor, Tensor] | None: ...
def certified(
    unary: Tensor,
    pair: Tensor,
    lengths: Tensor | None,
    in_float64: bool,
    threads: int,
    omegas: Sequence[float],
    temperature: float,
    /,
) -> tuple[Tensor, Tensor, Tensor] | None: ...
def scale(grad: Tensor, unary: Tensor | None, pair: Tensor | None, /) -> bool: ...
def scan_mask(
    mask: Tensor | None, tags: Tensor | None, /
) -> tuple[Tensor | None, Tensor | None, bool, bool]: ...
def add_start_end(unary: Tensor, start_end: Tensor, lengths: Tensor, /) -> Tensor: ...
def sum_start_end(by_unary: Tensor, lengths: Tensor, /) -> Tensor: ...
