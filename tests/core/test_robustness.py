"""Unusual arguments: indices, devices, changes in place, sentences without a possible tag."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import bcrf
from tests.strategies import random_chain_arrays


@pytest.mark.parametrize("index", [None, True, (0, 1), "first", 1.0])
def test_indices_that_make_no_sense(index: object) -> None:
    with pytest.raises(TypeError, match="sentences are chosen by"):
        bcrf.LinearChain(torch.zeros(3, 2, 2))[index]  # type: ignore[index]


def test_sentences_lie_along_one_axis() -> None:
    with pytest.raises(IndexError, match="one axis"):
        bcrf.LinearChain(torch.zeros(3, 2, 2))[torch.tensor([[0, 1]])]


@pytest.mark.parametrize("lengths", [5, "abc", [None, 1], [1.0, 2.0], {1, 2}])
def test_lengths_that_make_no_sense(lengths: object) -> None:
    with pytest.raises((TypeError, ValueError), match="lengths must be"):
        bcrf.LinearChain(torch.zeros(2, 2, 2), None, lengths)  # type: ignore[arg-type]


def test_lengths_are_copied() -> None:
    lengths = torch.tensor([3, 1])
    chain = bcrf.LinearChain(torch.zeros(2, 3, 2), None, lengths)
    lengths.zero_()
    assert chain.lengths.tolist() == [3, 1]


def test_temperatures_of_one_element() -> None:
    chain = bcrf.LinearChain(torch.ones(2, 3, 2), torch.ones(2, 2))
    cooled = chain / torch.full((1, 1, 1, 1), 0.5, dtype=torch.float64)
    assert cooled.unary.shape == (2, 3, 2)
    assert cooled.unary.dtype == torch.float32
    assert_close(cooled.unary, torch.full((2, 3, 2), 2.0))


def test_the_default_device_does_not_matter() -> None:
    unary = torch.zeros(2, 3, 2)
    torch.set_default_device("meta")
    try:
        structure = bcrf.Structure.from_labels(["B", "I"], "BIO")
        chain = bcrf.LinearChain(unary, None, [3, 1]).constrain(structure)
        for backend in ("naive", "torch"):
            assert bcrf.viterbi(chain, backend)[1].device.type == "cpu"
        assert_close(bcrf.ForwardBackward()(chain).value[1], torch.zeros((), device="cpu"))
    finally:
        torch.set_default_device(None)


@pytest.mark.parametrize("solver", [bcrf.ForwardBackward(), bcrf.Bregman()])
def test_a_lost_sentence_without_checks_is_infinite_not_nan(solver: bcrf.Solver) -> None:
    chain = bcrf.LinearChain(*random_chain_arrays(0, 2, 4, 3, pairs="shared", ragged=False))
    allowed = torch.ones(2, 4, 3, dtype=torch.bool)
    expected = bcrf.partial_loss(solver, chain, allowed)
    allowed[1, 2] = False
    with bcrf.set_checks(False):
        found = bcrf.partial_loss(solver, chain, allowed)
    assert found[1] == torch.inf
    assert_close(found[0], expected[0])
    with pytest.raises(ValueError, match="sentence 1, position 2: no tag is allowed"):
        bcrf.partial_loss(solver, chain, allowed)


def test_partial_loss_keeps_its_digits_in_long_sentences() -> None:
    """The loss is a small difference of two sums over 500 words, each in the thousands."""
    unary, transitions, _ = random_chain_arrays(1, 2, 500, 5, scale=10.0, ragged=False)
    chain = bcrf.LinearChain(unary.float(), transitions.float())
    tags = bcrf.viterbi(chain)[1]
    tags[:, ::50] = (tags[:, ::50] + 1) % 5
    allowed = torch.nn.functional.one_hot(tags, 5).bool()
    for solver in (bcrf.ForwardBackward(), bcrf.Bregman()):
        found = bcrf.partial_loss(solver, chain, allowed)
        assert_close(found, bcrf.loss(solver, chain.double(), tags).float(), rtol=2e-5, atol=1e-4)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda c: c.restrict([[True]]), "allowed must be a bool tensor, got list"),
        (lambda c: c.constrain(torch.ones(2, 2)), "structure must be a Structure, got Tensor"),
        (lambda c: c.score([[0, 1]]), "tags must be a tensor, got list"),
    ],
)
def test_wrong_types_are_named(call, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(TypeError, match=message):
        call(bcrf.LinearChain(torch.zeros(1, 2, 2)))


def test_the_scan_has_one_backend() -> None:
    with pytest.raises(ValueError, match="no backend 'naive'"):
        bcrf.ForwardBackward(parallel=True, backend="naive")


def test_messages_do_not_copy_all_arcs_at_each_step() -> None:
    """The gradient of the loop over positions allocates a constant number of bytes per word."""

    def gradient_bytes(n: int) -> int:
        unary, pairs, _ = random_chain_arrays(2, 1, n, 3, pairs="per_pair", ragged=False)
        pairs.requires_grad_()
        value = bcrf.ForwardBackward()(bcrf.LinearChain(unary, pairs)).value.sum()
        with torch.profiler.profile(profile_memory=True) as profile:
            value.backward()
        return sum(max(event.self_cpu_memory_usage, 0) for event in profile.events())

    assert gradient_bytes(128) < 2.5 * gradient_bytes(64)


class LargestTensor(TorchDispatchMode):
    """Records the largest number of elements of a tensor that an operation returns."""

    def __init__(self) -> None:
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        result = function(*args, **(kwargs or {}))
        for x in tree_leaves(result):
            if isinstance(x, torch.Tensor):
                self.numel = max(self.numel, x.untyped_storage().nbytes() // x.element_size())
        return result


@pytest.mark.parametrize(
    "solver",
    [bcrf.Bregman(), bcrf.Bregman(50, 1e-4), bcrf.ForwardBackward(), bcrf.MeanField()],
    ids=["bregman", "bregman-tolerance", "crf", "mean-field"],
)
def test_shared_transitions_are_never_copied_to_every_edge(solver: bcrf.Solver) -> None:
    """Loss, gradient, marginals and decoding make no tensor of the size [B, n, T, T]."""
    unary, transitions, lengths = random_chain_arrays(3, 4, 40, 16)
    for scores in (unary, transitions):
        scores.requires_grad_()
    tags = torch.zeros(4, 40, dtype=torch.int64)
    with LargestTensor() as largest:
        chain = bcrf.LinearChain(unary, transitions, lengths)
        bcrf.loss(solver, chain, tags).sum().backward()
        _ = solver(chain).tag_marginals
        bcrf.decode(solver, chain)
        bcrf.viterbi(chain)
    # Mean field stores its distributions, and the gradients of all updates, in one tensor each.
    arrays = 2 if not isinstance(solver, bcrf.MeanField) else solver.iterations + 2
    assert largest.numel <= arrays * 4 * 40 * 16
