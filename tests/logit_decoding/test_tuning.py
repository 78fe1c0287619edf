"""`tune_transition_bias` chooses biases that decoding confirms."""

from __future__ import annotations

import itertools

import pytest
import torch

import bcrf
from bcrf.spans import find_spans
from tests.logit_decoding.label_oracle import legal_sequences

LABELS = ["O", "B-A", "I-A", "E-A", "S-A", "B-B", "E-B"]


def development_data(seed, shift=0.0, sentences=60, n=12):
    """Return noisy logits of random legal sequences, shifted towards O, and the gold labels."""
    generator = torch.Generator().manual_seed(seed)
    gold_logits = 3 * torch.randn(sentences, n, len(LABELS), generator=generator)
    gold = bcrf.decode_logits(gold_logits, LABELS).labels
    logits = gold_logits + 3 * torch.randn(gold_logits.shape, generator=generator)
    logits[..., 0] += shift
    return logits, gold


def measured(logits, gold, bias, **keywords):
    """Return precision, recall and F1 of `decode_logits`, counted with Python sets."""
    found = bcrf.decode_logits(logits, LABELS, transition_bias=bias, **keywords).labels
    spans = [
        {(b, *span) for b, row in enumerate(rows) for span in find_spans(row)}
        for rows in (gold, found)
    ]
    correct = len(spans[0] & spans[1])
    f1 = 2 * correct / (len(spans[0]) + len(spans[1]))
    return correct / max(1, len(spans[1])), correct / len(spans[0]), f1


@pytest.mark.parametrize("shift", [-4.0, 0.0, 4.0])
def test_f1_improves_and_is_that_of_decoding(shift):
    logits, gold = development_data(0, shift)
    tuned = bcrf.tune_transition_bias(logits, gold, LABELS)
    before, after = measured(logits, gold, None), measured(logits, gold, tuned.bias)
    assert (tuned.precision, tuned.recall, tuned.f1) == pytest.approx(after)
    assert after[2] >= before[2] + (0.02 if shift else 0.0)
    # No neighbour on the finest grid is better: the search ended in an optimum.
    numbers = list(vars(tuned.bias).values())
    for index, change in itertools.product(range(4), (-0.25, 0.25)):
        moved = [x + change * (i == index) for i, x in enumerate(numbers)]
        assert measured(logits, gold, bcrf.TransitionBias(*moved))[2] <= after[2] + 1e-12


def test_wanted_precision_and_recall_are_reached():
    logits, gold = development_data(1)
    best = bcrf.tune_transition_bias(logits, gold, LABELS)
    precise = bcrf.tune_transition_bias(logits, gold, LABELS, precision=best.precision + 0.1)
    complete = bcrf.tune_transition_bias(logits, gold, LABELS, recall=best.recall + 0.03)
    assert precise.precision >= best.precision + 0.1
    assert 0 < precise.recall < best.recall
    assert complete.recall >= best.recall + 0.03
    assert complete.precision < best.precision
    assert measured(logits, gold, precise.bias)[0] == pytest.approx(precise.precision)


def test_the_result_does_not_change_from_call_to_call():
    logits, gold = development_data(2)
    assert len({bcrf.tune_transition_bias(logits, gold, LABELS) for _ in range(2)}) == 1


def test_perfect_logits_need_no_bias():
    logits, _ = development_data(3)
    gold = bcrf.decode_logits(logits, LABELS).labels
    tuned = bcrf.tune_transition_bias(logits, gold, LABELS)
    assert tuned == bcrf.TunedBias(bcrf.TransitionBias(), 1.0, 1.0, 1.0)


def test_gold_may_be_indices_with_removed_positions():
    logits, gold = development_data(4, 3.0)
    mask = torch.rand(logits.shape[:2], generator=torch.Generator().manual_seed(0)) < 0.7
    rows = [
        [x for x, kept in zip(*pair, strict=True) if kept] for pair in zip(gold, mask, strict=True)
    ]
    ids = torch.tensor([[LABELS.index(x) for x in row] for row in gold])
    by_name = bcrf.tune_transition_bias(logits, rows, LABELS, mask=mask)
    by_id = bcrf.tune_transition_bias(logits, ids.masked_fill(~mask, -100), LABELS)
    with_mask = bcrf.tune_transition_bias(logits, ids, LABELS, mask=mask)
    assert by_name == by_id == with_mask
    lists = bcrf.tune_transition_bias(logits.tolist(), ids.tolist(), LABELS, mask=mask.tolist())
    assert lists == with_mask


def test_sentences_of_different_lengths():
    logits, gold = development_data(5, 3.0, sentences=20)
    sizes = [1 + b % 12 for b in range(20)]
    matrices = [matrix[:size] for matrix, size in zip(logits, sizes, strict=True)]
    rows = [row[:size] for row, size in zip(gold, sizes, strict=True)]
    mask = torch.arange(12) < torch.tensor(sizes).unsqueeze(1)
    expected = bcrf.tune_transition_bias(logits, rows, LABELS, mask=mask)
    assert bcrf.tune_transition_bias(matrices, rows, LABELS) == expected
    ids = [torch.tensor([LABELS.index(x) for x in row]) for row in rows]
    assert bcrf.tune_transition_bias(matrices, ids, LABELS) == expected


def test_one_sentence_without_a_batch_axis():
    logits, gold = development_data(7, 3.0, sentences=1, n=60)
    expected = bcrf.tune_transition_bias(logits, gold, LABELS)
    ids = [LABELS.index(x) for x in gold[0]]
    for own in (gold[0], ids, torch.tensor(ids)):
        assert bcrf.tune_transition_bias(logits[0], own, LABELS) == expected


def test_biases_move_along_the_trade_off():
    """More `enter_span` never gives a best sequence with fewer first positions of spans."""
    logits, _ = development_data(6, sentences=20)
    counts = [
        sum(map(len, bcrf.decode_logits(logits, LABELS, transition_bias=bias).spans))
        for bias in (bcrf.TransitionBias(enter_span=x) for x in (-20.0, -2.0, 0.0, 2.0, 20.0))
    ]
    assert counts == sorted(counts)
    assert counts[0] < counts[2] < counts[-1]


def test_the_oracle_counts_what_it_should():
    """S-A, O, or B-B E-B: the sequences of two positions are countable by hand."""
    found = {
        names
        for _, names, _ in legal_sequences([[0.0] * 4] * 2, ["O", "S-A", "B-B", "E-B"], "BIOES")
    }
    assert found == {("O", "O"), ("O", "S-A"), ("S-A", "O"), ("S-A", "S-A"), ("B-B", "E-B")}


def test_an_unreachable_precision_is_warned_of():
    logits = torch.tensor([[[0.0, 1.0], [0.0, 2.0]]])  # the wrong span is always more probable
    with pytest.warns(RuntimeWarning, match=r"reach the precision 1.0; the best ones reach 0.5000"):
        tuned = bcrf.tune_transition_bias(logits, [["B", "O"]], ["O", "B"], precision=1.0)
    assert (tuned.precision, tuned.recall) == (0.5, 1.0)


@pytest.mark.parametrize(
    ("gold", "kind", "message"),
    [
        ([["O", "O"]], ValueError, "gold has no spans"),
        ([], ValueError, "expected labels of 1 sentences, got 0"),
        ([["B"]], ValueError, "gold, sentence 0: expected 2 labels"),
        ([["O", "B-X"]], ValueError, "gold, sentence 0, position 1: 'B-X' has a type"),
        ([["O", "hat"]], ValueError, "gold, sentence 0, position 1: 'hat' is not a label"),
        ([["O", 1]], TypeError, "gold, sentence 0, position 1: expected a label, got 1"),
        (torch.tensor([[0, 2]]), ValueError, r"gold, sentence 0, position 1: 2 is not in 0..1"),
        (torch.tensor([[0.0, 1.0]]), TypeError, "gold must be labels or integers"),
        (torch.tensor([[0, 1, 1]]), ValueError, "gold, sentence 0: expected 2 numbers.* got 3"),
        (torch.zeros(2, 2, dtype=torch.int64), ValueError, "logits have 1, gold has 2"),
    ],
)
def test_bad_gold_is_located(gold, kind, message):
    with pytest.raises(kind, match=message):
        bcrf.tune_transition_bias(torch.zeros(1, 2, 2), gold, ["O", "B"])


@pytest.mark.parametrize(
    ("wanted", "kind", "message"),
    [
        ({"precision": 0.5, "recall": 0.5}, ValueError, "not both"),
        ({"precision": 0.0}, ValueError, r"precision must be in \(0, 1\]"),
        ({"recall": 1.5}, ValueError, r"recall must be in \(0, 1\]"),
        ({"recall": "1"}, TypeError, "recall must be a number"),
    ],
)
def test_bad_wishes_are_refused(wanted, kind, message):
    with pytest.raises(kind, match=message):
        bcrf.tune_transition_bias(torch.zeros(1, 2, 2), [["B", "O"]], ["O", "B"], **wanted)
