"""LinearChain: what its constructor accepts and refuses, and methods that return other chains."""

from __future__ import annotations

import copy
import math
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close
from torch.utils import _pytree as pytree

from bcrf import LinearChain, Structure
from tests.strategies import Pairs, bies_follow, random_chain_arrays

KINDS: tuple[Pairs, ...] = ("none", "shared", "per_pair")
each_kind = pytest.mark.parametrize("kind", KINDS)
NEG = -math.inf


def make(kind: Pairs = "shared", n: int = 5, **options: Any) -> LinearChain:
    return LinearChain(*random_chain_arrays(3, 4, n, 3, pairs=kind, **options))


def assert_exact(actual: Any, expected: Any) -> None:
    assert_close(actual, expected, rtol=0, atol=0)


def assert_same(actual: LinearChain, expected: LinearChain) -> None:
    assert_exact(actual.unary, expected.unary)
    assert (actual.transitions is None) == (expected.transitions is None)
    if actual.transitions is not None:
        assert_exact(actual.transitions, expected.transitions)
    assert_exact(actual.lengths, expected.lengths)
    assert actual.dtype == expected.dtype


@each_kind
@pytest.mark.parametrize("n", [0, 1, 2, 5])
def test_shapes_of_every_kind(kind: Pairs, n: int) -> None:
    unary, transitions, lengths = random_chain_arrays(1, 4, n, 3, pairs=kind)
    chain = LinearChain(unary, transitions, lengths)
    assert (chain.batch_size, chain.max_length, chain.num_tags) == (4, n, 3)
    assert len(chain) == 4
    assert chain.shared == (kind != "per_pair")
    assert chain.unary is unary  # float64 already: nothing is copied
    assert chain.transitions is transitions
    assert lengths is not None
    assert_exact(chain.lengths, lengths)
    assert_exact(chain.mask, torch.arange(n).expand(4, n) < lengths[:, None])
    assert chain.mask.shape == (4, n)
    assert chain.device == torch.device("cpu")


def test_lengths_become_int64() -> None:
    expected = torch.tensor([2, 0, 5])
    for lengths in ([2, 0, 5], (2, 0, 5), expected, expected.to(torch.uint8)):
        assert_exact(LinearChain(torch.zeros(3, 5, 2), None, lengths).lengths, expected)
    assert_exact(LinearChain(torch.zeros(3, 5, 2)).lengths, torch.tensor([5, 5, 5]))


def test_an_empty_batch() -> None:
    chain = LinearChain(torch.zeros(0, 5, 2), torch.zeros(0, 4, 2, 2), [])
    assert chain.batch_size == 0
    assert chain.score(torch.zeros(0, 5, dtype=torch.int64)).shape == (0,)


OK = torch.zeros(2, 5, 3)
BAD: list[tuple[tuple[Any, ...], type[Exception], str]] = [
    ((OK[0],), ValueError, "unary; [B, n, T]; [5, 3]"),
    ((OK[None],), ValueError, "unary; [B, n, T]; [1, 2, 5, 3]"),
    ((OK[..., :0],), ValueError, "unary; T = 0"),
    ((OK.long(),), TypeError, "unary; floating point; int64"),
    ((OK.to(torch.complex64),), TypeError, "unary; floating point; complex64"),
    (([[[0.0]]],), TypeError, "unary; tensor; list"),
    ((OK, torch.zeros(3, 4)), ValueError, "transitions; [3, 3]; [3, 4]"),
    ((OK, torch.zeros(4, 3, 3)), ValueError, "transitions; [2, 4, 3, 3]; [4, 3, 3]"),
    ((OK, torch.zeros(2, 5, 3, 3)), ValueError, "transitions; [2, 4, 3, 3]; [2, 5, 3, 3]"),
    ((OK, torch.zeros(1, 4, 3, 3)), ValueError, "transitions; [2, 4, 3, 3]; [1, 4, 3, 3]"),
    ((OK[:, :0], torch.zeros(2, 1, 3, 3)), ValueError, "transitions; [2, 0, 3, 3]; [2, 1, 3, 3]"),
    ((OK, torch.zeros(3, 3).int()), TypeError, "transitions; floating point; int32"),
    ((OK, torch.zeros(3, 3).bool()), TypeError, "transitions; floating point; bool"),
    ((OK, [[0.0]]), TypeError, "transitions; tensor; list"),
    ((OK, torch.zeros(3, 3, device="meta")), ValueError, "unary; cpu; transitions; meta"),
    ((OK, None, [1]), ValueError, "lengths; [2]; [1]"),
    ((OK, None, [[1, 2]]), ValueError, "lengths; [2]; [1, 2]"),
    ((OK, None, torch.tensor(3)), ValueError, "lengths; [2]; []"),
    ((OK, None, [1.0, 2.0]), TypeError, "lengths; integers; float32"),
    ((OK, None, [True, False]), TypeError, "lengths; integers; bool"),
    ((OK, None, [5, 6]), ValueError, "lengths[1]; 6; 0..5"),
    ((OK, None, [-1, 6]), ValueError, "lengths[0]; -1; 0..5"),
]


@pytest.mark.parametrize(("arguments", "error", "words"), BAD)
def test_bad_arguments_are_named(
    arguments: tuple[Any, ...], error: type[Exception], words: str
) -> None:
    with pytest.raises(error) as caught:
        LinearChain(*arguments)
    for word in words.split("; "):
        assert word in str(caught.value)


def test_values_are_not_looked_at() -> None:
    chain = LinearChain(torch.full((1, 2, 2), math.nan), torch.full((2, 2), math.inf))
    assert bool(chain.unary.isnan().all())


def test_frozen_and_compared_by_identity() -> None:
    chain = make()
    for name in ("unary", "transitions", "lengths", "dtype", "new"):
        with pytest.raises(AttributeError):
            setattr(chain, name, None)
    with pytest.raises(AttributeError):
        del chain.unary
    assert chain != chain[:]
    assert len({chain, chain, chain[:]}) == 2


@each_kind
def test_repr(kind: Pairs) -> None:
    word = {"none": "no", "shared": "shared", "per_pair": "per-pair"}[kind]
    sizes = "batch_size=4, max_length=5, num_tags=3"
    expected = f"LinearChain({sizes}, transitions={word}, dtype=torch.bfloat16)"
    assert repr(make(kind, dtype=torch.bfloat16)) == expected


HALF, BRAIN, SINGLE, DOUBLE = torch.float16, torch.bfloat16, torch.float32, torch.float64


DTYPES = [
    (HALF, None, HALF, SINGLE),
    (BRAIN, BRAIN, BRAIN, SINGLE),
    (SINGLE, SINGLE, SINGLE, SINGLE),
    (DOUBLE, None, DOUBLE, DOUBLE),
    (HALF, BRAIN, SINGLE, SINGLE),
    (HALF, SINGLE, SINGLE, SINGLE),
    (BRAIN, DOUBLE, DOUBLE, DOUBLE),
]


@pytest.mark.parametrize(("unary", "transitions", "dtype", "working"), DTYPES)
def test_scores_are_kept_in_float32_at_least(
    unary: torch.dtype, transitions: torch.dtype | None, dtype: torch.dtype, working: torch.dtype
) -> None:
    u = torch.randn(2, 3, 4).to(unary)
    t = None if transitions is None else torch.randn(4, 4).to(transitions)
    chain = LinearChain(u, t)
    assert chain.dtype == dtype
    assert_exact(chain.unary, u.to(working))
    if t is not None:
        assert_exact(chain.transitions, t.to(working))


@each_kind
def test_to_a_dtype_rounds_the_scores(kind: Pairs) -> None:
    chain = make(kind, dtype=SINGLE)
    for half in (chain.to(HALF), chain.to(dtype=HALF), chain.to("cpu", HALF)):
        assert half.dtype == HALF
        assert half.unary.dtype == SINGLE
        assert_exact(half.unary, chain.unary.half().float())
        assert not torch.equal(half.unary, chain.unary)
    assert_same(chain.to(DOUBLE), chain.double())
    assert_same(chain.to(torch.zeros(1, dtype=DOUBLE)), chain.double())
    double = chain.double()
    assert double.dtype == DOUBLE
    assert_exact(double.unary, chain.unary.to(DOUBLE))
    assert_same(chain.to("cpu"), chain)
    with pytest.raises(TypeError, match="int64"):
        chain.to(torch.int64)


@each_kind
def test_to_a_device(kind: Pairs) -> None:
    chain = make(kind, dtype=BRAIN)
    moved = chain.to("meta")
    tensors = (moved.unary, moved.transitions, moved.lengths)
    assert {x.device.type for x in tensors if x is not None} == {"meta"}
    assert (moved.dtype, moved.device.type) == (BRAIN, "meta")
    assert (moved.unary.dtype, moved.unary.shape) == (SINGLE, chain.unary.shape)


def test_detach_and_gradients_through_copies() -> None:
    unary, transitions = torch.randn(2, 3, 4), torch.randn(4, 4)
    chain = LinearChain(unary.requires_grad_(), transitions.requires_grad_())
    detached = chain.detach()
    assert detached.transitions is not None
    assert not detached.unary.requires_grad
    assert not detached.transitions.requires_grad
    assert_exact(detached.unary, unary.detach())
    copied = (chain.to(DOUBLE) / 4)[1]
    assert copied.transitions is not None
    (copied.unary.sum() + copied.transitions.sum()).backward()
    assert_exact(unary.grad, torch.tensor([0.0, 0.25]).view(2, 1, 1).expand(2, 3, 4))
    assert_exact(transitions.grad, torch.full((4, 4), 0.25))


@each_kind
def test_division_scales_every_score(kind: Pairs) -> None:
    chain = make(kind, removed=0.4)
    for tau in (0.1, 2, torch.tensor(0.1)):
        scaled = chain / tau
        assert_close(scaled.unary, chain.unary / float(tau))
        if chain.transitions is not None:
            assert_close(scaled.transitions, chain.transitions / float(tau))
        assert_exact(scaled.lengths, chain.lengths)
        assert scaled.dtype == chain.dtype


@pytest.mark.parametrize("tau", [0, 0.0, -1.0, math.nan, math.inf])
def test_bad_temperatures(tau: float) -> None:
    with pytest.raises(ValueError, match=f"temperature.*positive.*{tau}"):
        make() / tau


def test_a_temperature_per_sentence_never_breaks_the_transitions() -> None:
    """Dividing shared transitions by [B, 1, 1] would give [B, T, T], which is no valid shape."""
    with pytest.raises(ValueError, match="temperature"):
        make("shared") / torch.ones(4, 1, 1)


INDICES: list[tuple[Any, list[int]]] = [
    (0, [0]),
    (-1, [3]),
    (slice(1, 3), [1, 2]),
    (slice(2, 2), []),
    ([2, 0], [2, 0]),
    (torch.tensor([3, 3]), [3, 3]),
    (torch.tensor([True, False, False, True]), [0, 3]),
    (np.int64(1), [1]),
    (torch.tensor(1), [1]),
]


@each_kind
@pytest.mark.parametrize(("index", "rows"), INDICES, ids=repr)
def test_indexing(kind: Pairs, index: Any, rows: list[int]) -> None:
    chain = make(kind, dtype=HALF)
    transitions = chain.transitions
    if transitions is not None and kind == "per_pair":
        transitions = transitions[rows]
    expected = LinearChain(chain.unary[rows], transitions, chain.lengths[rows])
    assert_same(chain[index], expected.to(HALF))


def test_index_errors_and_iteration() -> None:
    chain = make()
    for index in (4, -5):
        with pytest.raises(IndexError, match=f"^there is no sentence {index} in a batch of 4$"):
            chain[index]
    sentences = list(chain)  # type: ignore[call-overload]
    assert len(sentences) == 4
    for i, one in enumerate(sentences):
        assert_same(one, chain[i])


def loop_score(chain: LinearChain, tags: Tensor) -> Tensor:
    scores = []
    for b, size in enumerate(chain.lengths.tolist()):
        total = chain.unary.new_zeros(())
        for i in range(size):
            total = total + chain.unary[b, i, tags[b, i]]
            if i and chain.transitions is not None:
                matrix = chain.transitions if chain.shared else chain.transitions[b, i - 1]
                total = total + matrix[tags[b, i - 1], tags[b, i]]
        scores.append(total)
    return torch.stack(scores)


@each_kind
@pytest.mark.parametrize("n", [0, 1, 2, 5])
@pytest.mark.parametrize("removed", [0.0, 0.4])
def test_score_is_the_sum_along_the_path(kind: Pairs, n: int, removed: float) -> None:
    chain = make(kind, n, removed=removed)
    tags = torch.randint(3, (4, n))
    expected = loop_score(chain, tags)
    assert_close(chain.score(tags), expected)
    assert_close(chain.score(tags.int()), expected)
    assert_close(chain.score(chain.pad(tags)), expected)
    samples = torch.randint(3, (2, 3, 4, n))
    rows = [loop_score(chain, y) for y in samples.flatten(0, 1)]
    assert_close(chain.score(samples), torch.stack(rows).view(2, 3, 4))


def test_pad() -> None:
    chain = LinearChain(torch.zeros(3, 3, 2), None, [2, 0, 3])
    padded = torch.tensor([[1, 1, -100], [-100, -100, -100], [1, 1, 1]])
    assert_exact(chain.pad(torch.ones(3, 3, dtype=torch.int64)), padded)


@each_kind
def test_gradient_of_the_score_counts_tags_and_arcs(kind: Pairs) -> None:
    unary, transitions, lengths = random_chain_arrays(5, 4, 6, 3, pairs=kind)
    unary[:, -1] = math.nan  # never read: beyond every length
    lengths = torch.tensor([5, 3, 1, 0])
    leaves = [
        unary.requires_grad_(),
        *([] if transitions is None else [transitions.requires_grad_()]),
    ]
    tags, weight = torch.randint(3, (4, 6)), torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=DOUBLE)
    score = LinearChain(unary, transitions, lengths).score(tags)
    grads = torch.autograd.grad((score * weight).sum(), leaves)
    counts = [torch.zeros_like(leaf) for leaf in leaves]
    for b, size in enumerate(lengths.tolist()):
        for i in range(size):
            counts[0][b, i, tags[b, i]] += weight[b]
            if i and transitions is not None:
                cell = (tags[b, i - 1], tags[b, i])
                counts[1][cell if kind == "shared" else (b, i - 1, *cell)] += weight[b]
    assert_close(list(grads), counts)


@each_kind
def test_restrict_removes_what_is_not_allowed(kind: Pairs) -> None:
    chain = make(kind)
    allowed = torch.rand(chain.unary.shape) < 0.5
    restricted = chain.restrict(allowed)
    assert_exact(restricted.unary, chain.unary.masked_fill(~allowed, NEG))
    assert restricted.transitions is chain.transitions
    assert_exact(restricted.lengths, chain.lengths)
    assert_same(chain.restrict(torch.ones_like(allowed)), chain)


def test_restrict_refuses_other_masks() -> None:
    chain = make()
    with pytest.raises(TypeError, match=r"allowed.*bool.*float32"):
        chain.restrict(torch.ones(4, 5, 3))
    with pytest.raises(ValueError, match=r"allowed.*\[4, 5, 3\].*\[4, 5\]"):
        chain.restrict(torch.ones(4, 5, dtype=torch.bool))


@each_kind
@pytest.mark.parametrize("n", [0, 1, 2, 5])
def test_constrain_removes_starts_ends_and_transitions(kind: Pairs, n: int) -> None:
    _, start, end, follow = bies_follow()
    unary, transitions, _ = random_chain_arrays(7, 4, n, 4, pairs=kind)
    chain = LinearChain(unary, transitions, [n, min(n, 3), min(n, 1), 0])
    constrained = chain.constrain(Structure(start, end, follow))
    expected = unary.clone()
    for b, size in enumerate(chain.lengths.tolist()):
        for t in range(4):
            if size and not end[t]:
                expected[b, size - 1, t] = NEG
            if n and not start[t]:
                expected[b, 0, t] = NEG
    inside = chain.mask.unsqueeze(-1)  # what lies beyond has no meaning
    assert_exact(constrained.unary.where(inside, 0.0), expected.where(inside, 0.0))
    pair = torch.zeros(4, 4, dtype=DOUBLE) if transitions is None else transitions
    assert_exact(constrained.transitions, pair.masked_fill(~follow, NEG))
    assert_exact(constrained.lengths, chain.lengths)
    assert constrained.dtype == chain.dtype


def test_constrain_to_other_tags_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"structure has 4 tags.*chain has 3"):
        make().constrain(Structure(start=[True] * 4))


@each_kind
def test_copies(kind: Pairs) -> None:
    chain = make(kind, dtype=HALF, removed=0.3)
    for copied in (copy.deepcopy(chain), pickle.loads(pickle.dumps(chain))):
        assert_same(copied, chain)
        assert copied.unary.data_ptr() != chain.unary.data_ptr()


@each_kind
def test_a_chain_is_a_pytree(kind: Pairs) -> None:
    chain = make(kind, dtype=HALF)
    leaves, spec = pytree.tree_flatten({"chain": chain})
    assert leaves[0] is chain.unary
    assert leaves[1] is chain.transitions
    assert leaves[2] is chain.lengths
    assert_same(pytree.tree_unflatten(leaves, spec)["chain"], chain)
    doubled = pytree.tree_map_only(Tensor, lambda x: x * 2, chain)
    assert_exact(doubled.unary, chain.unary * 2)
    assert_exact(doubled.lengths, chain.lengths * 2)
    assert doubled.dtype == HALF
    assert pytree.treespec_loads(pytree.treespec_dumps(spec)) == spec


def test_leaves_of_a_chain_have_names() -> None:
    """torch.export needs these names."""
    paths, _ = pytree.tree_flatten_with_path(make())
    assert [pytree.keystr(path) for path, _ in paths] == [".unary", ".transitions", ".lengths"]


def test_a_structure_is_a_pytree() -> None:
    _, *masks = bies_follow()
    structure = Structure(*masks)
    flipped = pytree.tree_map(torch.logical_not, structure)
    assert isinstance(flipped, Structure)
    assert_exact([flipped.start, flipped.end, flipped.follow], [~mask for mask in masks])
