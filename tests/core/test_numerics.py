"""Arithmetic: half, single and double precision, huge scores, underflow, long chains.

Results are compared with float64 on the same rounded scores, by the naive kernel where there is
one; tolerances are C * eps * max|w| * n.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import bcrf
from bcrf import LinearChain, Solver, Structure
from bcrf.numerics import logspace
from bcrf.numerics.logspace import log_matmul, logsumexp, softmax, wide_log_matmul
from tests.strategies import bies_follow

HALF, BRAIN, SINGLE, DOUBLE = torch.float16, torch.bfloat16, torch.float32, torch.float64
each_dtype = pytest.mark.parametrize("dtype", [HALF, BRAIN, SINGLE, DOUBLE], ids=str)

SOLVERS: dict[str, Solver] = {
    "bregman": bcrf.Bregman(),
    "paper": bcrf.Bregman.paper(),
    "tolerance": bcrf.Bregman(20, tolerance=1e-3),
    "crf": bcrf.ForwardBackward(),
    "scan": bcrf.ForwardBackward(parallel=True),
    "mean field": bcrf.MeanField(),
    "unstructured": bcrf.Unstructured(),
}
each_solver = pytest.mark.parametrize("name", SOLVERS)
NAIVE: dict[str, Solver] = SOLVERS | {
    "bregman": bcrf.Bregman(backend="naive"),
    "paper": dataclasses.replace(bcrf.Bregman.paper(), backend="naive"),
    "tolerance": bcrf.Bregman(20, tolerance=1e-3, backend="naive"),
    "crf": bcrf.ForwardBackward(backend="naive"),
    "scan": bcrf.ForwardBackward(backend="naive"),
}

B, N, T = 4, 5, 4
LENGTHS = [5, 4, 2, 1]


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def uniform(size: float, *shape: int, seed: int = 0) -> Tensor:
    return (torch.rand(*shape, generator=generator(seed), dtype=DOUBLE) * 2 - 1) * size


def peaked(*shape: int, seed: int = 0) -> Tensor:
    """Return scores in which one tag of each position is higher than the others by 80 to 200."""
    winner = torch.randint(T, shape[:-1], generator=generator(seed)).unsqueeze(-1)
    height = 140 + uniform(60, *shape[:-1], 1, seed=seed)
    return uniform(1, *shape, seed=seed + 1).scatter_add(-1, winner, height)


def make(case: str, dtype: torch.dtype) -> LinearChain:
    def chain(unary: Tensor, transitions: Tensor) -> LinearChain:
        return LinearChain(unary.to(dtype), transitions.to(dtype), LENGTHS)

    if case == "mild":
        return chain(uniform(3, B, N, T), uniform(3, T, T, seed=1))
    if case == "huge":
        return chain(uniform(1e4, B, N, T), uniform(1e4, T, T, seed=1))
    if case == "huge pairs":
        return chain(uniform(1e4, B, N, T), uniform(1e4, B, N - 1, T, T, seed=1))
    if case == "cold":
        return chain(uniform(5, B, N, T), uniform(5, T, T, seed=1)) / 0.01
    if case == "constant":
        return chain(torch.full((B, N, T), 7.3), torch.full((T, T), -900.0))
    if case == "one tag":
        return chain(uniform(100, B, N, 1), uniform(100, 1, 1, seed=1))
    if case == "peaked":
        return chain(peaked(B, N, T), uniform(1, B, N - 1, T, T, seed=3))
    _, start, end, follow = bies_follow()
    bies = chain(uniform(10, B, N, T), uniform(5, T, T, seed=1))
    return bies.constrain(Structure(start, end, follow)) / 0.1


CASES = ["huge", "huge pairs", "cold", "constant", "one tag", "peaked", "bies"]
each_case = pytest.mark.parametrize("case", CASES)
MIXED = [(case, dtype) for case in CASES for dtype in (SINGLE, DOUBLE)]
MIXED += [(case, dtype) for case in ("huge", "bies") for dtype in (HALF, BRAIN)]
each_case_and_dtype = pytest.mark.parametrize(("case", "dtype"), MIXED)


def bound(chain: LinearChain) -> float:
    """Return the accepted rounding error, 8 eps max(1, max|w|) n."""
    assert chain.transitions is not None
    scores = torch.cat([chain.unary.flatten(), chain.transitions.flatten()])
    largest = max(1.0, float(scores[scores > -math.inf].abs().max()))
    return 8 * torch.finfo(scores.dtype).eps * largest * chain.max_length


def assert_near(actual: Tensor, expected: Tensor, atol: float) -> None:
    assert bool(actual.isfinite().all())
    assert_close(actual.double(), expected, rtol=0, atol=atol)


def gold_tags(chain: LinearChain) -> Tensor:
    """Return the second best sequence of each sentence, or the best one if there is no other."""
    scores, tags = bcrf.k_best(chain, 2)
    return tags[:, 1].where(scores[:, 1:] > -math.inf, tags[:, 0])


def with_gradients(chain: LinearChain) -> tuple[LinearChain, list[Tensor]]:
    """Return a copy of the chain in its working precision, and its scores as leaf tensors."""
    assert chain.transitions is not None
    leaves = [x.detach().requires_grad_() for x in (chain.unary, chain.transitions)]
    return LinearChain._new(*leaves, chain.lengths, chain.dtype), leaves


def gradients(function: Callable[[LinearChain], Tensor], chain: LinearChain) -> list[Tensor]:
    chain, leaves = with_gradients(chain)
    found = torch.autograd.grad(function(chain).sum(), leaves, allow_unused=True)
    return [torch.zeros_like(x) if g is None else g for x, g in zip(leaves, found, strict=True)]


@each_case_and_dtype
@each_solver
def test_solvers_are_as_exact_as_their_input(name: str, case: str, dtype: torch.dtype) -> None:
    chain = make(case, dtype)
    wide, atol = chain.double(), bound(chain)
    working = SINGLE if dtype != DOUBLE else DOUBLE
    tags, allowed = gold_tags(chain), torch.rand(chain.unary.shape, generator=generator()) < 0.5
    allowed = allowed.scatter(-1, tags.clamp(min=0).unsqueeze(-1), True)
    reference = (NAIVE if dtype == DOUBLE else SOLVERS)[name]
    found, exact = SOLVERS[name](chain), reference(wide)

    assert found.value.dtype == found.residual.dtype == working
    assert_near(found.value, exact.value, atol)
    assert_near(found.residual, exact.residual, atol)
    assert_near(found.tag_probabilities(), exact.tag_probabilities(), atol)
    assert_near(found.edge_probabilities(), exact.edge_probabilities(), atol)
    for marginals, probabilities in (
        (found.tag_marginals, found.tag_probabilities()),
        (found.edge_marginals, found.edge_probabilities()),
    ):
        assert_close(marginals, probabilities.to(dtype), rtol=0, atol=0)

    losses: list[tuple[Callable[[Solver, LinearChain, Tensor], Tensor], Tensor]] = [
        (bcrf.loss, tags),
        (bcrf.partial_loss, allowed),
    ]
    for loss, gold in losses:
        value = loss(SOLVERS[name], chain, gold)
        assert value.dtype == working
        assert bool((value >= 0).all())
        assert_near(value, loss(reference, wide, gold), atol)
        grads = gradients(lambda c: loss(SOLVERS[name], c, gold), chain)  # noqa: B023
        expected = gradients(lambda c: loss(reference, c, gold), wide)  # noqa: B023
        assert_near(grads[0], expected[0], atol)
        assert_near(grads[1], expected[1], atol * B * N)


@each_case
@each_solver
def test_marginals_sum_to_one_at_any_size_of_the_scores(name: str, case: str) -> None:
    solution = SOLVERS[name](make(case, SINGLE))
    mask = solution.chain.mask.float()
    assert_close(solution.tag_marginals.sum(-1), mask, rtol=0, atol=2e-6)
    assert_close(solution.edge_marginals.sum((-2, -1)), mask[:, 1:], rtol=0, atol=4e-6)


@each_case_and_dtype
def test_decoding_is_as_exact_as_its_input(case: str, dtype: torch.dtype) -> None:
    chain = make(case, dtype)
    wide, atol = chain.double(), bound(chain)
    score, tags = bcrf.viterbi(chain)
    expected, best = bcrf.viterbi(wide, backend="naive")
    assert_near(score, expected, atol)
    assert_close(wide.score(tags), expected, rtol=1e-14, atol=0)  # a best path, not a nearly best
    if case != "constant":
        assert_close(tags, best)
    certified = bcrf.certified_decode(chain)
    assert_close(wide.score(certified.tags), expected, rtol=1e-13, atol=0)
    assert_near(certified.score, expected, atol)
    for name in SOLVERS:
        p = NAIVE[name](wide).tag_probabilities()
        decoded = bcrf.decode(SOLVERS[name], chain)
        chosen = p.gather(-1, decoded.clamp(min=0).unsqueeze(-1)).squeeze(-1)
        assert bool((chosen >= p.amax(-1) - atol)[chain.mask].all()), name
        assert bool((decoded[~chain.mask] == -100).all())


@each_case_and_dtype
def test_entropy_and_divergence(case: str, dtype: torch.dtype) -> None:
    chain = make(case, dtype)
    other = LinearChain(chain.unary.flip(0), chain.transitions, LENGTHS)
    other = (
        chain if case == "bies" else other
    )  # the start and end tags are not those of flipped ones
    wide, atol = chain.double(), bound(chain) * T
    for function, exact in (
        (bcrf.entropy, bcrf.entropy),
        (lambda c: bcrf.kl(c, other / 2), lambda c: bcrf.kl(c, other.double() / 2)),
    ):
        value, expected = function(chain), exact(wide)
        assert bool((value >= 0).all())
        assert_near(value, expected, atol)
        # Gradients are E[(log p) (score - E score)], so their errors grow with the scores.
        largest = float(expected.max()) + 1 + bound(chain) / torch.finfo(chain.unary.dtype).eps / N
        for grad, wanted in zip(gradients(function, chain), gradients(exact, wide), strict=True):
            assert_near(grad, wanted, atol * largest)


@each_dtype
def test_gradients_come_back_in_the_dtype_of_the_scores(dtype: torch.dtype) -> None:
    unary = uniform(1e4, B, N, T).to(dtype).requires_grad_()
    transitions = uniform(10, T, T).to(dtype).requires_grad_()
    for solver in SOLVERS.values():
        chain = LinearChain(unary, transitions, LENGTHS)
        loss = bcrf.loss(solver, chain, torch.zeros(B, N, dtype=torch.int64)).mean()
        grads = torch.autograd.grad(loss, [unary, transitions], allow_unused=True)
        assert {g.dtype for g in grads if g is not None} == {dtype}
        assert all(bool(g.isfinite().all()) for g in grads if g is not None)


FORMS = {"shared": ((7, 4), (4, 5)), "batched": ((3, 6, 1, 4), (3, 6, 4, 5))}
FORMS |= {"matrices": ((3, 6, 4), (3, 4, 5)), "broadcast": ((3, 6, 4), (4, 5))}


def product_reference(a: Tensor, b: Tensor, weight: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Value and gradients of sum(weight * log_matmul) in float64, from the terms one by one."""
    a, b = a.double().requires_grad_(), b.double().requires_grad_()
    terms = a.unsqueeze(-1) + b.unsqueeze(-3)
    out = torch.logsumexp(terms.detach(), -2)
    share = torch.exp(terms.detach() - out.clamp(min=-1e300).unsqueeze(-2))
    linear = torch.where(share > 0, terms, 0.0) * share * weight.unsqueeze(-2)
    return out, list(torch.autograd.grad(linear.sum(), [a, b]))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("size", [1.0, 20.0, 50.0, 100.0, 200.0, 1e4])
@pytest.mark.parametrize("removed", [0.0, 0.4])
def test_log_matmul_at_any_range(
    form: str, size: float, removed: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logspace, "_CHUNK", 60)  # several pieces of redone rows
    a, b = (uniform(size, *shape, seed=i).float() for i, shape in enumerate(FORMS[form]))
    a, b = (
        x.masked_fill(torch.rand(x.shape, generator=generator(9)) < removed, -math.inf)
        for x in (a, b)
    )
    if size >= 100:  # the scaling form alone would lose something
        shifted = (a - a.amax(-1, keepdim=True)).exp() @ (b - b.amax((-2, -1), keepdim=True)).exp()
        assert bool((shifted == 0).any())
    weight = uniform(1, *shifted_shape(a, b), seed=5)
    expected, wanted = product_reference(a, b, weight)
    a.requires_grad_(), b.requires_grad_()
    out = log_matmul(a, b)
    assert_close(out.double(), expected, rtol=0, atol=8 * 1.2e-7 * max(size, 1))
    used = torch.where(expected > -math.inf, out, 0.0)
    grads = torch.autograd.grad((used * weight).sum(), [a, b])
    for grad, want in zip(grads, wanted, strict=True):
        assert_near(grad, want, 20 * 1.2e-7 * max(size, 8))


def shifted_shape(a: Tensor, b: Tensor) -> torch.Size:
    return torch.broadcast_shapes(a.shape[:-1], (*b.shape[:-2], 1)) + b.shape[-1:]


@pytest.mark.parametrize("dtype", [SINGLE, DOUBLE])
@pytest.mark.parametrize("gap", [30.0, 42.0, 46.0, 50.0, 54.0, 60.0, 90.0, 200.0])
def test_second_order_of_log_matmul(gap: float, dtype: torch.dtype) -> None:
    """The result is a sum of two equal terms, each exp(-gap) times the largest possible one."""
    a = torch.tensor([[0.0, -gap / 2]], dtype=dtype, requires_grad=True)
    b = torch.tensor([[-gap, 0.0], [-gap / 2, 0.0]], dtype=dtype)
    (grad,) = torch.autograd.grad(log_matmul(a, b)[0, 0], a, create_graph=True)
    hessian = torch.stack([torch.autograd.grad(g, a, retain_graph=True)[0][0] for g in grad[0]])
    assert_close(grad, torch.full_like(grad, 0.5))
    assert_close(hessian, torch.tensor([[0.25, -0.25], [-0.25, 0.25]], dtype=dtype))


@pytest.mark.parametrize("function", [logsumexp, softmax])
def test_rows_of_minus_infinity(function: Callable[[Tensor], Tensor]) -> None:
    x = uniform(3, 3, 4).masked_fill(torch.tensor([[0.0], [1.0], [0.0]]) > 0, -math.inf)
    x[2, 1:] = -math.inf
    x.requires_grad_()
    out = function(x)
    weight = uniform(1, *out.shape, seed=1)
    assert bool((out[1] == (0 if function is softmax else -math.inf)).all())
    (grad,) = torch.autograd.grad((out * weight).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad((grad * uniform(1, *x.shape, seed=2)).sum(), x)
    assert_close(grad[1], torch.zeros(4, dtype=DOUBLE))
    assert_close(second[1], torch.zeros(4, dtype=DOUBLE))
    alone = x[0].detach().requires_grad_()
    (expected,) = torch.autograd.grad((function(alone) * weight[0]).sum(), alone)
    assert_close(grad[0], expected)
    assert bool(grad.isfinite().all() & second.isfinite().all())


@pytest.mark.parametrize("scale", [20.0, 100.0, 300.0])
@pytest.mark.parametrize("kind", ["shared", "per_pair"])
def test_derivatives_of_bregman_marginals_in_float32(scale: float, kind: str) -> None:
    """The implicit derivative solves a linear system whose diagonal has the masses of rare tags."""
    shape = (T, T) if kind == "shared" else (B, N - 1, T, T)
    chain = LinearChain(
        uniform(scale, B, N, T).float(), uniform(3, *shape, seed=1).float(), LENGTHS
    )
    weight = uniform(1, B, N, T, seed=2)
    solver = bcrf.Bregman(100)

    def objective(problem: LinearChain) -> Tensor:
        return solver(problem).tag_marginals * weight.to(problem.dtype)

    for grad, want in zip(
        gradients(objective, chain), gradients(objective, chain.double()), strict=True
    ):
        assert_near(grad, want, 1e-3)


@each_dtype
@pytest.mark.parametrize("confident", [False, True])
def test_losses_are_never_negative(dtype: torch.dtype, confident: bool) -> None:
    many, n = 2000, 5
    size = 300 if confident else 6
    unary, transitions = uniform(size, many, n, 3), uniform(size / 3, many, n - 1, 3, 3, seed=1)
    chain = LinearChain(unary.to(dtype), transitions.to(dtype))
    gold = torch.randint(3, (many, n), generator=generator())
    if confident:
        gold = bcrf.viterbi(chain)[1]
    allowed = torch.zeros(many, n, 3, dtype=torch.bool).scatter(-1, gold.unsqueeze(-1), True)
    allowed |= torch.rand(allowed.shape, generator=generator()) < 0.4
    solvers = {**SOLVERS, "paper": bcrf.Bregman(1), "tolerance": bcrf.Bregman(0)}
    for name, solver in solvers.items():
        assert float(bcrf.loss(solver, chain, gold).min()) >= 0, name
        assert float(bcrf.partial_loss(solver, chain, allowed).min()) >= 0, name
    if confident and dtype in (
        SINGLE,
        DOUBLE,
    ):  # teeth: the difference of value and score does fall below zero
        for name in ("bregman", "crf"):
            assert float((SOLVERS[name](chain).value - chain.score(gold)).min()) < 0, name


@each_solver
@pytest.mark.parametrize("case", ["mild", "bies"])
@pytest.mark.parametrize(("half", "backward_inside"), [(BRAIN, False), (HALF, False), (HALF, True)])
def test_autocast_changes_nothing(
    name: str, half: torch.dtype, case: str, backward_inside: bool
) -> None:
    chain, leaves = with_gradients(make(case, SINGLE))
    tags = gold_tags(chain)

    def forward() -> list[Tensor]:
        solution = SOLVERS[name](chain)
        marginals = [solution.tag_marginals, solution.edge_marginals]
        rest = [bcrf.entropy(chain), bcrf.viterbi(chain)[0]]
        return [bcrf.loss(SOLVERS[name], chain, tags), solution.value, *marginals, *rest]

    def backward(outputs: list[Tensor]) -> list[Tensor | None]:
        return list(torch.autograd.grad(outputs[0].sum(), leaves, allow_unused=True))

    expected = forward()
    gradient = backward(expected)
    with torch.autocast("cpu", dtype=half):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == half  # autocast is on
        found = forward()
        inside = backward(found) if backward_inside else []
    assert_close(found, expected, rtol=0, atol=0)
    for grad, want in zip(inside or backward(found), gradient, strict=True):
        assert_close(grad, want, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", ["bregman", "crf", "scan"])
def test_values_of_long_chains(name: str) -> None:
    chain = LinearChain(
        uniform(3, 2, 3000, 3).float(), uniform(3, 3, 3, seed=1).float(), [3000, 2001]
    )
    value, expected = SOLVERS[name](chain).value, SOLVERS[name](chain.double()).value
    assert_close(value.double(), expected, rtol=2e-6, atol=0)


@pytest.mark.parametrize(("name", "kind"), [("bregman", "shared"), ("crf", "per_pair")])
def test_training_far_into_underflow(name: str, kind: str) -> None:
    """Training stays finite when the scores have grown so large that scaled products underflow."""
    shape = (T, T) if kind == "shared" else (B, N - 1, T, T)
    unary, transitions = torch.zeros(B, N, T), torch.zeros(shape)
    gold = torch.randint(T, (2, B, N), generator=generator())
    for step in range(200):
        chain, leaves = with_gradients(LinearChain(unary, transitions, LENGTHS))
        # Gold tags alternate at first, so that gradients stay large.
        loss = bcrf.loss(SOLVERS[name], chain, gold[step % 2 if step < 150 else 0])
        assert bool((loss.isfinite() & (loss >= 0)).all()), step
        grads = torch.autograd.grad(loss.sum(), leaves)
        assert all(bool(g.isfinite().all()) for g in grads), step
        unary, transitions = unary - 300 * grads[0], transitions - 300 * grads[1]
    assert float(unary.abs().max()) > 200
    assert float(loss.detach().max()) < 1e-3


# The form of exported graphs


@pytest.mark.parametrize("gap", [0.0, 30.0, 300.0])
def test_wide_log_matmul_is_exact_in_the_range_of_float64(gap: float) -> None:
    """Sums of terms that are far below the largest entries of their row and column."""
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(5, 5, generator=generator) for _ in range(2))
    a[:, 0] += gap
    b[1] += gap
    a[2, 3] = b[4, 2] = b[0, 1] = -torch.inf
    found = wide_log_matmul(a, b)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, log_matmul(a, b), rtol=1e-6, atol=1e-5)


def test_wide_log_matmul_is_finite_beyond() -> None:
    a, b = torch.tensor([[0.0, -2000.0]]), torch.tensor([[-torch.inf], [0.0]])
    assert wide_log_matmul(a, b).tolist() == [[-690.0]]
