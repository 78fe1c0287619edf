"""`torch.func`: `vmap` over chains and `grad` of losses run on torch operations."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.func import grad, hessian, vmap
from torch.testing import assert_close

import bcrf
from bcrf import Bregman, ForwardBackward, LinearChain, MeanField, Solver, Unstructured

SOLVERS: dict[str, Solver] = {
    "crf": ForwardBackward(),
    "scan": ForwardBackward(parallel=True),
    "bregman": Bregman(),
    "tolerance": Bregman(20, tolerance=1e-2),
    "mean field": MeanField(3),
    "unstructured": Unstructured(),
}
each_solver = pytest.mark.parametrize("name", SOLVERS)
GROUPS, B, N, T = 3, 2, 5, 4


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape))).double()


UNARY, SHARED, PAIRS = random(GROUPS, B, N, T), random(T, T), random(GROUPS, B, N - 1, T, T)
TAGS = torch.randint(T, (GROUPS, B, N), generator=torch.Generator().manual_seed(0))


def loss(name: str, unary: Tensor, transitions: Tensor, tags: Tensor) -> Tensor:
    return bcrf.loss(SOLVERS[name], LinearChain(unary, transitions, [N, N - 2]), tags)


@each_solver
@pytest.mark.parametrize("shared", [True, False])
def test_vmap_of_a_loss_is_the_loss_of_each(name: str, shared: bool) -> None:
    pairs = SHARED.expand(GROUPS, T, T) if shared else PAIRS
    found = vmap(lambda u, p, t: loss(name, u, p, t))(UNARY, pairs, TAGS)
    assert_close(found, torch.stack([loss(name, *x) for x in zip(UNARY, pairs, TAGS, strict=True)]))


@each_solver
def test_one_argument_alone_may_be_mapped(name: str) -> None:
    found = vmap(lambda t: loss(name, UNARY[0], SHARED, t))(TAGS)
    assert_close(found, torch.stack([loss(name, UNARY[0], SHARED, t) for t in TAGS]))


@each_solver
def test_gradients_under_transforms(name: str) -> None:
    leaf = UNARY.clone().requires_grad_()
    total = sum(loss(name, u, SHARED, t).sum() for u, t in zip(leaf, TAGS, strict=True))
    (expected,) = torch.autograd.grad(total, leaf)

    def slope(u: Tensor, t: Tensor) -> Tensor:
        return grad(lambda x: loss(name, x, SHARED, t).sum())(u)

    assert_close(slope(UNARY[0], TAGS[0]), expected[0])
    assert_close(vmap(slope)(UNARY, TAGS), expected)
    outside = vmap(lambda u, t: loss(name, u, SHARED, t))(leaf, TAGS)
    assert_close(torch.autograd.grad(outside.sum(), leaf)[0], expected)


@each_solver
def test_vmap_of_marginals_and_best_sequences(name: str) -> None:
    def marginals(unary: Tensor) -> Tensor:
        return SOLVERS[name](LinearChain(unary, SHARED)).tag_marginals

    assert_close(vmap(marginals)(UNARY), torch.stack([marginals(u) for u in UNARY]))
    tags = vmap(lambda u: bcrf.viterbi(LinearChain(u, SHARED))[1])(UNARY)
    assert_close(tags, torch.stack([bcrf.viterbi(LinearChain(u, SHARED))[1] for u in UNARY]))


def test_second_derivatives_of_bregman_values_are_errors() -> None:
    """Such a derivative would treat the dual variables as constants."""

    def total(unary: Tensor) -> Tensor:
        return loss("bregman", unary, SHARED, TAGS[0]).sum()

    with pytest.raises(RuntimeError, match="second derivatives of a Bregman value"):
        hessian(total)(UNARY[0])
    leaf = UNARY.clone().requires_grad_()
    with pytest.raises(RuntimeError, match="second derivatives of a Bregman value"):
        vmap(grad(total))(leaf)
    mapped = vmap(total)(leaf).sum()
    with pytest.raises(RuntimeError, match="second derivatives of a Bregman value"):
        torch.autograd.grad(mapped, leaf, create_graph=True)
    with pytest.raises(RuntimeError, match="cannot differentiate Bregman marginals"):
        grad(lambda u: Bregman()(LinearChain(u, SHARED)).tag_marginals[0, 0, 0])(UNARY[0])
    assert hessian(lambda u: loss("crf", u, SHARED, TAGS[0]).sum())(UNARY[0]).isfinite().all()
