"""One contract for all solvers and functions of a chain: shapes, dtypes, padding, batches."""

import copy
import dataclasses
import math
import pickle
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import bcrf
from bcrf import LinearChain, Solver
from tests.strategies import Pairs
from tests.subjects import (
    BREGMAN,
    CONSISTENT,
    CONVERGED,
    CRF,
    FUNCTIONS,
    KINDS,
    LENGTHS,
    SOLVERS,
    allowed_with,
    alone,
    close,
    decoded,
    gold_of,
    labelled,
    parametrize,
    ragged,
    ragged_chain,
    row,
    scores_of,
    slopes,
    solved,
    with_scores,
)

EIGHT = tuple(range(8))
every_solver = parametrize(SOLVERS)
every_kind = pytest.mark.parametrize("pairs", KINDS)
every_function = pytest.mark.parametrize("function", FUNCTIONS)
some_removed = pytest.mark.parametrize("removed", [0.0, 0.4])

# Shapes and sums


@every_solver
@pytest.mark.parametrize(
    ("batch", "n", "num_tags", "pairs"),
    [
        *((0, 0, 2, "shared"), (0, 3, 3, "per_pair"), (2, 0, 3, "none"), (2, 0, 3, "per_pair")),
        *((2, 1, 3, "shared"), (2, 1, 3, "per_pair"), (2, 2, 3, "none"), (1, 2, 1, "per_pair")),
        *((2, 5, 1, "shared"), (2, 5, 3, "per_pair")),
    ],
)
def test_shapes(solver: Solver, batch: int, n: int, num_tags: int, pairs: Pairs) -> None:
    unary = torch.randn(batch, n, num_tags, dtype=torch.float64, requires_grad=True)
    shape = {
        "none": None,
        "shared": (num_tags, num_tags),
        "per_pair": (batch, max(n - 1, 0), num_tags, num_tags),
    }[pairs]
    transitions = None if shape is None else torch.randn(shape, dtype=torch.float64)
    chain = LinearChain(unary, transitions)
    gold = torch.zeros(batch, n, dtype=torch.int64)
    outputs = solved(solver, chain, gold, torch.ones(batch, n, num_tags, dtype=torch.bool))
    edges = max(n - 1, 0)
    assert {name: tuple(x.shape) for name, x in outputs.items()} == {
        "value": (batch,),
        "residual": (batch,),
        "tag_marginals": (batch, n, num_tags),
        "edge_marginals": (batch, edges, num_tags, num_tags),
        "decode": (batch, n),
        "loss": (batch,),
        "partial_loss": (batch,),
    }
    (slope,) = torch.autograd.grad(outputs["value"].sum() + outputs["loss"].sum(), unary)
    assert slope.shape == unary.shape
    assert slope.isfinite().all()


@every_solver
@every_kind
@some_removed
def test_marginals_are_distributions(solver: Solver, pairs: Pairs, removed: float) -> None:
    chain = ragged(pairs, removed)
    solution = solver(chain)
    tags, edges, mask = solution.tag_marginals, solution.edge_marginals, chain.mask
    assert (tags >= 0).all()
    assert (edges >= 0).all()
    close(tags.sum(-1), mask.double())
    close(edges.sum((-2, -1)), mask[:, 1:].double())
    assert (tags[~mask] == 0).all()
    assert (edges[~mask[:, 1:]] == 0).all()
    assert (tags[chain.unary == -math.inf] == 0).all()
    assert float(solution.value[0].detach()) == 0.0  # the empty sentence
    assert (solution.residual >= 0).all()
    close(solution.residual[:3], [0.0] * 3)  # one edge at most: nothing to conserve


@parametrize(CONSISTENT)
@some_removed
def test_tag_marginals_are_sums_of_edge_marginals(solver: Solver, removed: float) -> None:
    chain = ragged("shared", removed)
    solution = solver(chain)
    tags, edges, edge = solution.tag_marginals, solution.edge_marginals, chain.mask[:, 1:]
    close(edges.sum(-1)[edge], tags[:, :-1][edge])
    close(edges.sum(-2)[edge], tags[:, 1:][edge])
    assert (solution.residual <= 1e-9).all()


# Precision


@every_solver
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_dtypes(solver: Solver, dtype: torch.dtype) -> None:
    wide = ragged()
    assert wide.transitions is not None
    chain = LinearChain(wide.unary.to(dtype), wide.transitions.to(dtype), wide.lengths)
    gold, allowed = gold_of(wide), allowed_with(wide, gold_of(wide))
    working = torch.promote_types(dtype, torch.float32)
    found, exact = (
        solved(solver, chain, gold, allowed),
        solved(solver, chain.double(), gold, allowed),
    )
    for name, x in found.items():
        if name == "decode":
            assert x.dtype == torch.int64
            continue
        kept = dtype if name.endswith("marginals") else working
        assert x.dtype == kept, name
        error = 2 * torch.finfo(kept).eps if kept.itemsize == 2 else 1e-5
        torch.testing.assert_close(x.double(), exact[name], rtol=error, atol=error)


@every_solver
@pytest.mark.parametrize("scale", [1.0, 1e4])
@some_removed
def test_losses_are_never_negative(solver: Solver, scale: float, removed: float) -> None:
    chain = ragged("shared", removed).to(torch.float32)
    assert chain.transitions is not None
    chain = LinearChain(chain.unary * scale, chain.transitions * scale, chain.lengths)
    for gold in (gold_of(chain), bcrf.viterbi(chain)[1], gold_of(chain / (2 * scale), 1)):
        for loss in (
            bcrf.loss(solver, chain, gold),
            bcrf.partial_loss(solver, chain, allowed_with(chain, gold)),
        ):
            assert loss.isfinite().all()
            assert (loss >= 0).all()


# Padding


@every_solver
@pytest.mark.parametrize(
    ("garbage", "pairs"),
    [
        (math.nan, "shared"),
        (math.nan, "per_pair"),
        (math.inf, "per_pair"),
        (-math.inf, "per_pair"),
        (1e30, "per_pair"),
    ],
)
def test_nothing_beyond_the_length_matters(solver: Solver, garbage: float, pairs: Pairs) -> None:
    chain = ragged_chain(1, (0, 1, 2, 4), 3, n=5, pairs=pairs, removed=0.3 * (garbage < 0))
    gold = gold_of(chain)
    allowed = allowed_with(chain, gold)
    clean, dirty, beyond = scores_of(chain), scores_of(chain), ~chain.mask
    with torch.no_grad():
        dirty[0][beyond] = garbage
        if pairs == "per_pair":
            dirty[1][beyond[:, 1:]] = garbage
    noise = gold.masked_fill(beyond, 99 if garbage > 0 else -5)
    sets = allowed.masked_fill(beyond.unsqueeze(-1), garbage > 0)
    expected = solved(solver, with_scores(chain, clean), gold, allowed)
    found = solved(solver, with_scores(chain, dirty), noise, sets)
    close(found, expected)
    for name in ("value", "loss", "partial_loss"):
        unary, transitions = slopes(found[name], dirty)
        close((unary, transitions), slopes(expected[name], clean))
        assert (unary[beyond] == 0).all()
        if pairs == "per_pair":
            assert (transitions[beyond[:, 1:]] == 0).all()


@every_function
@pytest.mark.parametrize("garbage", [math.nan, math.inf, -math.inf, 1e30])
def test_functions_of_a_chain_ignore_the_padding(function: str, garbage: float) -> None:
    chain = ragged(removed=0.3)
    assert chain.transitions is not None
    beyond = ~chain.mask
    unary = chain.unary.masked_fill(beyond.unsqueeze(-1), garbage)
    transitions = chain.transitions.masked_fill(beyond[:, 1:, None, None], garbage)
    dirty = LinearChain(unary, transitions, chain.lengths)
    expected = decoded(function, chain)
    close(decoded(function, dirty), expected)
    if "tags" in expected:
        assert (expected["tags"][beyond] == -100).all()


@every_function
def test_scores_have_no_gradient_beyond_the_length(function: str) -> None:
    chain = ragged(removed=0.3)
    scores, beyond = scores_of(chain), ~chain.mask
    with torch.no_grad():
        scores[0][beyond] = math.nan
        scores[1][beyond[:, 1:]] = math.nan
    outputs = decoded(function, with_scores(chain, scores)).values()
    assert any(x.requires_grad for x in outputs) == (function != "sample")
    for x in (x for x in outputs if x.requires_grad):
        unary, transitions = slopes(x[x > -math.inf], scores)
        assert all(x.isfinite().all() for x in (unary, transitions))
        assert (unary[beyond] == 0).all()
        assert (transitions[beyond[:, 1:]] == 0).all()


# A batch is its sentences


@every_solver
@pytest.mark.parametrize(("pairs", "removed"), [("shared", 0.0), ("per_pair", 0.4)])
def test_a_batch_is_its_sentences(solver: Solver, pairs: Pairs, removed: float) -> None:
    chain, gold, allowed = labelled(pairs, removed, lengths=EIGHT)
    batch = solved(solver, chain, gold, allowed)
    for i, length in enumerate(EIGHT):
        cut = gold[i : i + 1, :length], allowed[i : i + 1, :length]
        close(solved(solver, alone(chain, i), *cut), row(batch, i, length))
        if pairs == "per_pair" or length == 3:  # with its padding
            whole = gold[i : i + 1], allowed[i : i + 1]
            close(solved(solver, chain[i], *whole), row(batch, i))


@pytest.mark.parametrize("function", [f for f in FUNCTIONS if f != "sample"])
@every_kind
@some_removed
def test_functions_of_a_batch(function: str, pairs: Pairs, removed: float) -> None:
    chain = ragged(pairs, removed, lengths=EIGHT)
    batch = decoded(function, chain)
    for i, length in enumerate(EIGHT):
        close(decoded(function, alone(chain, i)), row(batch, i, length))
        close(decoded(function, chain[i]), row(batch, i))


@every_solver
@pytest.mark.parametrize("pairs", ["shared", "per_pair"])
@pytest.mark.parametrize("of", ["loss", "partial_loss"])
def test_gradients_of_a_batch(solver: Solver, pairs: Pairs, of: str) -> None:
    chain, gold, allowed = labelled(pairs, 0.3, lengths=EIGHT)
    scores, target = scores_of(chain), gold if of == "loss" else allowed
    function: Callable[..., Tensor] = getattr(bcrf, of)
    unary, transitions = slopes(function(solver, with_scores(chain, scores), target), scores)
    total = torch.zeros_like(transitions)
    for i, length in enumerate(EIGHT):
        single = alone(chain, i)
        parts = scores_of(single)
        cut = target[i : i + 1, :length]
        by_unary, by_pair = slopes(function(solver, with_scores(single, parts), cut), parts)
        close(by_unary[0], unary[i, :length])
        if pairs == "shared":
            total += by_pair
        else:
            total[i, : by_pair.shape[1]] = by_pair[0]
    close(total, transitions)


# Partial labels


@every_solver
@every_kind
def test_one_allowed_tag_per_position_is_the_loss(solver: Solver, pairs: Pairs) -> None:
    chain = ragged(pairs, removed=0.3)
    gold = gold_of(chain)
    only = torch.nn.functional.one_hot(gold.clamp(min=0), 3).bool()
    scores = scores_of(chain)
    full = bcrf.loss(solver, with_scores(chain, scores), gold)
    partial = bcrf.partial_loss(solver, with_scores(chain, scores), only)
    close(partial, full)
    close(slopes(partial, scores), slopes(full, scores))


@every_solver
@every_kind
def test_all_tags_allowed_is_no_loss(solver: Solver, pairs: Pairs) -> None:
    """The loss is 0. Before convergence it is at most the distance of the value to B."""
    chain = ragged(pairs, removed=0.3)
    loss = bcrf.partial_loss(solver, chain, torch.ones_like(chain.unary, dtype=torch.bool))
    most = torch.zeros_like(loss)
    if solver in BREGMAN.values():
        most = solver(chain).value - CONVERGED(chain).value
    assert (loss >= 0).all()
    assert (loss <= most + 1e-9).all()


@parametrize(CONSISTENT)
def test_fewer_allowed_tags_cost_more(solver: Solver) -> None:
    chain = ragged()
    gold = gold_of(chain)
    sets = allowed_with(chain, gold)
    more = sets | allowed_with(chain, gold, seed=1)
    assert (more != sets)[chain.mask].any()
    losses = [bcrf.partial_loss(solver, chain, allowed) for allowed in (more, sets)]
    losses.append(bcrf.loss(solver, chain, gold))
    assert (losses[0] <= losses[1] + 1e-9).all()
    assert (losses[1] <= losses[2] + 1e-9).all()
    assert (losses[0][4:] < losses[2][4:]).all()


# Symmetries


@every_solver
@pytest.mark.parametrize("tau", [0.1, 2.0])
def test_temperature_divides_the_scores(solver: Solver, tau: float) -> None:
    chain, gold, allowed = labelled("shared", removed=0.3)
    assert chain.transitions is not None
    scaled = LinearChain(chain.unary / tau, chain.transitions / tau, chain.lengths)
    expected = solved(solver, scaled, gold, allowed)
    close(solved(solver, chain / tau, gold, allowed), expected)
    close(bcrf.decode(solver, chain, temperature=tau), expected["decode"])
    best = expected["tag_marginals"].argmax(-1)
    assert torch.equal(expected["decode"], best.where(chain.mask, -100))


@parametrize(CRF | {"converged": CONVERGED})
def test_cold_decoding_finds_the_best_sequence(solver: Solver) -> None:
    chain = ragged(seed=3)
    assert torch.equal(bcrf.decode(solver, chain, temperature=0.01), bcrf.viterbi(chain)[1])


@every_solver
@pytest.mark.parametrize("tau", [0.0, -1.0, math.inf, math.nan])
def test_temperature_is_positive(solver: Solver, tau: float) -> None:
    with pytest.raises(ValueError, match="temperature"):
        bcrf.decode(solver, ragged(), temperature=tau)


@every_solver
@some_removed
def test_repeated_matrices_are_a_shared_one(solver: Solver, removed: float) -> None:
    shared, gold, allowed = labelled("shared", removed)
    one = scores_of(shared)
    repeated = one[1].expand(len(LENGTHS), shared.max_length - 1, 3, 3)
    expected = solved(solver, with_scores(shared, one), gold, allowed)
    for pairs in (repeated, repeated.contiguous()):
        found = solved(solver, LinearChain(one[0], pairs, shared.lengths), gold, allowed)
        close(found, expected)
        for name in ("value", "loss", "partial_loss"):
            close(slopes(found[name], one), slopes(expected[name], one))


@every_solver
@some_removed
def test_no_transitions_are_zero_transitions(solver: Solver, removed: float) -> None:
    chain, gold, allowed = labelled("none", removed)
    zero = LinearChain(chain.unary, chain.unary.new_zeros(3, 3), chain.lengths)
    close(solved(solver, zero, gold, allowed), solved(solver, chain, gold, allowed))


@every_solver
@some_removed
def test_tags_have_no_order(solver: Solver, removed: float) -> None:
    chain, gold, allowed = labelled(removed=removed)
    assert chain.transitions is not None
    order = torch.tensor([2, 0, 1])
    place = order.argsort()
    unary, transitions = chain.unary[..., order], chain.transitions[..., order, :][..., order]
    renamed = LinearChain(unary, transitions, chain.lengths)

    def rename(tags: Tensor) -> Tensor:
        return place[tags.clamp(min=0)].where(chain.mask, -100)

    expected = solved(solver, chain, gold, allowed)
    expected["tag_marginals"] = expected["tag_marginals"][..., order]
    expected["edge_marginals"] = expected["edge_marginals"][..., order, :][..., order]
    expected["decode"] = rename(expected["decode"])
    close(solved(solver, renamed, rename(gold), allowed[..., order]), expected)


# Settings


@every_solver
def test_settings_are_values(solver: Solver) -> None:
    twins = [dataclasses.replace(solver), copy.deepcopy(solver), pickle.loads(pickle.dumps(solver))]
    for twin in twins:
        assert twin == solver
        assert hash(twin) == hash(solver)
    assert [s for s in SOLVERS.values() if s == solver] == [solver]
    for field in dataclasses.fields(solver):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(solver, field.name, getattr(solver, field.name))
    with pytest.raises((dataclasses.FrozenInstanceError, TypeError)):
        solver.anything = 1
