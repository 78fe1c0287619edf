"""`decode_logits` against the enumeration of all label sequences, and its arguments."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import asdict

import numpy as np
import pytest
import torch

import bcrf
from bcrf.logit_decoding import decode, messages
from bcrf.logit_decoding.label_set import LabelSet
from tests.logit_decoding.label_oracle import best_and_probabilities

LABELS = {
    "BIO": ["B-A", "O", "I-A", "B-B"],
    "IOB1": ["I-A", "B-A", "O", "I-B"],
    "BIOES": ["S-A", "B-A", "I-A", "E-A", "O"],
    "BILOU": ["O", "U-B", "B-A", "L-A", "B-B", "L-B"],
    "BIES": ["B", "M", "E", "S"],
}
ORACLE = {"BILOU": "BIOES", "BIES": "BIOES"}
BIAS = bcrf.TransitionBias(0.3, -0.7, 0.4, 0.9)


def check(found, sentence, logits, labels, scheme, **keywords):
    """Compare one sentence of a result with the enumeration."""
    (score, names, spans), probabilities = best_and_probabilities(
        logits.tolist(), labels, ORACLE.get(scheme, scheme), **keywords
    )
    assert found.labels[sentence] == list(names)
    assert [tuple(span[:3]) for span in found.spans[sentence]] == spans
    assert float(found.score[sentence]) == pytest.approx(score, abs=1e-9)
    for span in found.spans[sentence]:
        assert span.probability == pytest.approx(probabilities[tuple(span[:3])], abs=1e-10)
    return len(spans)


@pytest.mark.parametrize("bias", [None, BIAS], ids=["no bias", "bias"])
@pytest.mark.parametrize("scheme", LABELS)
@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_agrees_with_enumeration(scheme, n, bias):
    if scheme == "BILOU" and n == 5:
        n = 4
    labels = LABELS[scheme]
    torch.manual_seed(n)
    logits = 2 * torch.randn(6, n, len(labels), dtype=torch.float64)
    found = bcrf.decode_logits(logits, labels, transition_bias=bias)
    numbers = None if bias is None else asdict(bias)
    count = sum(check(found, b, logits[b], labels, scheme, bias=numbers) for b in range(6))
    assert count > 0


@pytest.mark.parametrize("scheme", LABELS)
def test_a_tensor_of_biases_agrees_with_enumeration(scheme):
    labels = LABELS[scheme]
    size = len(labels)
    torch.manual_seed(1)
    logits = 2 * torch.randn(4, 4, size, dtype=torch.float64)
    pair = torch.randn(size, size, dtype=torch.float64)
    found = bcrf.decode_logits(logits, labels, transition_bias=pair)
    for b in range(4):
        check(found, b, logits[b], labels, scheme, pair=pair.tolist())


def test_removed_labels_and_transitions_agree_with_enumeration():
    labels = LABELS["BIOES"]
    torch.manual_seed(2)
    logits = torch.randn(4, 5, 5, dtype=torch.float64)
    logits[0, 1, 4] = logits[1, :4, 0] = logits[2, 2, 1] = -math.inf
    logits[3, :, 4] = logits[3, :, 0] = -math.inf  # neither O nor S
    pair = torch.zeros(5, 5, dtype=torch.float64)
    pair[4, 1] = -math.inf  # no B-A after O
    found = bcrf.decode_logits(logits, labels, transition_bias=pair)
    for b in range(4):
        check(found, b, logits[b], labels, "BIOES", pair=pair.tolist())


@pytest.mark.parametrize("size", [30.0, 300.0, 3000.0])
def test_huge_logits_agree_with_enumeration(size):
    """Probabilities underflow, but their logarithms do not."""
    labels = LABELS["BIO"]
    torch.manual_seed(3)
    logits = size * torch.randn(8, 5, 4, dtype=torch.float64)
    logits[:, :, 2] += 5 * size  # I-A everywhere, which is illegal at the start
    logits[0, :3, 0] = -7 * size
    found = bcrf.decode_logits(logits, labels)
    assert sum(check(found, b, logits[b], labels, "BIO") for b in range(8)) > 5


def test_a_label_that_is_forced_late_keeps_its_small_probability():
    """Exact where the forward probability of the only path is far below the smallest double."""
    labels = ["O", "B-A", "I-A", "B-B", "I-B"]
    logits = torch.zeros(200, 5, dtype=torch.float64)
    logits[:, 3:] = -20.0  # B is unlikely at each of 200 positions
    logits[1:, [0, 1, 3]] = -math.inf  # one span only
    logits[-1, 2] = -math.inf  # and it must be B in the end
    (spans,) = bcrf.decode_logits(logits, labels).spans
    assert spans == [bcrf.LabeledSpan(0, 200, "B", pytest.approx(1.0))]


def test_forbidden_transitions_may_keep_paths_apart_for_long():
    """Halfway, one of two equal paths is less probable than the smallest double."""
    labels = ["O", "B-A", "I-A", "B-B", "I-B"]
    logits = torch.zeros(300, 5, dtype=torch.float64)
    logits[:150, 3:] = logits[150:, 1:3] = -20.0
    logits[:, 0], logits[0, 1] = -40.0, 0.5
    pair = torch.full((5, 5), -math.inf)
    pair[1, 2] = pair[2, 2] = pair[3, 4] = pair[4, 4] = pair[0, 0] = 0.0
    (spans,) = bcrf.decode_logits(logits, labels, transition_bias=pair).spans
    assert spans == [bcrf.LabeledSpan(0, 300, "A", pytest.approx(1 / (1 + math.exp(-0.5))))]


# ------------------------------------------------------------------- long inputs, cut into chunks


@pytest.mark.parametrize("in_log_space", [False, True])
@pytest.mark.parametrize("scheme", ["BIO", "BIOES", "IOB1"])
def test_chunks_do_not_change_probabilities(scheme, in_log_space, monkeypatch):
    """Many chunks give what one chunk gives; a dense bias has as many classes as labels."""
    labels = LABELS[scheme]
    torch.manual_seed(4)
    logits = torch.randn(3, 90, len(labels), dtype=torch.float64)
    mask = torch.rand(3, 90) < 0.8
    if in_log_space:
        logits[0, 0, labels.index("O")] = -math.inf
        mask[0, 0] = True
    for bias in (None, BIAS, torch.randn(len(labels), len(labels))):
        found = [bcrf.decode_logits(logits, labels, mask=mask, transition_bias=bias)]
        for shortest in (1, 7, 1000):
            monkeypatch.setattr(messages, "_SHORTEST_CHUNK", shortest)
            found.append(bcrf.decode_logits(logits, labels, mask=mask, transition_bias=bias))
        monkeypatch.undo()
        p = [[s.probability for row in one.spans for s in row] for one in found]
        assert len(p[0]) > 10
        for other in p[1:]:
            assert other == pytest.approx(p[0], rel=1e-9)


def test_one_long_sentence_agrees_with_the_span_probability_of_a_layer():
    labels = ["O", "B-A", "I-A", "E-A", "S-A", "B-B", "E-B"]
    torch.manual_seed(5)
    logits = 2 * torch.randn(1, 700, 7, dtype=torch.float64)
    found = bcrf.decode_logits(logits, labels)
    layer = bcrf.ExactCRF(7, constraints=bcrf.Structure.from_labels(labels, "BIOES")).double()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.zero_()
    queries = [
        (0, start, [labels.index(name) for name in found.labels[0][start:end]])
        for start, end, _, _ in found.spans[0]
    ]
    expected = layer.span_probability(logits, queries)
    assert [s.probability for s in found.spans[0]] == pytest.approx(expected.tolist(), abs=1e-9)


def test_a_span_that_covers_everything():
    labels = ["O", "B-A", "I-A"]
    logits = torch.zeros(5000, 3)
    logits[0, 1] = logits[1:, 2] = 12.0
    (spans,) = bcrf.decode_logits(logits, labels).spans
    (span,) = spans
    assert span[:3] == (0, 5000, "A")
    # Its only rivals have B at another position; O would cost twice as much, for B must follow.
    assert span.probability == pytest.approx((1 + math.exp(-12)) ** -5000, rel=1e-3)


# ----------------------------------------------------------------------------------------- inputs


def test_masks_with_holes_use_the_positions_of_the_input():
    labels = LABELS["BIOES"]
    torch.manual_seed(6)
    logits = torch.randn(5, 9, 5)
    mask = torch.tensor(
        [
            [0, 1, 0, 0, 1, 1, 0, 1, 0],
            [1, 1, 1, 0, 0, 0, 0, 0, 0],
            [0, 0, 0, 0, 0, 0, 0, 0, 0],
            [0, 0, 0, 0, 0, 0, 0, 0, 1],
            [1, 0, 1, 0, 1, 0, 1, 0, 1],
        ]
    )
    logits[mask == 0] = math.nan  # removed positions are not read
    found = bcrf.decode_logits(logits, labels, mask=mask)
    count = 0
    for b in range(5):
        places = mask[b].nonzero().flatten().tolist()
        assert found.tags[b, places].tolist() == [labels.index(x) for x in found.labels[b]]
        assert (found.tags[b][mask[b] == 0] == -100).all()
        (own,) = bcrf.decode_logits(logits[b, places], labels).spans
        count += len(own)
        assert [span[2:] for span in found.spans[b]] == [
            (span.label, pytest.approx(span.probability)) for span in own
        ]
        for span, alone in zip(found.spans[b], own, strict=True):
            assert span.start == places[alone.start]
            assert span.end == places[alone.end - 1] + 1
    assert count > 3


def test_every_kind_of_input_gives_the_same_result():
    labels = LABELS["BIO"]
    torch.manual_seed(7)
    logits = (4 * torch.randn(2, 6, 4)).round() / 4  # exact in every dtype
    mask = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 0, 1, 0, 0]])
    expected = bcrf.decode_logits(logits, labels, mask=mask)
    inputs = [
        (logits.tolist(), mask.tolist()),
        (logits.numpy(), mask.numpy()),
        (logits.numpy().astype(np.float16), mask.bool().numpy()),
        (logits.double(), mask.bool()),
        (logits.half(), mask),
        (logits.bfloat16(), mask),
        (logits.requires_grad_(), mask),
        ([logits[0], logits[1, :4]], [mask[0], mask[1, :4]]),
        ([logits[0].detach().numpy(), logits[1, :4].tolist()], None),
    ]
    inputs[-1] = ([logits[0].detach().numpy(), logits[1].detach().numpy()], mask)
    for scores, keep in inputs:
        found = bcrf.decode_logits(scores, dict(enumerate(labels)), mask=keep)
        assert found.labels == expected.labels
        assert found.spans == expected.spans
        torch.testing.assert_close(found.score, expected.score)
        assert not found.score.requires_grad
    one = bcrf.decode_logits(logits[1], labels, mask=mask[1])
    assert (one.labels, one.spans) == (expected.labels[1:], [expected.spans[1]])


def test_read_only_arrays_are_accepted_without_a_warning():
    array = np.zeros((2, 3), dtype=np.float32)
    array.setflags(write=False)
    assert bcrf.decode_logits(array, ["O", "B", "I"]).labels == [["O", "O"]]


@pytest.mark.parametrize(
    ("logits", "sentences"),
    [
        ([], 0),
        ([[]], 1),
        ([[], []], 2),
        (torch.zeros(0, 3), 1),
        (torch.zeros(0, 0, 3), 0),
        (torch.zeros(0, 7, 3), 0),
        (torch.zeros(2, 0, 3), 2),
        (np.zeros((0, 3)), 1),
        ([torch.zeros(0, 3), torch.zeros(0, 3)], 2),
    ],
)
def test_empty_inputs(logits, sentences):
    found = bcrf.decode_logits(logits, ["O", "B", "I"])
    assert found.labels == found.spans == [[]] * sentences
    assert found.score.tolist() == [0.0] * sentences
    assert found.tags.shape[0] == sentences


def test_a_sentence_without_kept_positions_is_empty():
    logits = torch.tensor([[[0.0, 5.0]], [[0.0, 5.0]]])
    found = bcrf.decode_logits(logits, ["O", "B"], mask=torch.tensor([[0], [1]]))
    assert (found.labels, list(map(len, found.spans))) == ([[], ["B"]], [0, 1])


def test_random_batches_agree_with_single_sentences():
    generator = random.Random(8)
    torch.manual_seed(8)
    labels = LABELS["IOB1"]
    sizes = [generator.randrange(0, 30) for _ in range(25)]
    matrices = [torch.randn(size, 4) for size in sizes]
    found = bcrf.decode_logits(matrices, labels, transition_bias=BIAS)
    for b, matrix in enumerate(matrices):
        alone = bcrf.decode_logits(matrix, labels, transition_bias=BIAS)
        assert found.labels[b] == alone.labels[0]
        for span, other in itertools.zip_longest(found.spans[b], alone.spans[0]):
            assert span[:3] == other[:3]
            assert span.probability == pytest.approx(other.probability, rel=1e-9)
        torch.testing.assert_close(found.score[b], alone.score[0])


@pytest.mark.parametrize("window", [1, 6, 19, 4096])
def test_without_compiled_kernels_nothing_changes(window, monkeypatch):
    """Long sentences are then decoded in windows."""
    labels = LABELS["BIOES"]
    torch.manual_seed(9)
    logits = torch.randn(5, 20, 5)
    mask = torch.arange(20) < torch.tensor([[20], [19], [0], [1], [7]])
    expected = bcrf.decode_logits(logits, labels, mask=mask, transition_bias=BIAS)
    monkeypatch.setattr(bcrf.kernels.native, "UNAVAILABLE", "for this test")
    monkeypatch.setattr(decode, "_LONG", window)
    found = bcrf.decode_logits(logits, labels, mask=mask, transition_bias=BIAS)
    assert found.labels == expected.labels
    assert torch.equal(found.tags, expected.tags)
    torch.testing.assert_close(found.score, expected.score)


# ----------------------------------------------------------------------------------------- errors


def with_value(sentence, position, tag, value):
    logits = torch.zeros(2, 4, 3)
    logits[sentence, position, tag] = value
    return logits


@pytest.mark.parametrize(
    ("logits", "message"),
    [
        (with_value(1, 2, 1, math.nan), "sentence 1, position 2: the logit of 'B-X' is nan"),
        (with_value(0, 3, 0, math.inf), "sentence 0, position 3: the logit of 'O' is inf"),
        (with_value(1, 0, slice(None), -math.inf), "sentence 1, position 0: all 3 logits are -inf"),
        (torch.zeros(2, 4, 5), r"\[B, n, T\] with T = 3, one score .* got \[2, 4, 5\]"),
        (torch.zeros(4, 2), r"\[n, T\] with T = 3"),
        (torch.zeros(3), r"must be \[B, n, T\] or \[n, T\], got \[3\]"),
        ([torch.zeros(2, 3), torch.zeros(3, 4)], r"logits\[1\] must be \[n, T\] with T = 3"),
        ([[[0.0, 1.0, 2.0]], []], "logits must be a tensor, an array or a nested list"),
    ],
)
def test_bad_logits_are_located(logits, message):
    with pytest.raises(ValueError, match=message):
        bcrf.decode_logits(logits, ["O", "B-X", "I-X"])


def test_bad_logits_are_located_in_the_input_of_a_mask_with_holes():
    mask = torch.tensor([[1, 0, 0, 1], [0, 1, 0, 1]])
    with pytest.raises(ValueError, match="sentence 1, position 3: the logit of 'O' is nan"):
        bcrf.decode_logits(with_value(1, 3, 0, math.nan), ["O", "B-X", "I-X"], mask=mask)


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (torch.ones(2, 3), r"mask must be \[B, n\] = \[2, 4\], got \[2, 3\]"),
        (torch.full((2, 4), -1e4), "mask holds -10000.0: expected 1"),
    ],
)
def test_bad_masks_are_refused(mask, message):
    with pytest.raises(ValueError, match=message):
        bcrf.decode_logits(torch.zeros(2, 4, 3), ["O", "B-X", "I-X"], mask=mask)


@pytest.mark.parametrize("checks", [None, False])
def test_a_sentence_without_a_legal_sequence_is_named(checks):
    logits = torch.zeros(2, 1, 3)
    logits[1, 0, :2] = -math.inf  # only I-X, which cannot begin a sentence
    with (
        bcrf.set_checks(checks),
        pytest.raises(ValueError, match=r"sentence 1 has no (path|legal)"),
    ):
        bcrf.decode_logits(logits, ["O", "B-X", "I-X"])


def test_a_long_sentence_without_a_legal_sequence_is_named(monkeypatch):
    logits = torch.zeros(2, 9, 3)
    logits[1, 4, :2] = logits[1, 3, 1:] = -math.inf  # I-X after O
    monkeypatch.setattr(bcrf.kernels.native, "UNAVAILABLE", "for this test")
    monkeypatch.setattr(decode, "_LONG", 3)
    with pytest.raises(ValueError, match="sentence 1: the sentence has no path left"):
        bcrf.decode_logits(logits, ["O", "B-X", "I-X"])


@pytest.mark.parametrize("logits", [torch.zeros(2, 3, dtype=torch.bool), torch.zeros(2, 3) * 1j])
def test_logits_are_real_numbers(logits):
    with pytest.raises(TypeError, match="logits must be real numbers"):
        bcrf.decode_logits(logits, ["O", "B", "I"])


@pytest.mark.parametrize(
    ("bias", "kind", "message"),
    [
        (torch.zeros(2, 2), ValueError, r"\[T, T\] = \[3, 3\] for 3 labels, got \[2, 2\]"),
        (torch.zeros(3, 3, dtype=torch.int64), TypeError, "floating point"),
        (1.0, TypeError, "a TransitionBias or a tensor"),
        (torch.full((3, 3), math.nan), ValueError, "from 'O' to 'O', is nan"),
        (torch.tensor([[0, 0, 0], [0, 0, math.inf], [0, 0, 0]]), ValueError, "from 'B' to 'I'"),
    ],
)
def test_bad_biases_are_refused(bias, kind, message):
    with pytest.raises(kind, match=message):
        bcrf.decode_logits(torch.zeros(2, 3), ["O", "B", "I"], transition_bias=bias)


@pytest.mark.parametrize(("value", "kind"), [(math.nan, ValueError), ("1", TypeError)])
def test_biases_are_finite_numbers(value, kind):
    with pytest.raises(kind, match="enter_span must be"):
        bcrf.TransitionBias(enter_span=value)


# ----------------------------------------------------------------------------------------- labels


@pytest.mark.parametrize(
    ("labels", "scheme"),
    [
        (["O", "B-A", "I-A"], "BIO"),
        (["I-A", "B-A", "O"], "BIO"),
        (["B-A", "B-B"], "BIO"),
        (["O", "I-A", "I-B"], "IOB1"),
        # of dbmdz/bert-large-cased-finetuned-conll03-english
        (["B-L", "B-M", "B-O", "I-L", "I-M", "I-O", "I-P", "O"], "IOB1"),
        (["S-A", "O"], "BIOES"),
        (["E-A", "O", "I-A", "B-A", "S-A", "S-B"], "BIOES"),
        (["U-A", "L-A", "I-A", "B-A", "O"], "BIOES"),
        (["O", "B-A", "M-A", "E-A", "S-A"], "BIOES"),
        (["B", "M", "E", "S"], "BIES"),
        (["B", "E", "S"], "BIES"),
    ],
)
def test_schemes_are_detected_from_labels_in_any_order(labels, scheme):
    generator = random.Random(0)
    for _ in range(10):
        assert LabelSet.read(labels).scheme == scheme
        labels = generator.sample(labels, len(labels))


@pytest.mark.parametrize(
    ("labels", "scheme", "message"),
    [
        (["O", "PER"], "auto", r"labels\[1\]: 'PER' is not a label"),
        (["LABEL_0", "LABEL_1"], "auto", r"labels\[0\]: 'LABEL_0' is not a label"),
        (["O"], "auto", "no label of a span"),
        (["O", "B-A", "I-A", "S-B"], "auto", r"labels\[1\]: 'B-A' .* no label 'E-A'"),
        (["O", "I-A", "E-A"], "auto", r"labels\[1\]: 'I-A' .* no label 'B-A'"),
        (["O", "B-A", "I-B"], "auto", r"labels\[1\]: 'B-A' .* in IOB1, .* no label 'I-A'"),
        (["O", "B-A", "I-A", "I-B"], "BIO", r"labels\[3\]: 'I-B' .* in BIO, .* no label 'B-B'"),
        (["O", "B-A", "E-A"], "IOB2", r"labels\[2\]: 'E-A' is not a label of BIO"),
        (["O", "S-A", "U-A"], "auto", r"labels\[2\]: 'U-A' means the same as labels\[1\], 'S-A'"),
        (["O", "B-A"], "BILO", "scheme: expected one of BIO"),
        (["O", "O-A"], "auto", r"labels\[1\]: 'O-A' is not a label: O takes no type"),
        ({1: "O", 2: "B"}, "auto", "0 is missing"),
    ],
)
def test_mixed_and_unknown_labels_are_named(labels, scheme, message):
    with pytest.raises(ValueError, match=message):
        bcrf.decode_logits(torch.zeros(1, len(labels)), labels, scheme=scheme)


def test_a_given_scheme_overrules_detection():
    labels = ["O", "B-A", "I-A"]
    logits = torch.tensor([[0.0, 0.0, 9.0], [0.0, 9.0, 0.0]])
    found = bcrf.decode_logits(logits, labels, scheme="iob1")
    assert (found.scheme, found.labels) == ("IOB1", [["I-A", "B-A"]])
    assert [span[:3] for span in found.spans[0]] == [(0, 1, "A"), (1, 2, "A")]


def test_results_have_a_short_repr():
    found = bcrf.decode_logits(torch.zeros(3, 50, 3), ["O", "B", "I"])
    assert repr(found) == "DecodedLogits(3 sentences, 0 spans, scheme='BIO')"
