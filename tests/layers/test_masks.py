"""Masks of any pattern and dtype: a removed position affects neither values nor gradients."""

import math

import pytest
import torch
from torch import Tensor

import bcrf
from bcrf import LinearChain
from bcrf.layers import compact
from bcrf.layers.masks import Layout
from tests import oracles
from tests.layer_cases import (
    HOLES,
    LAYERS,
    PATTERNS,
    PATTERNS_WITHOUT_HOLES,
    T,
    close,
    make,
    random_emissions,
    random_tags,
    sentences,
)

B, N = HOLES.shape
each_layer = pytest.mark.parametrize("name", LAYERS)
TYPES = [torch.bool, torch.uint8, torch.int64, torch.int32, torch.float32, torch.float16]


def expected_losses(
    layer: bcrf.ChainLayer, emissions: Tensor, tags: Tensor, keep: Tensor
) -> Tensor:
    """Return the losses of the compacted sentences, computed one by one by `bcrf.loss`."""
    losses = [
        bcrf.loss(layer.solver, one.chain, tags[one.row, one.index].unsqueeze(0))
        for one in sentences(layer, emissions, keep)
    ]
    return torch.cat(losses)


@each_layer
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_losses_and_gradients(name: str, dtype: torch.dtype) -> None:
    layer, tags = make(name), random_tags(B, N)
    emissions = random_emissions(B, N).requires_grad_()
    inputs = [emissions, *layer.parameters()]
    found = layer.loss(emissions, tags, HOLES.to(dtype), "none")
    expected = expected_losses(layer, emissions, tags, HOLES)
    close(found, expected)
    weights = torch.linspace(0.5, 2, B, dtype=torch.float64)
    for one, two in zip(
        torch.autograd.grad(found @ weights, inputs, materialize_grads=True),
        torch.autograd.grad(expected @ weights, inputs, materialize_grads=True),
        strict=True,
    ):
        close(one, two)


def test_exact_losses_by_enumeration() -> None:
    layer, tags = make("exact"), random_tags(B, N)
    emissions = random_emissions(B, N)
    found = layer.loss(emissions, tags, HOLES, "none")
    for one in sentences(layer, emissions, HOLES):
        unary, pair = one.arrays()
        gold = tags[one.row, one.index].numpy()[None]
        score = oracles.path_scores(unary, pair, gold)[0]
        expected = oracles.log_partition(unary, pair) - score if one.index else 0.0
        assert float(found[one.row].detach()) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("pattern", PATTERNS)
@each_layer
def test_a_sentence_does_not_depend_on_its_batch(name: str, pattern: str) -> None:
    """A single mask may have a simpler layout than a batch of masks, and pass other code."""
    layer, emissions, tags = make(name), random_emissions(B, N), random_tags(B, N)
    row = list(PATTERNS).index(pattern)
    here = slice(row, row + 1)
    close(
        layer.loss(emissions[here], tags[here], HOLES[here]),
        layer.loss(emissions, tags, HOLES, "none")[row],
    )
    assert layer.decode(emissions[here], HOLES[here]) == [layer.decode(emissions, HOLES)[row]]


@each_layer
def test_decoding_and_marginals(name: str) -> None:
    layer, emissions = make(name), random_emissions(B, N)
    lists = layer.decode(emissions, HOLES)
    tensor = layer.decode_tensor(emissions, HOLES)
    marginals = layer.marginals(emissions, HOLES, converge=False)
    assert tensor.shape == (B, N)
    assert tensor.dtype == torch.int64
    assert marginals.shape == (B, N, T)
    for one in sentences(layer, emissions, HOLES):
        if layer.decoder == "map":
            best = bcrf.viterbi(one.chain)[1][0].tolist()
        else:
            best = bcrf.decode(layer.solver, one.chain)[0].tolist()
        assert lists[one.row] == best
        assert tensor[one.row, one.index].tolist() == best
        close(marginals[one.row, one.index], layer.solver(one.chain).tag_marginals[0])
    assert (tensor[~HOLES] == -100).all()
    assert (marginals[~HOLES] == 0).all()


@each_layer
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_removed_emissions_are_never_read(name: str, value: float) -> None:
    layer, tags = make(name), random_tags(B, N)
    emissions = random_emissions(B, N)
    spoiled = torch.where(HOLES.unsqueeze(-1), emissions, value).requires_grad_()
    found = layer.loss(spoiled, tags, HOLES)
    close(found, layer.loss(emissions, tags, HOLES))
    (gradient,) = torch.autograd.grad(found, spoiled)
    assert gradient.isfinite().all()
    assert (gradient[~HOLES] == 0).all()
    assert layer.decode(spoiled, HOLES) == layer.decode(emissions, HOLES)
    close(layer.marginals(spoiled, HOLES), layer.marginals(emissions, HOLES))


@each_layer
def test_ignored_labels_remove_positions(name: str) -> None:
    """Labels of -100 remove positions, with or without a mask; other labels of removed positions
    have no effect."""
    layer, emissions, tags = make(name), random_emissions(B, N), random_tags(B, N)
    expected = layer.loss(emissions, tags, HOLES, "none")
    labels = torch.where(HOLES, tags, -100)
    close(layer.loss(emissions, labels, None, "none"), expected)
    close(layer.loss(emissions, torch.where(HOLES, tags, 99), HOLES, "none"), expected)
    half = torch.arange(N) % 2 == 0
    mask, labels = HOLES | half, torch.where(HOLES | ~half, tags, -100)
    close(layer.loss(emissions, labels, mask, "none"), expected)


@each_layer
def test_reductions(name: str) -> None:
    layer, emissions, tags = make(name), random_emissions(B, N), random_tags(B, N)
    tags[0, 2] = -100
    losses = layer.loss(emissions, tags, HOLES, "none")
    kept = (HOLES & (tags != -100)).sum()
    expected = {
        "sum": losses.sum(),
        "mean": losses.sum() / B,
        "token_mean": losses.sum() / kept,
    }
    for reduction, value in expected.items():
        close(layer.loss(emissions, tags, HOLES, reduction), value)
        close(layer.nll(emissions, tags, HOLES, reduction), value)
        close(layer(emissions, tags, HOLES, reduction), -value)
    close(layer(emissions, tags, HOLES), -losses.sum())
    with pytest.raises(ValueError, match=r"reduction must be one of .* got 'max'"):
        layer.loss(emissions, tags, HOLES, "max")


@each_layer
@pytest.mark.parametrize(("batch", "n"), [(2, 0), (0, 3), (0, 0), (2, 1)])
@pytest.mark.parametrize("masked", [False, True])
def test_nothing_and_almost_nothing(name: str, batch: int, n: int, masked: bool) -> None:
    layer = make(name)
    emissions = random_emissions(batch, n).requires_grad_()
    tags = random_tags(batch, n)
    mask = torch.zeros(batch, n) if masked else None
    for reduction in ("none", "sum", "mean", "token_mean"):
        found = layer.loss(emissions, tags, mask, reduction)
        assert found.isfinite().all()
        found.sum().backward()
        assert (n == 1 and not masked) or not found.any()
    assert emissions.grad is not None
    assert emissions.grad.isfinite().all()
    assert layer.marginals(emissions, mask).shape == (batch, n, T)
    assert layer.decode_tensor(emissions, mask).shape == (batch, n)
    lengths = [0 if masked else n] * batch
    assert [len(row) for row in layer.decode(emissions, mask)] == lengths
    assert layer.sample(emissions, 2, mask).shape == (2, batch, n)
    assert layer.k_best(emissions, 2, mask)[1].shape == (batch, 2, n)
    p = layer.sequence_probability(emissions, tags, mask)
    assert p.shape == (batch,)
    assert (n == 1 and not masked) or (p == 1).all()


# Scores of adjacent pairs


def solid() -> Tensor:
    return torch.tensor([PATTERNS[name] for name in PATTERNS_WITHOUT_HOLES]).bool()


@each_layer
@pytest.mark.parametrize("shared", [False, True])
def test_per_pair_transitions(name: str, shared: bool) -> None:
    """They are added to the layer's own transitions, if there are any.

    The masks remove positions at the ends only, so no new pairs become adjacent.
    """
    if name == "softmax" and shared:
        pytest.skip("it has no transitions of its own")
    options = {} if name == "softmax" else {"shared_transitions": shared}
    layer, keep = make(name, **options), solid()
    assert (layer.transitions is not None) == shared
    batch = len(keep)
    emissions, tags = random_emissions(batch, N), random_tags(batch, N)
    pairs = random_emissions(batch, (N - 1) * T, T, 7).view(batch, N - 1, T, T).requires_grad_()
    found = layer.loss(emissions, tags, keep, "none", transitions=pairs)
    marginals = layer.marginals(emissions, keep, transitions=pairs, converge=False)
    chain = layer.chain(emissions, keep, transitions=pairs)
    for one in sentences(layer, emissions, keep):
        edges = one.index[:-1]
        matrices = pairs[one.row, edges]
        if shared:
            assert layer.transitions is not None
            matrices = matrices + layer.transitions
        problem = LinearChain(one.chain.unary, matrices.unsqueeze(0))
        gold = tags[one.row, one.index].unsqueeze(0)
        close(found[one.row], bcrf.loss(layer.solver, problem, gold)[0])
        close(marginals[one.row, one.index], layer.solver(problem).tag_marginals[0])
        close(
            chain[one.row].score(torch.where(chain.mask, 0, -100)[one.row].unsqueeze(0)),
            problem.score(torch.zeros_like(gold)),
        )
    if name != "softmax":
        (gradient,) = torch.autograd.grad(found.sum(), pairs)
        inside = keep[:, 1:] & keep[:, :-1]
        assert (gradient[~inside] == 0).all()
        assert gradient[inside].any()


@each_layer
def test_shared_transitions_given_at_the_call(name: str) -> None:
    options = {} if name == "softmax" else {"shared_transitions": False}
    layer, emissions, tags = make(name, **options), random_emissions(B, N), random_tags(B, N)
    given = random_emissions(1, T, T, 3)[0]
    own = make(name) if name == "softmax" else make(name, seed=9)
    if own.transitions is not None and own.start_transitions is not None:
        own.load_state_dict(layer.state_dict() | {"transitions": given})
    close(layer.loss(emissions, tags, HOLES, transitions=given), own.loss(emissions, tags, HOLES))


@pytest.mark.parametrize(
    ("pairs", "error", "words"),
    [
        (torch.zeros(2, 4, T, T), ValueError, r"\[B, n-1, T, T\] = \[2, 3, 3, 3\], got"),
        (torch.zeros(3, 2, T, T), ValueError, r"\[T, T\] = \[3, 3\] or"),
        (torch.zeros(T, 4), ValueError, "transitions must be"),
        (torch.zeros(2, 3, T, T).long(), TypeError, "transitions must be floating point"),
        ([[0.0] * T] * T, TypeError, "transitions must be a tensor, got list"),
    ],
)
def test_transitions_that_make_no_sense(pairs: Tensor, error: type[Exception], words: str) -> None:
    layer, emissions = make("exact"), random_emissions(2, 4)
    with pytest.raises(error, match=words):
        layer.loss(emissions, random_tags(2, 4), transitions=pairs)
    turned = make("exact", batch_first=False)
    if error is ValueError and pairs.dim() == 4:
        with pytest.raises(ValueError, match=r"\[n-1, B, T, T\] = \[3, 2, 3, 3\]"):
            turned.decode(emissions.transpose(0, 1), transitions=torch.zeros(2, 4, T, T))


@pytest.mark.parametrize("call", ["loss", "ignored label", "decode", "marginals"])
def test_pairs_across_a_hole_are_an_error(call: str) -> None:
    layer = make("bregman")
    emissions, tags = random_emissions(2, N), random_tags(2, N)
    pairs = torch.zeros(2, N - 1, T, T, dtype=torch.float64)
    mask = torch.ones(2, N)
    if call == "ignored label":
        tags[1, 2:4] = -100
    else:
        mask[1, 2:4] = 0
    functions = {
        "decode": lambda: layer.decode(emissions, mask, transitions=pairs),
        "marginals": lambda: layer.marginals(emissions, mask, transitions=pairs),
    }
    function = functions.get(call, lambda: layer.loss(emissions, tags, mask, transitions=pairs))
    with pytest.raises(ValueError, match="sentence 1: positions 1 and 4 become neighbours"):
        function()


def test_compacting_states_makes_pair_scores_adjacent() -> None:
    """After compacting the states, the scores of adjacent pairs are those of the kept positions."""
    layer = make("bregman", shared_transitions=False)
    states, tags = random_emissions(B, N), random_tags(B, N)
    kept, mask = compact(states, HOLES)
    labels, _ = compact(tags, HOLES)
    scorer = random_emissions(1, T, T * T, 4)[0]
    pairs = ((kept[:, :-1] + 2 * kept[:, 1:]) @ scorer).view(B, N - 1, T, T)
    found = layer.loss(kept, labels, mask, "none", transitions=pairs)
    for one in sentences(layer, states, HOLES):
        alone = states[one.row, one.index]
        own = ((alone[:-1] + 2 * alone[1:]) @ scorer).view(1, max(len(alone) - 1, 0), T, T)
        gold = tags[one.row, one.index].unsqueeze(0)
        problem = LinearChain(one.chain.unary, own)
        close(found[one.row], bcrf.loss(layer.solver, problem, gold)[0])


def test_compact_keeps_order_and_gradients() -> None:
    x = torch.arange(B * N * 2.0).view(B, N, 2).requires_grad_()
    for dtype in TYPES:
        found, mask = compact(x, HOLES.to(dtype))
        assert mask.dtype == torch.bool
        for row in range(B):
            assert torch.equal(found[row][mask[row]], x[row][HOLES[row]])
            assert mask[row].tolist() == sorted(mask[row].tolist(), reverse=True)
    (gradient,) = torch.autograd.grad(found[mask].sum(), x)
    assert torch.equal(gradient, HOLES.unsqueeze(-1).expand(B, N, 2).float())
    with pytest.raises(ValueError, match=r"\[B, n, ...\]"):
        compact(torch.zeros(3), torch.ones(3))


# Layouts


def test_layouts_are_permutations_that_can_be_undone() -> None:
    layout = Layout.of(HOLES, True)
    assert layout.order is not None
    assert torch.equal(layout.order.sort(1).values, torch.arange(N).expand(B, N))
    tags = torch.where(HOLES, random_tags(B, N), -100)
    assert torch.equal(layout.restore_tags(layout.compact(tags)), tags)
    both = torch.stack([tags, tags.flip(0)])
    there = torch.stack([layout.compact(tags), layout.compact(tags.flip(0))])
    assert torch.equal(layout.restore_tags(there), torch.where(HOLES, both, -100))


def test_right_padding_is_left_alone() -> None:
    keep = torch.arange(5) < torch.tensor([5, 3, 1, 0]).unsqueeze(1)
    layout = Layout.of(keep, True)
    assert layout.order is None
    x = torch.zeros(4, 5, 2)
    assert layout.compact(x) is x
    assert layout.restore(x) is x
    assert Layout.of(torch.ones(2, 3, dtype=torch.bool), True).order is None
    keep[3, 4] = True
    assert Layout.of(keep, True).order is not None


# Invalid masks


@pytest.mark.parametrize(
    ("mask", "error", "words"),
    [
        (torch.ones(2, 3), ValueError, r"mask must be \[B, n\] = \[2, 4\], got \[2, 3\]"),
        (torch.ones(8), ValueError, r"mask must be \[B, n\]"),
        (torch.tensor([[1.0, 0, 0, 0], [1, 0, -1e4, 0]]), ValueError, "mask holds -10000.0"),
        (torch.full((2, 4), math.nan), ValueError, "mask holds nan"),
        (torch.full((2, 4), 2), ValueError, "mask holds 2: expected 1"),
        ([[1, 1, 1, 1], [1, 1, 0, 0]], TypeError, "mask must be a tensor, got list"),
    ],
)
def test_masks_that_make_no_sense(mask: Tensor, error: type[Exception], words: str) -> None:
    layer, emissions, tags = make("exact"), random_emissions(2, 4), random_tags(2, 4)
    for call in (lambda: layer.loss(emissions, tags, mask), lambda: layer.decode(emissions, mask)):
        with pytest.raises(error, match=words):
            call()


@pytest.mark.parametrize("name", ["exact", "softmax"])
@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        (
            (torch.zeros(2, 4), torch.zeros(2, 4).long()),
            ValueError,
            r"emissions must be \[B, n, T\]",
        ),
        ((torch.zeros(2, 4, 5), torch.zeros(2, 4).long()), ValueError, "with T = 3"),
        ((torch.zeros(2, 4, 3).long(), torch.zeros(2, 4).long()), TypeError, "floating point"),
        (([[1.0]], torch.zeros(2, 4).long()), TypeError, "emissions must be a tensor"),
        ((torch.zeros(2, 4, 3), torch.zeros(2, 3).long()), ValueError, r"tags must be \[B, n\]"),
        ((torch.zeros(2, 4, 3), torch.zeros(2, 4)), TypeError, "tags must be integers"),
        ((torch.zeros(2, 4, 3), [[0]]), TypeError, "tags must be a tensor, got list"),
        ((torch.zeros(2, 4, 3),), ValueError, "expected tags or allowed, got neither"),
    ],
)
def test_arguments_that_make_no_sense(
    name: str, arguments: tuple[Tensor, ...], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        make(name).loss(*arguments)
