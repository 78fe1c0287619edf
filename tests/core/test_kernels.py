"""Every kernel against the naive one, and the two ways to trim against each other."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

import bcrf
from bcrf.kernels import BACKEND_MODULES, pytorch
from bcrf.kernels.folded_chain import fold
from bcrf.numerics.logspace import logsumexp
from bcrf.numerics.trimming import _live_by_loop, _live_by_scan
from tests.strategies import random_chain_arrays

OTHERS = ["torch", "native"]
KINDS = ["none", "shared", "per_pair"]
SIZES = [(0, 2), (1, 3), (2, 3), (3, 1), (6, 3), (7, 4)]


def chains(n: int, tags: int, kind: str, removed: float) -> bcrf.LinearChain:
    arrays = random_chain_arrays(n, 6, n, tags, pairs=kind, removed=removed)  # type: ignore[arg-type]
    return bcrf.LinearChain(*arrays)


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("removed", [0.0, 0.4])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("n", "tags"), SIZES)
class TestKernel:
    @pytest.mark.parametrize("tolerance", [None, 1e-2, 1e-6])
    @pytest.mark.parametrize("relaxation", [1.0, "ramp"])
    @pytest.mark.parametrize("first", [1, 2])
    def test_project(self, name, n, tags, kind, removed, first, relaxation, tolerance) -> None:
        chain = chains(n, tags, kind, removed)
        naive, other = (
            bcrf.Bregman(9, tolerance, relaxation, first=first, backend=backend)(chain)
            for backend in ("naive", name)
        )
        assert_close(other.value, naive.value, rtol=0, atol=1e-10)
        assert_close(other.edge_marginals, naive.edge_marginals, rtol=0, atol=1e-10)
        assert_close(other.residual, naive.residual, rtol=0, atol=1e-10)
        assert not other.lam[~other.folded.interior_live].any()

    def test_messages(self, name, n, tags, kind, removed) -> None:
        chain = chains(n, tags, kind, removed)
        folded = fold(chain)
        naive, other = BACKEND_MODULES["naive"], BACKEND_MODULES[name]
        (beta, scale), (beta_2, scale_2) = (k.backward_messages(folded) for k in (naive, other))
        alpha, alpha_2 = (k.forward_messages(folded) for k in (naive, other))
        total, total_2 = logsumexp(beta[:, :1]), logsumexp(beta_2[:, :1])
        assert_close(total_2 + scale_2[:, None], total + scale[:, None], rtol=0, atol=1e-10)
        for one, two in ((beta, beta_2), (alpha, alpha_2)):
            # Equal up to a constant per position; dead tags have -inf.
            one, two = (
                (x - logsumexp(x).unsqueeze(-1)).masked_fill(~folded.live, 0) for x in (one, two)
            )
            assert_close(two, one, rtol=0, atol=1e-10)

    def test_best_paths(self, name, n, tags, kind, removed) -> None:
        chain = chains(n, tags, kind, removed)
        folded = fold(chain)
        naive, other = (chain.score(BACKEND_MODULES[k].best_paths(folded)) for k in ("naive", name))
        assert_close(other, naive, rtol=0, atol=1e-12)

    def test_gradients(self, name, n, tags, kind, removed) -> None:
        grads = []
        for backend in ("naive", name):
            chain = chains(n, tags, kind, removed)
            unary = chain.unary.clone().requires_grad_()
            chain = bcrf.LinearChain(unary, chain.transitions, chain.lengths)
            value = bcrf.ForwardBackward(backend=backend)(chain).value.sum()
            value = value + bcrf.Bregman(5, backend=backend)(chain).value.square().sum()
            grads.append(torch.autograd.grad(value, unary, materialize_grads=True)[0])
        assert_close(grads[1], grads[0], rtol=0, atol=1e-9)


@pytest.mark.parametrize("n", [1, 2, 3, 5, 8, 9])
def test_both_ways_to_trim_agree(n: int) -> None:
    generator = torch.Generator().manual_seed(n)
    for shape in ((3, 3), (40, n - 1, 3, 3)):
        nodes = torch.rand(40, n, 3, generator=generator) < 0.8
        pairs = torch.rand(shape, generator=generator) < 0.6
        lengths = torch.randint(n + 1, (40, 1), generator=generator)
        last = (torch.arange(n) == lengths - 1).unsqueeze(-1)
        loop = _live_by_loop(nodes, pairs, last)
        assert torch.equal(_live_by_scan(nodes, pairs, last), loop)
        assert loop.any()


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17, 33])
def test_scan_equals_the_recursion(n: int) -> None:
    for removed in (0.0, 0.4):
        folded = fold(chains(n, 3, "per_pair", removed))
        (beta, scale), (beta_2, scale_2) = (
            pytorch.backward_messages(folded),
            pytorch.scan_backward_messages(folded),
        )
        total, total_2 = logsumexp(beta[:, 0]) + scale, logsumexp(beta_2[:, 0]) + scale_2
        assert_close(total_2, total, rtol=1e-12, atol=1e-12)
        p, p_2 = (
            (a + b).masked_fill(~folded.live, -torch.inf).softmax(-1).nan_to_num(0)
            for a, b in (
                (pytorch.forward_messages(folded), beta),
                (pytorch.scan_forward_messages(folded), beta_2),
            )
        )
        assert_close(p_2, p, rtol=0, atol=1e-12)


def test_unknown_backend_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"backend must be 'auto' or one of .*'cuda'"):
        bcrf.viterbi(chains(3, 2, "none", 0.0), backend="cuda")
