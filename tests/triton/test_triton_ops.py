"""The Triton kernels as torch operators, and in compiled graphs, run by the interpreter."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from torch.testing import assert_close

import bcrf
from bcrf import Bregman, ForwardBackward, LinearChain
from bcrf.kernels import custom_ops
from tests.comparing import any_path
from tests.strategies import Pairs
from tests.subjects import ragged_chain, scores_of, with_scores
from tests.triton.support import BIES, needs_triton

pytestmark = needs_triton

CHECKS = ("test_schema", "test_autograd_registration", "test_faketensor")
SOLVER = ForwardBackward(backend="triton")
SETTINGS: tuple[Any, ...] = (list(Bregman(3).omegas), 1, None, False)
each_kind = pytest.mark.parametrize("kind", ["shared", "per_pair"])


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def arrays(kind: Pairs) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """unary, pair, lengths and gold tags."""
    chain = ragged_chain(0, [3, 1, 0], 3, pairs=kind, removed=0.2)
    return chain.unary, chain.pair_scores, chain.lengths, any_path(chain)


@each_kind
@pytest.mark.parametrize("gradients", [False, True])
def test_crf(kind: Pairs, gradients: bool) -> None:
    unary, pair, lengths, gold = arrays(kind)
    call = (unary, pair, lengths, gold, gradients, "triton")
    torch.library.opcheck(custom_ops.crf, call, test_utils=(*CHECKS, "test_aot_dispatch_dynamic"))
    # The last check would differentiate the gradients as well.
    scores = [x.detach().requires_grad_(gradients) for x in (unary, pair)]
    for tags in (None, gold):
        call = (*scores, lengths, tags, gradients, "triton")
        torch.library.opcheck(custom_ops.crf, call, test_utils=CHECKS)


@each_kind
def test_viterbi(kind: Pairs) -> None:
    call = (*arrays(kind)[:3], "triton")
    torch.library.opcheck(custom_ops.viterbi, call, test_utils=CHECKS)


def test_bregman() -> None:
    unary, pair, lengths, gold = arrays("per_pair")
    kernels = ("triton", False)
    calls: tuple[tuple[Any, tuple[Any, ...]], ...] = (
        (custom_ops.bregman, (gold, *SETTINGS, True, *kernels)),
        (custom_ops.bregman, (None, *SETTINGS, False, *kernels)),
        (custom_ops.bregman_result, (*SETTINGS, True, *kernels)),
        (custom_ops.most_probable, (*SETTINGS, False, 0.5, *kernels)),
        (custom_ops.certified, (SETTINGS[0], 0.1, *kernels)),
    )
    for operator, rest in calls:
        torch.library.opcheck(operator, (unary, pair, lengths, *rest), test_utils=CHECKS)
        native = (*rest[:-2], "native", False)
        found, expected = (operator(unary, pair, lengths, *x) for x in (rest, native))
        assert_close(found, expected)


@each_kind
def test_the_kernels_of_an_operator(kind: Pairs) -> None:
    """The argument names them; the results agree."""
    unary, pair, lengths, gold = arrays(kind)
    assert_close(
        custom_ops.crf(unary, pair, lengths, gold, True, "triton"),
        custom_ops.crf(unary, pair, lengths, gold, True, "native"),
    )
    assert_close(
        custom_ops.viterbi(unary, pair, lengths, "triton"),
        custom_ops.viterbi(unary, pair, lengths, "auto"),
    )


def compiled(function: Callable[..., Any]) -> tuple[Callable[..., Any], CompileCounterWithBackend]:
    counter = CompileCounterWithBackend("aot_eager")
    return torch.compile(function, fullgraph=True, dynamic=True, backend=counter), counter


def calls(counter: CompileCounterWithBackend) -> list[tuple[str, str]]:
    """The operators in the compiled graphs, with the argument that names the kernels."""
    nodes = [node for graph in counter.graphs for node in graph.graph.nodes]
    ours = [node for node in nodes if str(node.target).startswith("bcrf.")]
    return [
        (str(node.target).split(".")[1], next(x for x in node.args if isinstance(x, str)))
        for node in ours
    ]


@each_kind
def test_a_loss_compiles_once(kind: Pairs) -> None:
    def loss(problem: LinearChain, tags: Tensor) -> Tensor:
        return bcrf.loss(SOLVER, problem, tags)

    fast, counter = compiled(loss)
    for batch, n in ((2, 4), (3, 5), (4, 3)):
        chain = ragged_chain(n, [max(n - b, 1) for b in range(batch)], 6, pairs=kind, removed=0.2)
        gold = any_path(chain)
        scores, again = scores_of(chain), scores_of(chain)
        found, expected = fast(with_scores(chain, scores), gold), loss(chain, gold)
        assert_close(found.detach(), expected)
        traced = bcrf.loss(ForwardBackward(backend="naive"), with_scores(chain, again), gold)
        by_scores = torch.autograd.grad(found.sum(), scores)
        assert_close(by_scores, torch.autograd.grad(traced.sum(), again))
    assert counter.frame_count <= 2
    assert {*calls(counter)} == {("crf", "triton")}


def test_a_bregman_loss_compiles() -> None:
    solver = Bregman(3, backend="triton")

    def loss(unary: Tensor, pair: Tensor, tags: Tensor) -> Tensor:
        return bcrf.loss(solver, LinearChain(unary, pair, finite=True), tags)

    fast, counter = compiled(loss)
    chain = ragged_chain(1, [4, 4], 3, pairs="shared")
    scores, again, gold = scores_of(chain), scores_of(chain), any_path(chain)
    found, expected = fast(*scores, gold), loss(*again, gold)
    assert_close(found, expected)
    by_scores = torch.autograd.grad(found.sum(), scores)
    assert_close(by_scores, torch.autograd.grad(expected.sum(), again))
    assert calls(counter) == [("bregman", "triton")]


@torch.no_grad()
def test_decoding_under_rules_compiles() -> None:
    def decode(unary: Tensor, pair: Tensor) -> tuple[Tensor, Tensor]:
        chain = LinearChain(unary, pair, structure=BIES)
        score, tags = bcrf.viterbi(chain, "triton")
        return SOLVER(chain).value - score, tags

    fast, counter = compiled(decode)
    chain = ragged_chain(1, [5, 5], 4, pairs="per_pair")
    assert_close(fast(*scores_of(chain)), decode(*scores_of(chain)))
    assert {*calls(counter)} == {("crf", "triton"), ("viterbi", "triton")}


def test_exported_programs_consist_of_torch_operations() -> None:
    class Loss(torch.nn.Module):
        def forward(self, unary: Tensor, pair: Tensor, tags: Tensor) -> Tensor:
            return bcrf.loss(SOLVER, LinearChain(unary, pair), tags)

    unary, pair, _, _ = arrays("shared")
    tags = torch.tensor([[0, 1, 2], [1, 1, 0], [2, 2, 2]])
    unary, pair = unary.nan_to_num(neginf=0.0), pair.nan_to_num(neginf=0.0)
    program = torch.export.export(Loss(), (unary, pair, tags))
    assert not [x for x in program.graph.nodes if str(x.target).startswith("bcrf.")]
    assert_close(program.module()(unary, pair, tags), Loss()(unary, pair, tags))


def test_a_training_step_of_a_layer_compiles() -> None:
    layer = bcrf.ChainLayer(3, SOLVER)
    emissions, tags = torch.randn(2, 4, 3), torch.randint(3, (2, 4))
    mask = torch.tensor([[True] * 4, [True, True, False, False]])
    fast, counter = compiled(lambda x: layer.loss(x, tags, mask))
    parameters = list(layer.parameters())
    found, expected = fast(emissions), layer.loss(emissions, tags, mask)
    assert_close(found, expected)
    by_parameters = torch.autograd.grad(found, parameters)
    assert_close(by_parameters, torch.autograd.grad(expected, parameters))
    assert calls(counter) == [("crf", "triton")]
