"""First and second derivatives against finite differences, and first ones against the marginals."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.testing import assert_close

import bcrf
from bcrf.inference import implicit
from tests.strategies import random_chain_arrays

CONVERGED = bcrf.Bregman(1000, tolerance=1e-13)
EXACT = [
    pytest.param(bcrf.ForwardBackward(), id="crf"),
    pytest.param(bcrf.ForwardBackward(parallel=True), id="crf-scan"),
    pytest.param(bcrf.ForwardBackward(backend="naive"), id="crf-naive"),
    pytest.param(CONVERGED, id="bregman"),
    pytest.param(bcrf.Unstructured(), id="unstructured"),
    pytest.param(bcrf.MeanField(3), id="mean-field"),
]
KINDS = ["shared", "per_pair"]
SHAPES = [(1, 3), (2, 2), (3, 2), (5, 3)]  # n, T


def check(function: Callable[..., Tensor], parameters: list[Tensor], order: int = 1) -> None:
    """Compare derivatives with finite differences, along random directions if there are many."""
    fast = sum(x.numel() for x in parameters) > 30
    assert gradcheck(function, parameters, fast_mode=fast)
    if order == 2:
        assert gradgradcheck(function, parameters, fast_mode=fast)


def problem(
    kind: str, n: int, tags: int, removed: float, seed: int = 0
) -> tuple[list[Tensor], Callable[..., bcrf.LinearChain]]:
    """Return finite parameters, and a function that makes a chain of them with fixed removed
    entries."""
    unary, transitions, lengths = random_chain_arrays(
        seed,
        2,
        n,
        tags,
        pairs=kind,  # type: ignore[arg-type]
        removed=removed,
    )
    gone = [x == -math.inf for x in (unary, transitions)]
    parameters = [
        x.masked_fill(mask, 0.5).requires_grad_()
        for x, mask in zip((unary, transitions), gone, strict=True)
    ]

    def chain(u: Tensor, w: Tensor) -> bcrf.LinearChain:
        u, w = (x.masked_fill(m, -math.inf) for x, m in zip((u, w), gone, strict=True))
        return bcrf.LinearChain(u, w, lengths)

    return parameters, chain


@pytest.mark.parametrize("removed", [0.0, 0.5])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("n", "tags"), SHAPES)
@pytest.mark.parametrize("solver", EXACT)
def test_value_and_marginals_by_finite_differences(
    solver: bcrf.Solver, n: int, tags: int, kind: str, removed: float
) -> None:
    parameters, chain = problem(kind, n, tags, removed)
    check(lambda u, w: solver(chain(u, w)).value, parameters, order=2)
    check(lambda u, w: solver(chain(u, w)).tag_marginals, parameters)
    check(lambda u, w: solver(chain(u, w)).edge_marginals, parameters)


@pytest.mark.parametrize("removed", [0.0, 0.5])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("solver", EXACT)
def test_losses_by_finite_differences(solver: bcrf.Solver, kind: str, removed: float) -> None:
    parameters, chain = problem(kind, 5, 3, removed, seed=1)
    tags = bcrf.viterbi(chain(*parameters))[1]
    allowed = torch.nn.functional.one_hot(tags.clamp(min=0), 3).bool()
    allowed |= torch.rand(allowed.shape, generator=torch.Generator().manual_seed(0)) < 0.4
    check(lambda u, w: bcrf.loss(solver, chain(u, w), tags), parameters, order=2)
    check(lambda u, w: bcrf.partial_loss(solver, chain(u, w), allowed), parameters, order=2)


@pytest.mark.parametrize("function", [bcrf.entropy, lambda c: bcrf.kl(c, c / 2)])
@pytest.mark.parametrize("removed", [0.0, 0.5])
def test_entropy_and_divergence_by_finite_differences(
    function: Callable[[bcrf.LinearChain], Tensor], removed: float
) -> None:
    parameters, chain = problem("shared", 4, 3, removed, seed=2)
    check(lambda u, w: function(chain(u, w)), parameters, order=2)


@pytest.mark.parametrize("removed", [0.0, 0.5])
@pytest.mark.parametrize("solver", [*EXACT[:5], bcrf.Bregman(0), bcrf.Bregman(3), bcrf.Bregman(10)])
def test_gradient_of_the_value_is_the_marginals(solver: bcrf.Solver, removed: float) -> None:
    """The gradient is the edge marginals at every k, and the tag marginals up to the residual."""
    (unary, pairs), chain = problem("per_pair", 6, 3, removed, seed=3)
    solution = solver(chain(unary, pairs))
    by_unary, by_pairs = torch.autograd.grad(
        solution.value.sum(), (unary, pairs), materialize_grads=True
    )
    if not isinstance(solver, bcrf.Unstructured):
        assert_close(by_pairs, solution.edge_marginals, rtol=0, atol=1e-12)
    # Half of a unary score is part of the arcs before it, and half of those after it.
    gap = 2 * float(solution.residual.max())
    assert_close(by_unary, solution.tag_marginals, rtol=0, atol=1e-9 + gap)


@pytest.mark.parametrize("solver", EXACT[:4])
def test_loss_gradient_is_marginals_less_gold(solver: bcrf.Solver) -> None:
    (unary, pairs), chain = problem("per_pair", 6, 3, 0.0, seed=4)
    tags = bcrf.sample(chain(unary, pairs), 1, torch.Generator().manual_seed(0))[0]
    gold = chain(unary, pairs).score(tags).sum()
    gold_by_pairs = torch.autograd.grad(gold, pairs)[0]
    found = torch.autograd.grad(bcrf.loss(solver, chain(unary, pairs), tags).sum(), pairs)[0]
    expected = solver(chain(unary, pairs)).edge_marginals - gold_by_pairs
    assert_close(found, expected, rtol=0, atol=1e-12)


def test_mean_field_gradient_is_its_marginals_at_a_fixed_point() -> None:
    (unary, pairs), chain = problem("per_pair", 5, 3, 0.0, seed=5)
    solution = bcrf.MeanField(500)(chain(unary, pairs * 0.3))
    by_unary = torch.autograd.grad(solution.value.sum(), unary)[0]
    assert_close(by_unary, solution.tag_marginals, rtol=0, atol=1e-9)


@pytest.mark.parametrize("shared", [True, False])
def test_mean_field_takes_many_upstream_gradients_at_once(shared: bool) -> None:
    generator = torch.Generator().manual_seed(3)
    unary = torch.randn(3, 4, 3, dtype=torch.float64, generator=generator).requires_grad_()
    shape = (3, 3) if shared else (3, 3, 3, 3)
    pair = torch.randn(shape, dtype=torch.float64, generator=generator).requires_grad_()
    chain, gold = bcrf.LinearChain(unary, pair, [4, 2, 3]), torch.zeros(3, 4, dtype=torch.int64)
    losses = bcrf.loss(bcrf.MeanField(3), chain, gold)
    eye = torch.eye(3, dtype=torch.float64)
    together = torch.autograd.grad(
        losses, (unary, pair), eye, is_grads_batched=True, retain_graph=True
    )
    for row in range(3):
        alone = torch.autograd.grad(losses[row], (unary, pair), retain_graph=True)
        assert_close([one[row] for one in together], list(alone))


def saved_bytes(iterations: int) -> int:
    (unary, pairs), chain = problem("shared", 6, 3, 0.0)
    total = 0

    def pack(x: Tensor) -> Tensor:
        nonlocal total
        total += x.numel() * x.element_size()
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        value = bcrf.Bregman(iterations)(chain(unary, pairs)).value.sum()
        gradient = torch.autograd.grad(value, unary, create_graph=True)[0]
        torch.autograd.grad(gradient.square().sum(), pairs)
    return total


def test_memory_does_not_depend_on_the_number_of_iterations() -> None:
    # Conjugate gradients save no tensors either; their number of steps may differ.
    assert saved_bytes(1000) == pytest.approx(saved_bytes(4000), rel=1e-3)
    assert saved_bytes(1000) > 0


def test_third_derivatives_are_refused_rather_than_wrong() -> None:
    (unary, pairs), chain = problem("shared", 5, 3, 0.0)
    value = CONVERGED(chain(unary, pairs)).value.sum()
    first = torch.autograd.grad(value, unary, create_graph=True)[0]
    second = torch.autograd.grad(first.square().sum(), unary, create_graph=True)[0]
    with pytest.raises(RuntimeError, match="third derivative"):
        torch.autograd.grad(second.square().sum(), unary, retain_graph=True)
    with pytest.raises(RuntimeError, match="third derivative"):
        second.square().sum().backward()
    marginals = CONVERGED(chain(unary, pairs)).tag_marginals
    first = torch.autograd.grad(marginals.square().sum(), unary, create_graph=True)[0]
    with pytest.raises(RuntimeError, match="third derivative"):
        torch.autograd.grad(first.square().sum(), pairs)


def test_unconverged_second_derivative_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(implicit, "_MAX_STEPS", 1)
    (unary, pairs), chain = problem("shared", 6, 3, 0.0)
    marginals = CONVERGED(chain(unary, pairs)).tag_marginals
    with pytest.warns(RuntimeWarning, match="conjugate gradients"):
        marginals.square().sum().backward()


def test_peaked_problems_have_second_derivatives() -> None:
    """With masses of 1e-12 and less, the linear solver would fail without its preconditioner."""
    parameters, chain = problem("per_pair", 6, 4, 0.2, seed=6)
    scaled = [(10 * x).detach().requires_grad_() for x in parameters]
    assert float(CONVERGED(chain(*scaled).detach()).tag_marginals[0, 0].min()) < 1e-6
    check(lambda u, w: CONVERGED(chain(u, w)).value, scaled, order=2)


READS: dict[str, Callable[[bcrf.Solution], Tensor]] = {
    "value": lambda s: s.value,
    "tag marginals": lambda s: s.tag_marginals,
    "edge marginals": lambda s: s.edge_marginals,
    "loss": lambda s: s.loss(torch.zeros(s.chain.mask.shape, dtype=torch.int64)),
    "partial loss": lambda s: s.partial_loss(
        torch.arange(s.chain.num_tags).expand(s.chain.unary.shape) < 2
    ),
}


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("solver", EXACT)
class TestGradMode:
    def test_reading_without_gradients_first_changes_nothing(
        self, solver: bcrf.Solver, kind: str, read: str
    ) -> None:
        parameters, chain = problem(kind, 5, 3, 0.0, seed=7)
        fresh, peeked = solver(chain(*parameters)), solver(chain(*parameters))
        with torch.no_grad():
            assert not any(function(peeked).requires_grad for function in READS.values())
        with torch.inference_mode():
            _ = peeked.tag_marginals, peeked.edge_marginals, peeked.value
        expected, found = (
            torch.autograd.grad(READS[read](s).square().sum(), parameters, materialize_grads=True)
            for s in (fresh, peeked)
        )
        assert_close(found, expected, rtol=0, atol=1e-12)

    def test_a_solution_made_without_gradients_has_none(
        self, solver: bcrf.Solver, kind: str, read: str
    ) -> None:
        parameters, chain = problem(kind, 5, 3, 0.0, seed=7)
        with torch.no_grad():
            solution = solver(chain(*parameters))
        assert not READS[read](solution).requires_grad
