"""Live tags from the tables of a structure equal those from a search in each sentence."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from bcrf import LinearChain, Structure
from bcrf.kernels.folded_chain import fold
from bcrf.numerics.static_trimming import (
    ReachableInSegments,
    divides_into_segments,
    static_live,
)
from bcrf.numerics.trimming import live_tags
from measurement.launches import LaunchCounter
from tests.strategies import bies_follow

LENGTHS = torch.arange(41)
N = 40


def searched(structure: Structure, lengths: Tensor, n: int) -> Tensor:
    """Return the live tags by `live_tags`, which searches each sentence."""
    position = torch.arange(n)
    nodes = torch.ones(len(lengths), n, structure.num_tags, dtype=torch.bool)
    nodes[:, :1] &= structure.start
    last = (position == lengths.unsqueeze(1) - 1).unsqueeze(-1)
    nodes &= structure.end | ~last
    nodes &= (position < lengths.unsqueeze(1)).unsqueeze(-1)
    return live_tags(nodes, structure.follow, lengths)


def random_structure(seed: int, tags: int) -> Structure:
    generator = torch.Generator().manual_seed(seed)
    share = 0.05 + 0.9 * torch.rand((), generator=generator)
    start, end = (torch.rand(tags, generator=generator) < 0.5 for _ in range(2))
    return Structure(start, end, torch.rand(tags, tags, generator=generator) < share)


def cycles(*lengths: int) -> Structure:
    """Return disjoint cycles of tags; a sentence starts and ends at the first tag of a cycle."""
    tags = sum(lengths)
    follow = torch.zeros(tags, tags, dtype=torch.bool)
    ends = torch.zeros(tags, dtype=torch.bool)
    first = 0
    for length in lengths:
        ends[first] = True
        for i in range(length):
            follow[first + i, first + (i + 1) % length] = True
        first += length
    return Structure(ends, ends, follow)


def line(tags: int) -> Structure:
    """Return the structure of the sequences 0, 1, ..., in which the last tag repeats."""
    follow = torch.diag(torch.ones(tags - 1), 1).bool()
    follow[-1, -1] = True
    return Structure([t == 0 for t in range(tags)], [t == tags - 1 for t in range(tags)], follow)


def bies() -> Structure:
    _, start, end, follow = bies_follow()
    return Structure(start, end, follow)


def check(structure: Structure, lengths: Tensor = LENGTHS, n: int = N) -> None:
    found = static_live(structure, lengths, n)
    assert found.dtype == torch.bool
    assert torch.equal(found, searched(structure, lengths, n))


@pytest.mark.parametrize("seed", range(60))
def test_random_structures(seed: int) -> None:
    check(random_structure(seed, 1 + seed % 7))


@pytest.mark.parametrize(
    "structure",
    [cycles(1), cycles(2), cycles(3), cycles(2, 3, 5), line(1), line(6), line(50), bies()],
    ids=["1", "2", "3", "2 3 5", "line 1", "line 6", "line 50", "bies"],
)
def test_periodic_structures(structure: Structure) -> None:
    assert structure.reachable is not None
    assert structure.reachable.tables() is not None
    check(structure)
    for n in (0, 1, 2):
        check(structure, torch.arange(n + 1), n)


def test_a_random_cycle_with_a_tail_continues_beyond_the_tables() -> None:
    """The tables have a few rows, the sentence has several hundred positions."""
    tail = cycles(3, 4)
    follow = tail.follow.clone()
    follow[0, 3] = True
    structure = Structure(tail.start, tail.end, follow)
    lengths = torch.tensor([0, 1, 299, 300])
    check(structure, torch.tensor([3, 5]), 5)
    check(structure, lengths, 300)  # the tables grow
    check(structure)


def test_long_periods_have_no_tables() -> None:
    structure = cycles(4, 5, 7, 9)  # period 1260
    assert structure.reachable is not None
    assert structure.reachable.tables() is None
    check(structure)


def test_structures_that_allow_everything_need_no_tables() -> None:
    structure = Structure(start=[True, True])
    assert structure.reachable is not None
    assert structure.reachable.everything
    check(structure)
    # Not all tags are live in a sentence of length 2, although all tables but one are full.
    check(Structure(end=[True, False]))


def test_structures_without_a_path() -> None:
    structure = Structure(start=[True, False], end=[False, True], follow=torch.eye(2).bool())
    check(structure)
    assert not bool(static_live(structure, LENGTHS, N).any())
    chain = LinearChain(torch.zeros(1, 3, 2), structure=structure, finite=True)
    with pytest.raises(ValueError, match="sentence 0 has no path left"):
        fold(chain)


@pytest.mark.parametrize("seed", range(10))
def test_two_structures_at_once(seed: int) -> None:
    one, two = random_structure(seed, 4), random_structure(seed + 100, 4)
    both = one.intersect(two)
    assert torch.equal(both.follow, one.follow & two.follow)
    assert both.reachable is not None
    check(both)


@pytest.mark.parametrize("structure", [bies(), cycles(2, 3)], ids=["bies", "cycles"])
def test_copies_have_tables(structure: Structure) -> None:
    static_live(structure, LENGTHS, N)
    for twin in (copy.deepcopy(structure), pickle.loads(pickle.dumps(structure))):
        assert twin.reachable is not None
        assert twin.reachable.tables() is not None
        check(twin)


@pytest.mark.parametrize("structure", [bies(), cycles(2, 3)], ids=["bies", "cycles"])
def test_few_launches_and_no_waiting(structure: Structure) -> None:
    moved, lengths = structure.to("meta"), torch.empty(3, dtype=torch.int64, device="meta")
    static_live(moved, lengths, N)  # makes the tables of this device
    with LaunchCounter(refuse_waiting=True) as counter:
        live = static_live(moved, lengths, N)
    assert live.shape == (3, N, structure.num_tags)
    assert counter.launches <= 5


def test_structures_of_another_device_are_searched() -> None:
    """Reading the masks would make the host wait for each structure."""
    structure = bies().to("meta")
    remade = Structure(structure.start, structure.end, structure.follow)
    assert remade.reachable is None
    lengths = torch.empty(3, dtype=torch.int64, device="meta")
    with LaunchCounter(refuse_waiting=True):
        assert static_live(remade, lengths, N).shape == (3, N, structure.num_tags)


@pytest.mark.parametrize(
    "structure", [bies(), cycles(2, 3, 5), line(6)], ids=["bies", "cycles", "line"]
)
def test_in_a_graph_of_all_lengths(structure: Structure) -> None:
    def live(lengths: Tensor, like: Tensor) -> Tensor:
        return static_live(structure, lengths, like.shape[1])

    torch._dynamo.reset()
    graphs: list[set[str]] = []

    def remember(graph: torch.fx.GraphModule, _: Sequence[Tensor]) -> torch.fx.GraphModule:
        graphs.append({str(node.target) for node in graph.graph.nodes})
        return graph

    compiled = torch.compile(live, fullgraph=True, backend=remember, dynamic=True)
    for n in (90, 13, 41, 200):  # no size of a table: equal sizes share a symbol
        lengths = torch.tensor([0, 1, 2, n - 1, n])
        found = compiled(lengths, torch.empty(1, n))
        assert torch.equal(found, searched(structure, lengths, n))
    assert len(graphs) == 1
    assert not graphs[0] & {"while_loop", "scan", "item", "any"}


# Declared chains: `finite=True`


def declared(kind: str, structure: Structure | None = None) -> LinearChain:
    generator = torch.Generator().manual_seed(0)
    unary = torch.randn(4, 6, 4, generator=generator)
    shape = {"none": None, "shared": (4, 4), "per_pair": (4, 5, 4, 4)}[kind]
    transitions = None if shape is None else torch.randn(shape, generator=generator)
    lengths = torch.tensor([6, 2, 1, 0])
    return LinearChain(unary, transitions, lengths, structure=structure, finite=True)


@pytest.mark.parametrize("kind", ["none", "shared", "per_pair"])
def test_the_promise_survives_what_keeps_scores_finite(kind: str) -> None:
    chain = declared(kind)
    copies = {
        "constrain": chain.constrain(bies()),
        "constrain twice": chain.constrain(bies()).constrain(line(4)),
        "detach": chain.detach(),
        "temperature": chain / 0.1,
        "device": chain.to("meta"),
        "dtype": chain.to(torch.float64),
        "double": chain.double(),
        "one": chain[1],
        "some": chain[[0, 2]],
        "mask": chain[torch.tensor([True, False, True, False])],
        "start and end": chain._add_start_end(torch.zeros(8)),
    }
    assert {name: copy.finite for name, copy in copies.items()} == dict.fromkeys(copies, True)
    assert not chain.restrict(torch.ones(4, 6, 4, dtype=torch.bool)).finite
    assert not LinearChain(chain.unary, chain.transitions, chain.lengths).finite


@pytest.mark.parametrize("kind", ["none", "shared", "per_pair"])
@pytest.mark.parametrize("rules", [None, bies(), cycles(1, 3)], ids=["free", "bies", "cycles"])
def test_folding_equals_that_of_undeclared_chains(kind: str, rules: Structure | None) -> None:
    chain = declared(kind)
    plain = LinearChain(chain.unary, chain.transitions, chain.lengths)
    if rules is not None:
        chain, plain = chain.constrain(rules), plain.constrain(rules)
    found, expected = fold(chain), fold(plain)
    assert torch.equal(found.live, expected.live)
    assert torch.equal(found.left[found.edge], expected.left[expected.edge])
    assert torch.equal(found.right[found.edge], expected.right[expected.edge])
    assert torch.equal(found.single_scores, expected.single_scores)


@pytest.mark.parametrize(("rules", "most"), [(None, 26), (bies(), 32)], ids=["free", "bies"])
def test_folding_a_declared_chain_takes_few_launches(rules: Structure | None, most: int) -> None:
    chain = declared("shared", rules).to("meta")
    fold(chain)
    with LaunchCounter(refuse_waiting=True) as counter:
        fold(chain)
    assert counter.launches <= most


def test_errors_are_still_found_on_the_cpu() -> None:
    chain = declared("shared")
    chain.unary[1, 1, 2] = torch.nan
    with pytest.raises(ValueError, match="sentence 1, position 1: the score of tag 2 is nan"):
        fold(chain)


# Segments


def live_in_segments(structure: Structure, starts: Tensor, lengths: Tensor) -> Tensor:
    assert structure.reachable is not None
    reachable = ReachableInSegments(structure.reachable, starts)
    masks = (structure.start, structure.end, structure.follow)
    divided = Structure._unchecked(masks, None, reachable)
    return static_live(divided, lengths, starts.shape[1])


@pytest.mark.parametrize("scheme", ["BIES", "IOB2", "BIOES"])
def test_segments_are_trimmed_like_sentences(scheme: str) -> None:
    prefixes = {"BIES": "BIES", "IOB2": "BI", "BIOES": "BIES"}[scheme]
    labels = [f"{prefix}-{kind}" for kind in "XY" for prefix in prefixes]
    structure = Structure.from_labels(labels + ["O"] * (scheme != "BIES"), scheme)
    assert divides_into_segments(structure)
    generator = torch.Generator().manual_seed(0)
    for n in range(1, 30):
        lengths = torch.randint(0, n + 1, (6,), generator=generator)
        starts = torch.rand(6, n, generator=generator) < 0.3
        position = torch.arange(n)
        first = starts | (position == 0)
        end = first.roll(-1, 1) | (position == lengths.unsqueeze(1) - 1)
        nodes = (position < lengths.unsqueeze(1)).unsqueeze(-1)
        nodes = nodes & (structure.start | ~first.unsqueeze(-1))
        nodes = nodes & (structure.end | ~end.unsqueeze(-1))
        expected = live_tags(nodes, structure.follow, lengths)
        assert torch.equal(live_in_segments(structure, starts, lengths), expected)


def test_structures_whose_live_tags_alternate_have_no_segments() -> None:
    assert not divides_into_segments(cycles(2))
    no_start_after_end = Structure([True, False], [False, True], [[True, True], [False, True]])
    assert not divides_into_segments(no_start_after_end)
