"""The compiled kernels keep the memory of freed results for the next call."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import Tensor

from bcrf.kernels import native
from tests.comparing import any_path, needs_native, problem

pytestmark = needs_native


def slopes(seed: int, batch: int = 9, n: int = 20) -> list[Tensor]:
    """Return the value, and its gradients with respect to unary and pair scores."""
    chain = problem(seed, [n] * batch, 17, "per_pair")
    arrays = (chain.unary, chain.pair_scores, chain.lengths)
    found = native.crf(*arrays, any_path(chain), (True, True))
    assert found is not None
    return [x for x in found if x is not None]


def overlap(one: Tensor, other: Tensor) -> bool:
    first, second = sorted((x.data_ptr(), x.data_ptr() + x.nbytes) for x in (one, other))
    return second[0] < first[1]


def test_memory_is_used_again() -> None:
    where = {x.data_ptr() for x in slopes(0)}
    assert where & {x.data_ptr() for x in slopes(1)}


def test_results_that_are_alive_keep_their_memory() -> None:
    kept = [slopes(seed) for seed in range(20)]
    copies = [[x.clone() for x in found] for found in kept]
    del kept[::2]  # its memory goes to those that follow
    for seed in range(20, 40):
        slopes(seed)
    assert all(
        torch.equal(x, y)
        for found, copy in zip(kept, copies[1::2], strict=True)
        for x, y in zip(found, copy, strict=True)
    )
    tensors = [x for found in kept for x in found]
    assert not any(overlap(x, y) for i, x in enumerate(tensors) for y in tensors[:i])


def test_views_keep_the_memory_of_their_base() -> None:
    part = slopes(0)[2][3, 4]
    copy = part.clone()
    for seed in range(1, 5):
        slopes(seed)
    assert torch.equal(part, copy)


def test_results_are_ordinary_tensors() -> None:
    value, unary, pair = slopes(0)
    for x, shape in ((value, (9,)), (unary, (9, 20, 17)), (pair, (9, 19, 17, 17))):
        assert x.shape == shape
        assert x.is_contiguous()
        assert not x.requires_grad
        assert x.data_ptr() % 64 == 0
        x += 1  # may be written to
    for x in slopes(0, batch=0):
        assert x.stride() == torch.empty(x.shape).stride()


@pytest.mark.parametrize("seed", range(3))
def test_results_are_freed_in_other_threads(seed: int) -> None:
    """Several threads make results at the same time, and free those of other threads."""
    expected = [slopes(k) for k in range(4)]
    wrong: list[int] = []
    passed_on: list[list[Tensor]] = []

    def work(first: int) -> None:
        for k in range(40):
            which = (first + k + seed) % 4
            found = slopes(which)
            passed_on.append(found)
            if k % 3 == 0:
                passed_on.pop(0)
            if not all(torch.equal(x, y) for x, y in zip(found, expected[which], strict=True)):
                wrong.append(which)

    workers = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert wrong == []
