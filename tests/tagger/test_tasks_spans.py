"""Labels and spans: every scheme, well-formed or not, against the structure and seqeval."""

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from seqeval.metrics.sequence_labeling import get_entities

from bcrf import Structure
from bcrf.tag_schemes import normalize_label, parse_label
from bcrf.tagger.tasks import Span, encode_spans, find_spans
from bcrf.tagger.tasks.scheme_detection import MENTION_SCHEMES, LabelRules, detect_scheme

LABELS = {
    "IOB1": ["O", *(f"{x}-{t}" for t in "XY" for x in "BI")],
    "IOB2": ["O", *(f"{x}-{t}" for t in "XY" for x in "BI")],
    "BIOES": ["O", *(f"{x}-{t}" for t in "XY" for x in "BIES")],
    "BIES": [f"{x}-{t}" for t in "XY" for x in "BIES"],
}


def allows(structure: Structure, ids: tuple[int, ...]) -> bool:
    if not ids:
        return True
    return bool(
        structure.start[ids[0]]
        and structure.end[ids[-1]]
        and all(structure.follow[a, b] for a, b in itertools.pairwise(ids))
    )


@pytest.mark.parametrize("scheme", LABELS)
@pytest.mark.parametrize("length", range(4))
def test_well_formed_sequences_are_those_that_round_trip_through_spans(scheme, length):
    labels = LABELS[scheme]
    structure = Structure.from_labels(labels, scheme)
    rules = LabelRules(labels, structure)
    count = 0
    for ids in itertools.product(range(len(labels)), repeat=length):
        sequence = [labels[i] for i in ids]
        again = encode_spans(find_spans(sequence), length, scheme)
        well_formed = allows(structure, ids)
        assert (again == sequence) == well_formed
        assert (rules.find_dead_end([[label] for label in sequence]) is None) == well_formed
        # The result is well-formed, and repairing it again changes nothing.
        assert allows(structure, tuple(labels.index(label) for label in again))
        assert find_spans(again) == find_spans(sequence)
        count += well_formed
    assert count > 0


ANY_LABELS = st.lists(st.sampled_from(LABELS["BIOES"]), max_size=12)


@given(ANY_LABELS)
def test_spans_are_those_of_seqeval(labels):
    ours = [(span.type, span.start, span.end - 1) for span in find_spans(labels)]
    assert ours == get_entities(labels)


@st.composite
def spans_of(draw, cover: bool) -> tuple[list[Span], int]:
    spans = []
    end = 0
    for _ in range(draw(st.integers(1, 4))):
        start = end + (0 if cover else draw(st.integers(0, 2)))
        end = start + draw(st.integers(1, 3))
        spans.append(Span(start, end, draw(st.sampled_from(["X", "Y", "Z-z", ""]))))
    return spans, end + (0 if cover else draw(st.integers(0, 2)))


@pytest.mark.parametrize("scheme", LABELS)
@given(data=st.data())
def test_spans_round_trip_through_labels(scheme, data):
    spans, length = data.draw(spans_of(scheme == "BIES"))
    assert find_spans(encode_spans(spans, length, scheme)) == spans


def test_the_documented_repairs():
    def repair(text, scheme, breaks=()):
        labels = text.split()
        return " ".join(encode_spans(find_spans(labels, breaks), len(labels), scheme))

    assert repair("O I-X I-X O", "IOB2") == "O B-X I-X O"
    assert repair("B-X I-Y I-Y", "IOB2") == "B-X B-Y I-Y"
    assert repair("B-X B-Y E-Y I-X S-X", "BIES") == "S-X B-Y E-Y S-X S-X"
    assert repair("E-X E-X I-X I-X", "BIES") == "S-X S-X B-X E-X"
    assert repair("B-X I-X E-X", "BIES", breaks={2}) == "B-X E-X S-X"
    assert repair("B-X O E-X", "BIOES") == "S-X O S-X"


def test_prefixes_of_other_schemes():
    assert [normalize_label(label) for label in ("M-X", "L-X", "U", "O", "B-a-b")] == [
        "I-X",
        "E-X",
        "S",
        "O",
        "B-a-b",
    ]
    assert find_spans(["B-X", "M-X", "L-X", "U-X"]) == [Span(0, 3, "X"), Span(3, 4, "X")]


@pytest.mark.parametrize("label", ["", "X", "B-", "O-X", "BX", "b-X", "-X"])
def test_invalid_labels_are_errors(label):
    with pytest.raises(ValueError, match=r"is not a label[;:] .*expected"):
        parse_label(label)


@pytest.mark.parametrize(
    ("spans", "scheme", "message"),
    [
        ([Span(0, 1, "X")], "BIES", "token 1 is in no span"),
        ([Span(0, 2, "X"), Span(1, 2, "X")], "IOB2", "in order and without overlap"),
        ([Span(0, 3, "X")], "IOB2", "expected spans of 2 tokens, in order"),
        ([Span(1, 1, "X")], "IOB2", "in order and without overlap"),
        ([], "IOB3", "scheme: expected one of BIO, IOB2, IOB1, .*, got 'IOB3'"),
    ],
)
def test_impossible_spans_are_errors(spans, scheme, message):
    with pytest.raises(ValueError, match=message):
        encode_spans(spans, 2, scheme)


# ------------------------------------------------------------------------------------------ schemes


@pytest.mark.parametrize("scheme", MENTION_SCHEMES)
def test_schemes_are_detected(scheme):
    chance = random.Random(0)
    sequences = []
    for _ in range(50):
        labels = [chance.choice(LABELS["IOB2"]) for _ in range(8)]
        sequences.append(encode_spans(find_spans(labels), 8, scheme))
    assert detect_scheme(sequences) == (scheme, [None] * 50)


def test_scheme_of_few_labels():
    assert detect_scheme([]) == ("IOB2", [])
    assert detect_scheme([["O", "O"], []]) == ("IOB2", [None, None])
    assert detect_scheme([["I-X", "I-X"]]) == ("IOB1", [None])
    assert detect_scheme([["U-X", "O"]]) == ("BIOES", [None])


def test_positions_of_violations():
    good = ["B-X", "I-X", "O", "B-X"]
    assert detect_scheme([good, good, ["O", "O", "I-X"]]) == ("IOB2", [None, None, 2])
    assert detect_scheme([["S-X", "B-X"]]) == ("BIOES", [1])
    assert detect_scheme([["I-X", "O"], ["I-X"], ["O", "B-X"]]) == ("IOB1", [None, None, 1])


def test_dead_ends_of_label_sets():
    labels = LABELS["IOB2"]
    rules = LabelRules(labels, Structure.from_labels(labels, "IOB2"))
    assert rules.find_dead_end([["B-X", "B-Y"], ["I-X", "I-Y"], ["I-Y"]]) is None
    assert rules.find_dead_end([["B-X"], ["I-X", "O"], ["I-Y"]]) == 2
    assert rules.find_dead_end([["I-X"], ["O"]]) == 0
    assert rules.find_dead_end([]) is None
