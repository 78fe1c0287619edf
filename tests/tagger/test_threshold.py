"""Tags whose probability is below a threshold are left out; probabilities of mentions."""

import copy
import itertools
import math

import pytest
import torch

from bcrf.tagger import Tagger
from bcrf.tagger.tasks import find_spans
from tests.tagger_cases import pairs, trained

TASKS = ["pos", "segmentation", "ner"]


@pytest.fixture(scope="module")
def taggers(tmp_path_factory) -> dict[str, Tagger]:
    return {
        task: trained(tmp_path_factory.mktemp(task), task, training={"epochs": 4}) for task in TASKS
    }


@pytest.fixture(scope="module")
def bioes(tmp_path_factory) -> Tagger:
    return trained(tmp_path_factory.mktemp("bioes"), "ner", data={"scheme": "BIOES"})


def inputs(task: str) -> list:
    words = [[word for word, _ in sentence] for sentence in pairs(task)]
    return ["".join(sentence) for sentence in words] if task == "segmentation" else words


def of_examples(tagger: Tagger, sentences: list) -> list:
    examples = [tagged.example for tagged in tagger.tag(sentences)]
    return list(tagger.tag_examples(examples, probabilities=True))


def enumerated(tagger: Tagger, tagged) -> list[float]:
    """Return the probability of each predicted mention, summed over all label sequences."""
    with torch.no_grad():
        chain = tagger.chain([tagger.reader(tagged.example.tokens)], [None]).double()
    n, labels = len(tagged.example), tagger.labels
    wanted = find_spans(tagged.labels)
    sums, total = [0.0] * len(wanted), 0.0
    for tags in itertools.product(range(len(labels)), repeat=n):
        weight = math.exp(float(chain.score(torch.tensor([tags]))))
        total += weight
        if weight:
            found = find_spans([labels[tag] for tag in tags])
            sums = [s + weight * (span in found) for s, span in zip(sums, wanted, strict=True)]
    return [s / total for s in sums]


def test_probabilities_of_mentions_are_those_of_enumeration(taggers, bioes):
    for tagger in (taggers["ner"], bioes):
        for sentence in (["Ada", "Lovelace", "Turin"], ["New", "York"], ["Acme", "Corp", "is"]):
            (tagged,) = of_examples(tagger, [sentence])
            expected = enumerated(tagger, tagged)
            assert tagged.item_probabilities == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("task", TASKS)
def test_long_sentences_have_the_same_items(taggers, task, monkeypatch):
    tagger = taggers[task]
    expected = of_examples(tagger, inputs(task))
    monkeypatch.setattr("bcrf.tagger.prediction.tagging.LONGEST_WHOLE", 1)
    monkeypatch.setattr("bcrf.tagger.prediction.long_sentences.BLOCK_TOKENS", 4)
    for one, two in zip(expected, of_examples(tagger, inputs(task)), strict=True):
        assert one.labels == two.labels
        assert two.item_probabilities == pytest.approx(one.item_probabilities, rel=1e-5)


@pytest.mark.parametrize("task", TASKS)
def test_a_threshold_of_zero_gives_all_tags(taggers, task):
    tagger = taggers[task]
    expected = [tagged.tags for tagged in tagger.tag(inputs(task))]
    assert [tagged.tags for tagged in tagger.tag(inputs(task), threshold=0.0)] == expected


@pytest.mark.parametrize("task", TASKS)
def test_tags_with_a_smaller_probability_are_left_out(taggers, task):
    tagger = taggers[task]
    everything = of_examples(tagger, inputs(task))
    values = sorted(p for tagged in everything for p in tagged.item_probabilities)
    threshold = values[len(values) // 2]
    left_out = 0
    for full, part in zip(everything, tagger.tag(inputs(task), threshold=threshold), strict=True):
        assert part.words == full.words
        kept = [p >= threshold for p in full.item_probabilities]
        left_out += kept.count(False)
        if task == "ner":
            spans = [s for s, keep in zip(find_spans(full.labels), kept, strict=True) if keep]
            assert find_spans(part.labels) == spans
            assert list(part.labels) == tagger.task.repair(part.example, part.labels)
            for span, p in zip(find_spans(full.labels), full.item_probabilities, strict=True):
                assert set(part.probabilities[span.start : span.end]) == {p}
        else:
            shown = [t if keep else "_" for t, keep in zip(full.tags, kept, strict=True)]
            assert list(part.tags) == shown
            assert part.probabilities == full.probabilities
    assert left_out == len([p for p in values if p < threshold]) > 0


def test_left_out_tags_can_be_written_in_every_format(taggers):
    for task in TASKS:
        for tagged in taggers[task].tag(inputs(task), threshold=1.0):
            for format in ("conllu", "columns", "jsonl"):
                assert tagged.render(format)
    (tagged,) = taggers["pos"].tag([["the", "cat"]], threshold=1.0)
    assert tagged.tags == ("_", "_")
    first = tagged.render("conllu").splitlines()[0].split("\t")
    assert first[3] == "_"
    assert first[9].startswith("Prob=")


def test_the_threshold_is_compared_with_the_calibrated_probability(taggers):
    tagger = copy.copy(taggers["pos"])
    sentence = [["the", "cat", "saw"]]
    threshold = min(tagger.tag(sentence, probabilities=True)[0].probabilities) - 1e-6
    assert "_" not in tagger.tag(sentence, threshold=threshold)[0].tags
    tagger.probability_temperature = 10.0
    assert "_" in tagger.tag(sentence, threshold=threshold)[0].tags


@pytest.mark.parametrize(
    ("threshold", "error"),
    [
        (1.5, ValueError),
        (-0.1, ValueError),
        (math.nan, ValueError),
        ("0.5", TypeError),
        (True, TypeError),
    ],
)
def test_wrong_thresholds_are_refused(taggers, threshold, error):
    with pytest.raises(error, match="threshold must be a number from 0 to 1"):
        taggers["pos"].tag([["the"]], threshold=threshold)


def test_a_threshold_needs_probabilities(taggers):
    (tagged,) = taggers["pos"].tag([["the"]])
    with pytest.raises(ValueError, match="a threshold needs probabilities"):
        tagged.above(0.5)


def test_empty_sentences_pass(taggers):
    assert [t.tags for t in taggers["pos"].tag([[], ["the"], []], threshold=1.0)] == [
        (),
        ("_",),
        (),
    ]
    assert [t.tags for t in taggers["ner"].tag([[]], threshold=0.5)] == [()]
    assert [t.tags for t in taggers["segmentation"].tag([""], threshold=0.5)] == [()]
