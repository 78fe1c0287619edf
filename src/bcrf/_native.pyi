"""The compiled kernels. `bcrf/kernels/native.py` is their only caller; see `native/kernels.h`.

Integers called after tensors are addresses, 0 for none. Results are 0, or 1 + the first sentence
that has no answer.
"""

from collections.abc import Sequence

threads: bool

def instruction_sets() -> list[str]: ...
def instruction_set() -> str: ...
def use_instruction_set(name: str) -> None: ...

class Problem:
    def __init__(
        self,
        wide: bool,
        threads: int,
        batch: int,
        n: int,
        tags: int,
        lengths: int,
        unary: int,
        left: int,
        right: int,
        by_sentence: int,
        by_position: int,
        pair: int,
        pairs_by_sentence: int,
        pairs_by_edge: int,
        shared: bool,
        scale: float,
        /,
    ) -> None: ...

def crf(
    problem: Problem,
    *,
    tags: int = 0,
    value: int = 0,
    unary_gradient: int = 0,
    pair_gradient: int = 0,
    pair_total: int = 0,
    every_edge: bool = False,
) -> int: ...
def bregman(
    problem: Problem,
    omegas: Sequence[float],
    first: int,
    tolerance: float,
    *,
    start: int = 0,
    gauge_right: bool = False,
    tags: int = 0,
    value: int = 0,
    unary_gradient: int = 0,
    pair_gradient: int = 0,
    pair_total: int = 0,
    every_edge: bool = False,
    dual: int = 0,
    marginals: int = 0,
    outgoing: bool = False,
    best: int = 0,
    residual: int = 0,
) -> int: ...
def viterbi(problem: Problem, tags: int, score: int, /) -> int: ...
def certified(
    problem: Problem,
    omegas: Sequence[float],
    temperature: float,
    tags: int,
    score: int,
    certified: int,
    /,
) -> int: ...
