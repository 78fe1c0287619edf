"""Tag schemes against a definition by encoders; trimming against enumeration of all paths."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from itertools import pairwise, product
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils import _pytree as pytree

from bcrf.numerics.trimming import live_tags
from bcrf.structure import Structure

Sentence = tuple[str, ...]
Span = tuple[int, int, str]  # first position, position after the last, type

# ---------------------------------------------------------------------------------------------
# An independent definition: a sequence is well-formed if an encoder makes it from typed spans.


def all_spans(n: int, types: list[str], begin: int = 0) -> Iterator[list[Span]]:
    """Yield all sets of non-overlapping typed spans within positions begin..n-1, in order."""
    yield []
    for first in range(begin, n):
        for stop in range(first + 1, n + 1):
            for kind in types:
                for rest in all_spans(n, types, stop):
                    yield [(first, stop, kind), *rest]


def label(letter: str, kind: str) -> str:
    return f"{letter}-{kind}" if kind else letter


def encode_bio(n: int, spans: list[Span]) -> Sentence:
    tags = ["O"] * n
    for first, stop, kind in spans:
        tags[first:stop] = [label("B", kind)] + [label("I", kind)] * (stop - first - 1)
    return tuple(tags)


def encode_iob1(n: int, spans: list[Span]) -> Sentence:
    tags = ["O"] * n
    touches = {(stop, kind) for _, stop, kind in spans}
    for first, stop, kind in spans:
        tags[first:stop] = [label("I", kind)] * (stop - first)
        if (first, kind) in touches:
            tags[first] = label("B", kind)
    return tuple(tags)


def encode_bioes(letters: str) -> Callable[[int, list[Span]], Sentence]:
    """letters: begin, inside, end, single."""
    begin, inside, end, single = letters

    def encode(n: int, spans: list[Span]) -> Sentence:
        tags = ["O"] * n
        for first, stop, kind in spans:
            if stop - first == 1:
                tags[first] = label(single, kind)
            else:
                middle = [label(inside, kind)] * (stop - first - 2)
                tags[first:stop] = [label(begin, kind), *middle, label(end, kind)]
        return tuple(tags)

    return encode


# scheme -> letters that take a type, whether there is an O, encoder
SCHEMES: dict[str, tuple[str, bool, Callable[[int, list[Span]], Sentence]]] = {
    "BIO": ("BI", True, encode_bio),
    "IOB2": ("IB", True, encode_bio),
    "IOB1": ("BI", True, encode_iob1),
    "BIOES": ("BIES", True, encode_bioes("BIES")),
    "iobes": ("IBES", True, encode_bioes("BIES")),
    "BIOUL": ("BIUL", True, encode_bioes("BILU")),
    "bilou": ("BILU", True, encode_bioes("BILU")),
    "BIES": ("BIES", False, encode_bioes("BIES")),
    "bmes": ("BMES", False, encode_bioes("BMES")),
}


def label_set(scheme: str, types: list[str]) -> list[str]:
    letters, outside, _ = SCHEMES[scheme]
    labels = [label(letter, kind) for kind in types for letter in letters]
    return [*labels[:1], *(["O"] if outside else []), *labels[1:]]  # O is not always tag 0


def well_formed(scheme: str, types: list[str], n: int) -> set[Sentence]:
    _, outside, encode = SCHEMES[scheme]
    encoded = [encode(n, spans) for spans in all_spans(n, types)]
    assert len(set(encoded)) == len(encoded), "an encoding must be invertible"
    return {tags for tags in encoded if outside or "O" not in tags}


def allowed(structure: Structure, labels: list[str], n: int) -> set[Sentence]:
    """Return all sequences of n >= 1 labels that the structure allows, by trying every sequence."""
    start, end, follow = (m.tolist() for m in (structure.start, structure.end, structure.follow))
    return {
        tuple(labels[tag] for tag in tags)
        for tags in product(range(len(labels)), repeat=n)
        if start[tags[0]] and end[tags[-1]] and all(follow[a][b] for a, b in pairwise(tags))
    }


@pytest.mark.parametrize("types", [["PER", "LOC"], [""], ["MISC-x", "MISC"], ["", "O"]], ids=str)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_allowed_sequences_are_the_encodings(scheme: str, types: list[str]) -> None:
    labels = label_set(scheme, types)
    structure = Structure.from_labels(labels, scheme)
    assert structure.num_tags == len(labels)
    for n in range(1, 5):
        assert allowed(structure, labels, n) == well_formed(scheme, types, n)


@pytest.mark.parametrize("scheme", ["BIO", "IOB1", "BIOES", "BIES"])
def test_missing_labels_remove_their_sentences_only(scheme: str) -> None:
    full = label_set(scheme, ["PER", "LOC"])
    for missing in full:
        labels = [name for name in full if name != missing]
        expected = {tags for tags in well_formed(scheme, ["PER", "LOC"], 3) if missing not in tags}
        assert allowed(Structure.from_labels(labels, scheme), labels, 3) == expected


@pytest.mark.parametrize("partial_end", [False, True])
@pytest.mark.parametrize("partial_start", [False, True])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_partial_is_all_windows_of_longer_sentences(
    scheme: str, partial_start: bool, partial_end: bool
) -> None:
    labels = label_set(scheme, ["PER", "LOC"])
    structure = Structure.from_labels(
        labels, scheme, allow_partial_start=partial_start, allow_partial_end=partial_end
    )
    for n in range(1, 4):
        expected = {
            tags[before : before + n]
            for before in range(3 if partial_start else 1)
            for after in range(3 if partial_end else 1)
            for tags in well_formed(scheme, ["PER", "LOC"], before + n + after)
        }
        assert allowed(structure, labels, n) == expected


def test_letters_of_bioes_and_bioul_are_read_alike() -> None:
    plain = Structure.from_labels(["O", "B-X", "I-X", "E-X", "S-X"], "BIOES")
    for labels, scheme in [
        (["O", "B-X", "I-X", "L-X", "U-X"], "BIOES"),
        (["O", "B-X", "I-X", "E-X", "S-X"], "BIOUL"),
        (["O", "B-X", "I-X", "L-X", "S-X"], "BILOU"),
    ]:
        other = Structure.from_labels(labels, scheme)
        assert torch.equal(other.follow, plain.follow)
        assert torch.equal(other.start, plain.start)
        assert torch.equal(other.end, plain.end)


@pytest.mark.parametrize(
    ("labels", "scheme", "error", "words"),
    [
        ([], "BIO", ValueError, ["labels", "at least one"]),
        (["O", "<pad>"], "BIO", ValueError, ["labels[1]", "'<pad>'", "B, I, O"]),
        (["[CLS]", "O"], "BIOES", ValueError, ["labels[0]", "'[CLS]'", "BIOES"]),
        (["O", ""], "BIO", ValueError, ["labels[1]", "''"]),
        (["O", "b-PER"], "BIO", ValueError, ["labels[1]", "'b-PER'"]),
        (["O", "B_PER"], "BIO", ValueError, ["labels[1]", "'B_PER'"]),
        (["O", "E-PER"], "BIO", ValueError, ["labels[1]", "'E-PER'"]),
        (["O", "S-PER"], "IOB1", ValueError, ["labels[1]", "'S-PER'"]),
        (["O", "M-PER"], "BIOES", ValueError, ["labels[1]", "'M-PER'"]),
        (["B", "O"], "BMES", ValueError, ["labels[1]", "'O'", "B, I, M, E, S"]),
        (["O", "O-PER"], "BIO", ValueError, ["labels[1]", "'O-PER'", "plain 'O'"]),
        (["O", "B-"], "BIO", ValueError, ["labels[1]", "'B-'"]),
        (["O", "B-X", "B-X"], "BIO", ValueError, ["labels[2]", "'B-X'", "labels[1]"]),
        (["E-X", "O", "L-X"], "BIOES", ValueError, ["labels[2]", "'L-X'", "labels[0]", "'E-X'"]),
        (["O", "B"], "IOB", ValueError, ["scheme", "'IOB'", "IOB1", "BMES"]),
        (["O", "B"], None, ValueError, ["scheme", "None"]),
        ("BIES", "BIES", TypeError, ["labels", "str"]),
        ({"O", "B"}, "BIO", TypeError, ["labels", "set"]),
        ({"O": 0, "B": 1}, "BIO", TypeError, ["labels", "dict", "'O'", "label2id"]),
        ({0: "O", 2: "B"}, "BIO", ValueError, ["labels", "0 to 1", "1 is missing"]),
        ({1: "O", 2: "B"}, "BIO", ValueError, ["labels", "0 is missing"]),
        ({0: "O", "0": "B"}, "BIO", ValueError, ["labels", "the id 0 occurs twice"]),
        ({0: "O", True: "B"}, "BIO", TypeError, ["labels", "True"]),
        ({0: "O", "-1": "B"}, "BIO", TypeError, ["labels", "'-1'"]),
        ({0: "O", "9" * 5000: "B"}, "BIO", TypeError, ["labels", "tag id"]),
        ({0: "O", 1: None}, "BIO", TypeError, ["labels[1]", "None"]),
        ({}, "BIO", ValueError, ["labels", "at least one"]),
        (["O", 1], "BIO", TypeError, ["labels[1]", "int"]),
    ],
)
def test_label_errors_name_the_culprit(
    labels: Any, scheme: Any, error: type[Exception], words: list[str]
) -> None:
    with pytest.raises(error) as caught:
        Structure.from_labels(labels, scheme)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("id_type", [int, str])
def test_id2label_of_transformers_is_accepted(id_type: type) -> None:
    labels = ["O", "B-PER", "I-PER", *(f"{x}-T{i}" for i in range(5) for x in "BI")]
    expected = Structure.from_labels(labels, "BIO")
    id2label = {id_type(tag): labels[tag] for tag in reversed(range(len(labels)))}
    structure = Structure.from_labels(id2label, "BIO")
    assert structure.labels == tuple(labels)
    assert torch.equal(structure.follow, expected.follow)
    assert torch.equal(structure.start, expected.start)
    assert repr(structure).endswith("labels: O, B-PER, I-PER, B-T0, I-T0, B-T1, I-T1, B-T2, ...)")


# ---------------------------------------------------------------------------------------------
# The constructor, equality, hashing and copies.


def test_constructor_accepts_lists_and_tensors_and_fills_in() -> None:
    structure = Structure(end=[True, False, True])
    assert structure.num_tags == 3
    assert structure.end.tolist() == [True, False, True]
    assert structure.start.tolist() == [True] * 3
    assert structure.follow.tolist() == [[True] * 3] * 3
    follow = torch.tensor([[True, False], [True, True]])
    structure = Structure([False, True], follow=follow)
    assert structure.start.tolist() == [False, True]
    assert structure.end.tolist() == [True, True]
    assert torch.equal(structure.follow, follow)
    assert all(m.dtype == torch.bool for m in pytree.tree_leaves(structure))
    follow.fill_(False)
    assert structure.follow.any(), "the caller's tensor is copied"


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({}, ValueError, ["start", "end", "follow", "at least one"]),
        ({"start": torch.ones(2)}, TypeError, ["start", "bool", "float32"]),
        ({"follow": torch.ones(2, 2).long()}, TypeError, ["follow", "bool", "int64"]),
        ({"end": [1, 0]}, TypeError, ["end", "bool", "int64"]),
        ({"end": "OB"}, TypeError, ["end", "bool", "'OB'"]),
        ({"start": []}, ValueError, ["start", "[0]", "T >= 1"]),
        ({"start": True}, ValueError, ["start", "[T]", "[]"]),
        ({"start": [[True]]}, ValueError, ["start", "[T]", "[1, 1]"]),
        ({"follow": [True]}, ValueError, ["follow", "[T, T]", "[1]"]),
        ({"follow": [[True, False]]}, ValueError, ["follow", "[T, T]", "[1, 2]"]),
        ({"follow": [[True, False], [True]]}, ValueError, ["follow", "[T, T]"]),
        ({"start": [True], "end": [True] * 2}, ValueError, ["start has 1", "end has 2"]),
        ({"start": [True], "labels": ["a", "b"]}, ValueError, ["labels", "each of 1 tags, got 2"]),
        (
            {"end": [True], "follow": torch.ones(2, 2) > 0},
            ValueError,
            ["end has 1", "follow has 2"],
        ),
        (
            {"start": torch.ones(1) > 0, "end": torch.ones(1, dtype=torch.bool, device="meta")},
            ValueError,
            ["start is on cpu", "end is on meta"],
        ),
    ],
)
def test_constructor_errors(
    arguments: dict[str, Any], error: type[Exception], words: list[str]
) -> None:
    with pytest.raises(error) as caught:
        Structure(**arguments)
    for word in words:
        assert word in str(caught.value)


def test_structure_is_frozen_copies_moves_and_prints() -> None:
    structure = Structure.from_labels(["O", "B-X", "I-X"], "BIO")
    with pytest.raises(AttributeError):
        structure.start = structure.end  # type: ignore[misc]
    for other in (
        copy.deepcopy(structure),
        pickle.loads(pickle.dumps(structure)),
        structure.to("cpu"),
    ):
        assert torch.equal(other.start, structure.start)
        assert torch.equal(other.end, structure.end)
        assert torch.equal(other.follow, structure.follow)
        assert other.labels == structure.labels == ("O", "B-X", "I-X")
    printed = "Structure(start=2/3, end=3/3, follow=8/9 allowed"
    assert repr(structure) == f"{printed}; labels: O, B-X, I-X)"
    assert repr(Structure(structure.start, structure.end, structure.follow)) == f"{printed})"
    moved = structure.to("meta")
    assert {m.device.type for m in (moved.start, moved.end, moved.follow)} == {"meta"}
    assert "Structure" in repr(moved)


@pytest.mark.parametrize("labels", [None, ("O", "B")])
def test_pytree_round_trip(labels: tuple[str, ...] | None) -> None:
    structure = Structure(start=[True, False], end=[False, True], labels=labels)
    leaves, spec = pytree.tree_flatten({"a": structure})
    assert len(leaves) == 3
    back = pytree.tree_unflatten(leaves, spec)["a"]
    assert back.labels == labels
    assert back.start is structure.start
    assert back.end is structure.end
    assert back.follow is structure.follow
    placeholder = pytree.tree_unflatten(["x", None, object()], spec)["a"]
    assert placeholder.start == "x"
    assert placeholder.end is None
    assert "Structure" in repr(placeholder)
    paths = [pytree.keystr(path) for path, _ in pytree.tree_flatten_with_path(structure)[0]]
    assert paths == [".start", ".end", ".follow"]
    assert pytree.treespec_loads(pytree.treespec_dumps(spec)) == spec
    _, other = pytree.tree_flatten({"a": Structure(start=[True, False], labels=["x", "y"])})
    assert other != spec, "structures with other labels are other trees"


class Trim(torch.nn.Module):
    """Trims sentences by a structure that is an input of the program, for export."""

    def forward(self, structure: Structure, nodes: Tensor, lengths: Tensor) -> Tensor:
        return live_tags(nodes & structure.start, structure.follow, lengths)


def test_structure_goes_through_compile_and_export() -> None:
    structure = Structure.from_labels(["O", "B-X", "I-X", "E-X", "S-X"], "BIOES")
    nodes = torch.rand(3, 4, 5, generator=torch.Generator().manual_seed(0)) < 0.8
    lengths = torch.tensor([4, 0, 2])
    expected = Trim()(structure, nodes, lengths)
    assert expected.any()
    compiled = torch.compile(Trim(), fullgraph=True, backend="eager")
    assert torch.equal(compiled(structure, nodes, lengths), expected)
    exported = torch.export.export(Trim(), (structure, nodes, lengths))
    assert torch.equal(exported.module()(structure, nodes, lengths), expected)


# ---------------------------------------------------------------------------------------------
# Trimming.


def live_by_enumeration(nodes: Tensor, pairs: Tensor, lengths: Tensor) -> Tensor:
    """Mark the tags of all allowed paths, by trying every path."""
    live = torch.zeros_like(nodes)
    tags = range(nodes.shape[2])
    for b, length in enumerate(lengths.tolist()):
        for path in product(tags, repeat=length):
            fine = all(nodes[b, i, tag] for i, tag in enumerate(path)) and all(
                (pairs if pairs.dim() == 2 else pairs[b, i])[path[i], path[i + 1]]
                for i in range(length - 1)
            )
            if fine:
                live[b, range(length), path] = True
    return live


@st.composite
def problems(draw: st.DrawFn) -> tuple[Tensor, Tensor, Tensor]:
    batch, n, tags = draw(st.integers(0, 3)), draw(st.integers(0, 4)), draw(st.integers(1, 3))
    lengths = draw(st.lists(st.integers(0, n), min_size=batch, max_size=batch))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10**6)))
    density = draw(st.sampled_from([0.2, 0.5, 0.8, 1.0]))
    shared = draw(st.booleans())
    shape = (tags, tags) if shared else (batch, max(n - 1, 0), tags, tags)
    nodes = torch.rand(batch, n, tags, generator=generator) < max(density, 0.5)
    pairs = torch.rand(shape, generator=generator) < density
    return nodes, pairs, torch.tensor(lengths, dtype=torch.int64)


@settings(deadline=None, max_examples=200)
@given(problems())
def test_live_tags_are_those_of_all_paths(problem: tuple[Tensor, Tensor, Tensor]) -> None:
    nodes, pairs, lengths = problem
    before = nodes.clone(), pairs.clone()
    live = live_tags(nodes, pairs, lengths)
    assert live.dtype == torch.bool
    assert live.shape == nodes.shape
    assert torch.equal(live, live_by_enumeration(nodes, pairs, lengths))
    assert torch.equal(nodes, before[0])
    assert torch.equal(pairs, before[1])


@pytest.mark.parametrize("per_edge", [False, True])
@pytest.mark.parametrize("batch", [0, 2])
@pytest.mark.parametrize("n", [0, 1, 2])
def test_live_tags_of_short_sentences(n: int, batch: int, per_edge: bool) -> None:
    pairs = torch.tensor([[True, False], [False, False]])  # only 0 -> 0
    if per_edge:
        pairs = pairs.expand(batch, max(n - 1, 0), 2, 2)
    nodes = torch.ones(batch, n, 2, dtype=torch.bool)
    for length in range(n + 1):
        live = live_tags(nodes, pairs, torch.full((batch,), length))
        expected = torch.zeros(batch, n, 2, dtype=torch.bool)
        expected[:, :length] = torch.tensor([True, length == 1])
        assert torch.equal(live, expected)


@pytest.mark.parametrize("where", ["first node", "middle node", "last node", "edge"])
def test_a_sentence_without_a_path_is_dead_and_alone(where: str) -> None:
    nodes = torch.ones(2, 5, 3, dtype=torch.bool)
    pairs = torch.ones(2, 4, 3, 3, dtype=torch.bool)
    if where == "edge":
        pairs[0, 2] = False
    else:
        nodes[0, {"first node": 0, "middle node": 2, "last node": 3}[where]] = False
    live = live_tags(nodes, pairs, torch.tensor([4, 4]))
    assert not live[0].any()
    assert live[1, :4].all()
    assert not live[1, 4:].any()


def test_long_chain_of_many_tags_stays_exact() -> None:
    """In a cycle of tags, one tag is live at each of 300 positions."""
    n, tags = 300, 70
    pairs = torch.eye(tags).roll(1, dims=1) > 0  # t -> t + 1
    nodes = torch.ones(1, n, tags, dtype=torch.bool)
    nodes[0, n // 2] = torch.arange(tags) == 5
    live = live_tags(nodes, pairs, torch.tensor([n]))
    expected = (torch.arange(n) - n // 2 + 5) % tags
    assert torch.equal(live[0], torch.nn.functional.one_hot(expected, tags) > 0)


def test_a_structure_that_is_moved_in_inference_mode_can_train_later() -> None:
    rules = Structure.from_labels(["O", "B", "I"], "BIO")
    with torch.inference_mode():
        moved = rules.to("meta")
        scores = rules.removal_scores(torch.float32)
    assert not any(x.is_inference() for x in (moved.start, moved.follow, *scores))
    assert rules.to("meta") is moved


def test_stored_scores_and_tables_follow_the_rules() -> None:
    rules = Structure.from_labels(["O", "B", "I"], "BIO")
    start_end, follow = rules.removal_scores(torch.float64)
    assert (start_end == 0).tolist() == [*rules.start.tolist(), *rules.end.tolist()]
    assert torch.equal(follow == -torch.inf, ~rules.follow)
    assert rules.removal_scores(torch.float64)[1] is follow
    assert copy.deepcopy(rules).removal_scores(torch.float64)[1] is not follow
