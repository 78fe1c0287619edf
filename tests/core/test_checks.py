"""When checks read values, how they describe bad values, and that nothing else reads a value."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

import bcrf
from bcrf import LinearChain, Solver
from bcrf.checks import checks_enabled, values_readable
from tests.strategies import Pairs, random_chain_arrays

B, N, T = 3, 5, 4
TAGS = torch.zeros(B, N, dtype=torch.int64)
ALLOWED = torch.ones(B, N, T, dtype=torch.bool)

SOLVERS: dict[str, Solver] = {
    "bregman": bcrf.Bregman(4),
    "tolerance": bcrf.Bregman(6, tolerance=1e-3),
    "crf": bcrf.ForwardBackward(),
    "scan": bcrf.ForwardBackward(parallel=True),
    "mean field": bcrf.MeanField(4),
    "unstructured": bcrf.Unstructured(),
}


def functions() -> dict[str, Callable[[LinearChain], Any]]:
    """Return every public function that solves a chain, by name."""
    found: dict[str, Callable[[LinearChain], Any]] = {
        "viterbi": bcrf.viterbi,
        "k_best": lambda c: bcrf.k_best(c, 3),
        "certified_decode": bcrf.certified_decode,
        "entropy": bcrf.entropy,
        "kl": lambda c: bcrf.kl(c, c),
        "sample": lambda c: bcrf.sample(c, 2),
    }
    for name, solver in SOLVERS.items():
        found[f"{name}: solve"] = solver
        found[f"{name}: loss"] = lambda c, s=solver: bcrf.loss(s, c, TAGS.to(c.device))
        found[f"{name}: partial_loss"] = lambda c, s=solver: bcrf.partial_loss(
            s, c, ALLOWED.to(c.device)
        )
        found[f"{name}: decode"] = lambda c, s=solver: bcrf.decode(s, c)
    return found


FUNCTIONS = functions()
each_function = pytest.mark.parametrize("name", FUNCTIONS)


@pytest.fixture(autouse=True)
def automatic_checks() -> Iterator[None]:
    with bcrf.set_checks(None):
        yield


def make(kind: Pairs = "shared", lengths: list[int] | None = None) -> LinearChain:
    unary, transitions, _ = random_chain_arrays(0, B, N, T, pairs=kind, ragged=False)
    return LinearChain(unary.float(), transitions, lengths or [5, 4, 1]).to(torch.float32)


def spoil(chain: LinearChain, where: str, index: tuple[int, ...], value: float) -> LinearChain:
    """Return the chain with one entry replaced. The constructor does not check values."""
    assert chain.transitions is not None
    parts = {"unary": chain.unary.clone(), "transitions": chain.transitions.clone()}
    parts[where][index] = value
    return LinearChain(parts["unary"], parts["transitions"], chain.lengths)


def exactly(actual: Tensor, expected: Tensor) -> None:
    assert_close(actual, expected, rtol=0, atol=0)


# The setting


def test_the_setting_and_its_scope() -> None:
    here, there = torch.zeros(1), torch.zeros(1, device="meta")
    assert (checks_enabled(here), checks_enabled(there)) == (True, False)
    with bcrf.set_checks(False):
        assert not checks_enabled(here)
        with bcrf.set_checks(True):
            assert checks_enabled(here)
            assert checks_enabled(there)
        assert not checks_enabled(here)
        with contextlib.suppress(ZeroDivisionError), bcrf.set_checks(None):
            assert checks_enabled(here)
            raise ZeroDivisionError
        assert not checks_enabled(here)
    assert checks_enabled(here)
    bcrf.set_checks(False)  # takes effect without `with`, too
    assert not checks_enabled(here)
    bcrf.set_checks(None)
    assert checks_enabled(here)


@pytest.mark.parametrize("wrong", [1, 0, "no", 1.0])
def test_the_setting_is_a_bool_or_none(wrong: Any) -> None:
    with pytest.raises(TypeError, match=f"True, False or None.*{wrong}"):
        bcrf.set_checks(wrong)
    assert checks_enabled(torch.zeros(1)), "a refused setting changes nothing"


def test_values_are_visible_in_plain_tensors_on_the_cpu() -> None:
    class Wrapped(Tensor):
        pass

    assert values_readable(torch.zeros(1))
    assert values_readable(torch.nn.Parameter(torch.zeros(1)))
    assert not values_readable(torch.zeros(1, device="meta"))
    assert not values_readable(torch.zeros(1).as_subclass(Wrapped))
    with bcrf.set_checks(False):
        assert values_readable(torch.zeros(1))


# Bad scores


BAD: list[tuple[Pairs, str, tuple[int, ...], str]] = [
    ("shared", "unary", (1, 3, 2), "sentence 1, position 3: the score of tag 2 is nan"),
    ("per_pair", "unary", (2, 0, 0), "sentence 2, position 0: the score of tag 0 is inf"),
    ("shared", "transitions", (3, 1), "the transition from tag 3 to tag 1 is nan"),
    ("shared", "transitions", (0, 0), "the transition from tag 0 to tag 0 is inf"),
    (
        "per_pair",
        "transitions",
        (1, 2, 0, 3),
        "sentence 1, position 3: the transition from tag 0 to tag 3 is nan",
    ),
]


@each_function
@pytest.mark.parametrize(("kind", "where", "index", "message"), BAD)
def test_bad_scores_are_named_when_solved(
    name: str, kind: Pairs, where: str, index: tuple[int, ...], message: str
) -> None:
    chain = spoil(make(kind), where, index, float(message.split()[-1]))
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        FUNCTIONS[name](chain)
    assert str(caught.value).startswith(message)


@each_function
@pytest.mark.parametrize("value", [math.nan, -math.inf])
@pytest.mark.parametrize("kind", ["shared", "per_pair"])
def test_what_lies_beyond_a_length_is_never_read(name: str, kind: Pairs, value: float) -> None:
    chain = make(kind)
    spoiled = spoil(chain, "unary", (2, 1), value)
    spoiled = spoil(spoiled, "unary", (1, 4, 0), value)
    if kind == "per_pair":
        spoiled = spoil(spoiled, "transitions", (2, 0), value)
        spoiled = spoil(spoiled, "transitions", (1, 3, 0, 1), value)
    found, expected = [], []
    for problem, out in ((spoiled, found), (chain, expected)):
        torch.manual_seed(0)  # for samples
        result = FUNCTIONS[name](problem)
        if isinstance(result, bcrf.Solution):
            result = (result.value, result.tag_marginals, result.edge_marginals, result.residual)
        out.extend(result if isinstance(result, tuple) else [result])
    assert_close(found, expected, rtol=1e-6, atol=1e-6)


@each_function
def test_a_sentence_without_a_path_is_named(name: str) -> None:
    chain = spoil(make(), "unary", (1, 2), -math.inf)
    with pytest.raises(ValueError, match=r"sentence 1\b"):
        FUNCTIONS[name](chain)


@pytest.mark.parametrize("bad", [3, -1, -100, 10**12])
@pytest.mark.parametrize("lead", [(), (2,)])
def test_illegal_tags_are_located(bad: int, lead: tuple[int, ...]) -> None:
    chain = LinearChain(torch.zeros(3, 4, 3), None, [4, 3, 1])
    tags = torch.zeros(*lead, 3, 4, dtype=torch.int64)
    tags[..., 1, 3] = tags[..., 2, 1:] = bad  # beyond the length: anything
    exactly(chain.score(tags), torch.zeros(*lead, 3))
    tags.view(-1, 3, 4)[-1, 1, 2] = bad
    with pytest.raises(ValueError, match=rf"sentence 1, position 2: tag {bad} .*0\.\.2"):
        chain.score(tags)


@pytest.mark.parametrize(
    ("tags", "error", "words"),
    [
        (torch.zeros(3, 4), TypeError, "tags.*integers.*float32"),
        (torch.zeros(3, 4, dtype=torch.bool), TypeError, "tags.*integers.*bool"),
        (torch.zeros(3, 5, dtype=torch.int64), ValueError, r"tags.*\[3, 4\].*\[3, 5\]"),
        (torch.zeros(2, 4, dtype=torch.int64), ValueError, r"tags.*\[3, 4\].*\[2, 4\]"),
        (torch.zeros(4, dtype=torch.int64), ValueError, r"tags.*\[3, 4\].*\[4\]"),
    ],
)
def test_tags_of_the_wrong_kind(tags: Tensor, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        LinearChain(torch.zeros(3, 4, 3)).score(tags)


# Without checks


@each_function
@pytest.mark.parametrize("cause", ["unary", "transitions"])
def test_without_checks_a_lost_sentence_spoils_no_other(name: str, cause: str) -> None:
    chain = make("per_pair", [5, 4, 3])
    lost = spoil(chain, cause, (1, 2), -math.inf)
    others = torch.tensor([0, 2])
    if name == "sample":  # multinomial has its own check of probabilities
        return

    def results(problem: LinearChain) -> list[Tensor]:
        result = FUNCTIONS[name](problem)
        if isinstance(result, bcrf.Solution):
            result = (result.value, result.tag_marginals, result.edge_marginals, result.residual)
        return [x[others] for x in (result if isinstance(result, tuple) else [result])]

    expected = results(chain)
    with bcrf.set_checks(False):
        found = results(lost)
    assert all(bool(x.isfinite().all()) for x in found)
    assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", SOLVERS)
def test_without_checks_a_lost_sentence_spoils_no_gradient(name: str) -> None:
    unary = make().unary
    transitions = make().transitions
    assert transitions is not None

    def gradient(values: Tensor) -> list[Tensor | None]:
        leaves = [values.clone().requires_grad_(), transitions.clone().requires_grad_()]
        loss = bcrf.loss(SOLVERS[name], LinearChain(*leaves), TAGS)
        grads = torch.autograd.grad(loss[0] + loss[2], leaves, allow_unused=True)
        return [grads[0][[0, 2]], grads[1]]

    expected = gradient(unary)
    unary[1, 2] = -math.inf
    with bcrf.set_checks(False):
        found = gradient(unary)
    for grad, want in zip(found, expected, strict=True):
        assert_close(grad, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", SOLVERS)
def test_without_checks_nan_goes_through(name: str) -> None:
    chain = spoil(make(), "unary", (1, 2, 0), math.nan)
    with bcrf.set_checks(False):
        value = SOLVERS[name](chain).value
    assert value.isnan().tolist() == [False, True, False]


# No value is read: meta tensors have no values, and reading one is an error


def meta_shapes(result: Any) -> list[tuple[int, ...]]:
    if isinstance(result, bcrf.Solution):
        result = (result.value, result.tag_marginals, result.edge_marginals, result.residual)
    outputs = result if isinstance(result, tuple) else (result,)
    assert {x.device.type for x in outputs} <= {"meta", "cpu"}
    return [tuple(x.shape) for x in outputs]


@each_function
@pytest.mark.parametrize("kind", ["none", "shared", "per_pair"])
def test_nothing_waits_for_a_value(name: str, kind: Pairs) -> None:
    chain = make(kind).to("meta")
    result = FUNCTIONS[name](chain)
    assert meta_shapes(result) == meta_shapes(FUNCTIONS[name](make(kind)))
    tensors = result if isinstance(result, tuple) else ()
    assert all(x.device.type == "meta" for x in tensors)


@pytest.mark.parametrize("name", SOLVERS)
def test_no_gradient_of_a_loss_waits_for_a_value(name: str) -> None:
    leaves = [x.to("meta").requires_grad_() for x in (torch.zeros(B, N, T), torch.zeros(T, T))]
    chain = LinearChain(*leaves, torch.zeros(B, dtype=torch.int64, device="meta"))
    losses = bcrf.loss(SOLVERS[name], chain, TAGS.to("meta"))
    losses = losses + bcrf.partial_loss(SOLVERS[name], chain, ALLOWED.to("meta"))
    grads = torch.autograd.grad(losses.sum(), leaves, allow_unused=True)
    assert grads[0].shape == (B, N, T)
    assert grads[0].device.type == "meta"


# No loop over positions: the number of operations


class Counter(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def operations(solver: Solver, n: int, device: str, kind: Pairs = "shared") -> int:
    """Return the number of operations of a loss and its gradient."""
    unary, transitions, _ = random_chain_arrays(0, 2, n, 3, pairs=kind, ragged=False)
    assert transitions is not None
    leaves = [x.float().to(device).requires_grad_() for x in (unary, transitions)]
    chain = LinearChain(*leaves)
    tags = torch.zeros(2, n, dtype=torch.int64, device=device)
    with Counter() as counter:
        torch.autograd.grad(bcrf.loss(solver, chain, tags).sum(), leaves)
    assert counter.count > 10
    return counter.count


@pytest.mark.parametrize("solver", [bcrf.Bregman(10), bcrf.MeanField(10)], ids=["bregman", "mf"])
@pytest.mark.parametrize("kind", ["shared", "per_pair"])
def test_parallel_solvers_have_no_loop_over_positions(solver: Solver, kind: Pairs) -> None:
    assert operations(solver, 16, "cpu", kind) == operations(solver, 256, "cpu", kind)
    counts = [operations(solver, n, "meta", kind) for n in (16, 64, 256)]
    assert counts[2] - counts[1] == counts[1] - counts[0]  # the trim: a scan in log depth
    assert counts[2] < 1.5 * counts[0]


def test_decoding_in_parallel_has_no_loop_over_positions() -> None:
    def count(n: int) -> int:
        chain = LinearChain(*random_chain_arrays(0, 2, n, 3, ragged=False))
        with Counter() as counter:
            bcrf.decode(bcrf.Bregman(10), chain, temperature=0.5)
        return counter.count

    assert count(16) == count(200)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_scan_is_logarithmic_and_a_recursion_linear(device: str) -> None:
    scan = [operations(SOLVERS["scan"], n, device) for n in (64, 128, 256)]
    assert scan[2] - scan[1] == scan[1] - scan[0] > 0
    loop = [operations(SOLVERS["crf"], n, device) for n in (12, 24, 48)]
    assert 1.8 * (loop[1] - loop[0]) < loop[2] - loop[1] < 2.2 * (loop[1] - loop[0])
    assert loop[2] - loop[1] > 5 * 24
