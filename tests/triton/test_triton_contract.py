"""The Triton kernels under the contract of all solvers and functions, on a few of its cases.

The interpreter is slow, so this calls the tests of `tests.core.test_contract` with one or two
chains each instead of adding the backend to their parameters.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from bcrf import Bregman, ForwardBackward, Solver
from tests.core import test_contract as contract
from tests.subjects import parametrize
from tests.triton.support import needs_triton

pytestmark = needs_triton

CRF: dict[str, Solver] = {"crf-triton": ForwardBackward(backend="triton")}
BREGMAN: dict[str, Solver] = {"bregman-triton": Bregman(3, backend="triton")}
SOLVERS = CRF | BREGMAN
FUNCTIONS = ("viterbi-triton", "certified_decode-triton")

Case = tuple[Callable[..., None], tuple[Any, ...]]

OF_SOLVERS: tuple[Case, ...] = (
    (contract.test_shapes, (0, 3, 3, "per_pair")),
    (contract.test_shapes, (2, 0, 3, "per_pair")),
    (contract.test_shapes, (1, 2, 1, "per_pair")),
    (contract.test_shapes, (2, 1, 3, "shared")),
    (contract.test_marginals_are_distributions, ("per_pair", 0.4)),
    (contract.test_marginals_are_distributions, ("none", 0.0)),
    (contract.test_losses_are_never_negative, (1e4, 0.4)),
    (contract.test_nothing_beyond_the_length_matters, (math.nan, "per_pair")),
    (contract.test_one_allowed_tag_per_position_is_the_loss, ("shared",)),
    (contract.test_all_tags_allowed_is_no_loss, ("per_pair",)),
    (contract.test_a_batch_is_its_sentences, ("per_pair", 0.4)),
    (contract.test_gradients_of_a_batch, ("shared", "loss")),
    (contract.test_gradients_of_a_batch, ("per_pair", "partial_loss")),
)
OF_FEW_SENTENCES: tuple[Case, ...] = (
    (contract.test_dtypes, (torch.float16,)),
    (contract.test_dtypes, (torch.bfloat16,)),
    (contract.test_temperature_divides_the_scores, (0.1,)),
    (contract.test_repeated_matrices_are_a_shared_one, (0.4,)),
    (contract.test_no_transitions_are_zero_transitions, (0.4,)),
    (contract.test_tags_have_no_order, (0.4,)),
)
OF_CONSISTENT: tuple[Case, ...] = (
    (contract.test_tag_marginals_are_sums_of_edge_marginals, (0.4,)),
    (contract.test_fewer_allowed_tags_cost_more, ()),
    (contract.test_cold_decoding_finds_the_best_sequence, ()),
)
OF_FUNCTIONS: tuple[Case, ...] = (
    (contract.test_functions_of_a_chain_ignore_the_padding, (math.nan,)),
    (contract.test_scores_have_no_gradient_beyond_the_length, ()),
    (contract.test_functions_of_a_batch, ("shared", 0.4)),
)
WITHOUT_KERNELS = {contract.test_settings_are_values, contract.test_temperature_is_positive}


@pytest.fixture(autouse=True)
def smaller_contract(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use fewer sentences, and let the contract know which solver has not converged."""
    monkeypatch.setattr(contract, "EIGHT", (0, 1, 3))
    monkeypatch.setitem(contract.BREGMAN, "bregman-triton", BREGMAN["bregman-triton"])


def each(cases: tuple[Case, ...]) -> pytest.MarkDecorator:
    names = [
        "-".join([test.__name__.removeprefix("test_"), *map(str, rest)]) for test, rest in cases
    ]
    return pytest.mark.parametrize(("test", "arguments"), cases, ids=names)


@each(OF_SOLVERS)
@parametrize(SOLVERS)
def test_solvers(test: Callable[..., None], arguments: tuple[Any, ...], solver: Solver) -> None:
    test(solver, *arguments)


@each(OF_FEW_SENTENCES)
@parametrize(SOLVERS)
def test_solvers_of_few_sentences(
    test: Callable[..., None],
    arguments: tuple[Any, ...],
    solver: Solver,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    few = (0, 1, 3)
    monkeypatch.setattr(contract, "LENGTHS", few)
    for name in ("ragged", "labelled"):
        monkeypatch.setattr(contract, name, partial(getattr(contract, name), lengths=few))
    test(solver, *arguments)


@each(OF_CONSISTENT)
def test_consistent_solvers(test: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    test(CRF["crf-triton"], *arguments)


@pytest.mark.parametrize("function", FUNCTIONS)
@each(OF_FUNCTIONS)
def test_functions(test: Callable[..., None], arguments: tuple[Any, ...], function: str) -> None:
    test(function, *arguments)


def test_no_part_of_the_contract_is_missing() -> None:
    whole = {value for name, value in vars(contract).items() if name.startswith("test_")}
    cases = (*OF_SOLVERS, *OF_FEW_SENTENCES, *OF_CONSISTENT, *OF_FUNCTIONS)
    run = {test for test, _ in cases}
    assert run | WITHOUT_KERNELS == whole
