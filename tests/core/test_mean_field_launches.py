"""On a GPU, mean field and the unstructured model need few launches, and never wait."""

from __future__ import annotations

from typing import Literal

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import bcrf
from bcrf import LinearChain, MeanField, Solver, Structure, Unstructured
from bcrf.compat.private_torch import in_function_transform
from bcrf.inference import mean_field
from measurement.launches import LaunchCounter
from tests.strategies import Pairs, bies_follow, random_chain_arrays
from tests.subjects import KINDS, allowed_with, gold_of, ragged_chain, scores_of, with_scores

Initial = Literal["unary", "uniform"]

B, T = 32, 17
LABELS = ["O", *(f"{prefix}-{i}" for i in range(8) for prefix in "BI")]
RULES = Structure.from_labels(LABELS, "BIO")


def launches(
    solver: Solver, n: int, kind: str, structure: Structure | None, finite: bool, partial: bool
) -> int:
    """Return the number of launches of a loss and its gradient, on meta tensors."""
    unary = torch.empty(B, n, T, device="meta", requires_grad=True)
    shape = (T, T) if kind == "shared" else (B, n - 1, T, T)
    transitions = torch.empty(shape, device="meta", requires_grad=True)
    lengths = torch.empty(B, dtype=torch.int64, device="meta")
    rules = None if structure is None else structure.to("meta")
    chain = LinearChain(unary, transitions, lengths, structure=rules, finite=finite)
    with LaunchCounter(refuse_waiting=True) as counter:
        if partial:
            allowed = torch.empty(unary.shape, dtype=torch.bool, device="meta")
            loss = bcrf.partial_loss(solver, chain, allowed)
        else:
            loss = bcrf.loss(solver, chain, torch.empty(B, n, dtype=torch.int64, device="meta"))
        loss.sum().backward()
    return counter.launches


@pytest.mark.parametrize("n", [32, 256])
@pytest.mark.parametrize("kind", ["shared", "per_pair"])
@pytest.mark.parametrize(
    ("structure", "finite", "most"),
    [(None, True, 150), (RULES, True, 165), (None, False, 165), (RULES, False, 170)],
    ids=["finite", "finite, rules", "undeclared", "undeclared, rules"],
)
@pytest.mark.parametrize("partial", [False, True], ids=["tags", "sets"])
def test_mean_field(
    n: int, kind: str, structure: Structure | None, finite: bool, most: int, partial: bool
) -> None:
    more = 20 if partial else 0  # the sum over the allowed tags
    assert launches(MeanField(10), n, kind, structure, finite, partial) <= most + more


@pytest.mark.parametrize("kind", ["shared", "per_pair"])
def test_the_unstructured_model(kind: str) -> None:
    assert launches(Unstructured(), 64, kind, RULES, True, False) <= 40


def generic(chain: LinearChain, tags: Tensor, iterations: int, initial: Initial) -> Tensor:
    """Compute the loss with operations that autograd differentiates, as in a graph."""
    unary, pair = mean_field._finite_scores(chain, 2.0)
    log_r = mean_field._run_updates(unary, pair, chain.mask[:, 1:], iterations, initial)
    return bcrf.inference.mean_field.MeanFieldSolution(chain, bcrf.MeanField(), log_r).loss(tags)


@pytest.mark.parametrize(
    ("iterations", "initial"),
    [(0, "unary"), (1, "unary"), (4, "unary"), (1, "uniform"), (4, "uniform")],
)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("removed", [0.0, 0.4])
def test_updates_in_place_equal_those_that_autograd_sees(
    iterations: int, kind: Pairs, removed: float, initial: Initial
) -> None:
    assert not in_function_transform()
    chain = ragged_chain(3, (0, 1, 2, 3, 7), 4, n=8, pairs=kind, removed=removed)
    gold = gold_of(chain)
    results = []
    for loss in (
        lambda c: bcrf.loss(MeanField(iterations, initial=initial), c, gold),
        lambda c: generic(c, gold, iterations, initial),
    ):
        scores = scores_of(chain)
        value = loss(with_scores(chain, scores))
        weighted = (value * torch.arange(1.0, 6.0, dtype=value.dtype)).sum()
        results.append((value, *torch.autograd.grad(weighted, scores, allow_unused=True)))
    for actual, expected in zip(*results, strict=True):
        assert (actual is None) == (expected is None) or iterations == 0
        if actual is not None and expected is not None:
            assert_close(actual, expected, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("kind", ["shared", "per_pair"])
@pytest.mark.parametrize("rules", [True, False])
def test_declared_chains_have_the_same_results(kind: Pairs, rules: bool) -> None:
    arrays = random_chain_arrays(0, 4, 6, 4, pairs=kind, ragged=True)
    _, start, end, follow = bies_follow()
    structure = Structure(start, end, follow) if rules else None
    found = []
    for finite in (False, True):
        unary = arrays.unary.clone().requires_grad_()
        chain = LinearChain(
            unary, arrays.transitions, arrays.lengths, structure=structure, finite=finite
        )
        solution = MeanField(5)(chain)
        allowed = allowed_with(chain, gold_of(chain))
        value = solution.partial_loss(allowed)
        found.append((value, solution.value, *torch.autograd.grad(value.sum(), unary)))
    assert_close(found[1], found[0], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", ["shared", "per_pair"])
def test_autocast_does_not_round(kind: Pairs) -> None:
    arrays = random_chain_arrays(0, 4, 6, 4, pairs=kind, dtype=torch.float32)
    assert arrays.transitions is not None
    found = []
    for enabled in (False, True):
        scores = [x.clone().requires_grad_() for x in (arrays.unary, arrays.transitions)]
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            chain = LinearChain(*scores, arrays.lengths)
            value = MeanField(5)(chain).partial_loss(allowed_with(chain, gold_of(chain)))
            found.append((value, *torch.autograd.grad(value.sum(), scores)))
    assert_close(found[1], found[0], rtol=0, atol=0)
